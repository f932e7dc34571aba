"""`strandline status` on a real broker: well while it is, and what is wrong while it is not."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from strandline.broker.cli import main
from tests.support.broker import eventually
from tests.support.fault_proxy import Action, FaultProxy, Rule
from tests.support.metrics import get, metric, metrics_port
from tests.support.ports import ReservedPort
from tests.system.tiers.conftest import MakeBroker
from tests.system.tiers.log_client import LATEST, LATEST_TIERED, end_of, make_batches
from tests.system.tiers.tiered_broker import (
    FREE_LOCALLY,
    REGION,
    SEGMENT_BYTES,
    TIERED,
    WAIT_S,
    Archive,
    TieredBroker,
)

pytestmark = [pytest.mark.slow, pytest.mark.s3]

TOPIC = "status"
BATCHES = make_batches(size_bytes=5 * SEGMENT_BYTES // 2)
# A test machine's disk may be nearly full; that is not what these are about.
DISK = "disk of "


@pytest.fixture
def metrics_listener() -> ReservedPort:
    """Kept to the end of the test: also while the broker is started again."""
    return ReservedPort()


@pytest.fixture
def broker(
    make_broker: MakeBroker, fault_proxy: FaultProxy, metrics_listener: ReservedPort
) -> TieredBroker:
    listener = {
        "strandline.metrics.listener": f"http://127.0.0.1:{metrics_listener.number}",
        "strandline.remote.check.interval.ms": "500",
    }
    broker = make_broker(endpoint_url=fault_proxy.endpoint_url, settings=listener)
    broker.start()
    return broker


@pytest.fixture
def look(
    broker: TieredBroker, capsys: pytest.CaptureFixture[str]
) -> Callable[..., dict[str, object]]:
    """What the command says of the broker, as a program reads it."""

    def look(*arguments: str) -> dict[str, object]:
        capsys.readouterr()
        code = main(["status", "--bootstrap-server", broker.bootstrap, "--json", *arguments])
        (document,) = json.loads(capsys.readouterr().out)
        assert code == (0 if document["ok"] else 3)
        assert isinstance(document, dict)
        return document

    return look


def troubles(document: dict[str, object]) -> dict[str, str]:
    checks = document["checks"]
    assert isinstance(checks, list)
    return {
        check["check"]: check["trouble"]
        for check in checks
        if check["trouble"] and not check["check"].startswith(DISK)
    }


def test_a_store_that_refuses_and_one_that_is_away_are_told_apart_and_forgotten_afterwards(
    broker: TieredBroker,
    look: Callable[..., dict[str, object]],
    fault_proxy: FaultProxy,
) -> None:
    with broker.client(TOPIC) as client:
        client.create_topic(TIERED)
        client.produce(BATCHES)
        broker.wait_until_archived(client)
        eventually(lambda: troubles(look()) == {}, timeout_s=WAIT_S)
        (topic,) = look()["topics"]  # type: ignore[misc]
        assert topic["archive_bytes"] >= 2 * SEGMENT_BYTES * 9 // 10  # type: ignore[index]
        # The open segment is on this machine alone, and the command needs no special offsets.
        open_count = client.offset_at(LATEST) - client.offset_at(LATEST_TIERED) - 1
        exposed = look()["exposed"][TOPIC]  # type: ignore[index]
        assert exposed["records"] == open_count > 0
        assert 0 < exposed["size_bytes"] <= topic["local_bytes"]  # type: ignore[index]
        assert str(look()["if_burned_now"]).startswith(f"{open_count:,} records (")

        refusal = Rule(action=Action.STATUS, status=403, code="AccessDenied", times=-1)
        fault_proxy.add(refusal)
        client.produce(make_batches(base_offset=client.offset_at(LATEST), size_bytes=SEGMENT_BYTES))
        found = eventually(lambda: troubles(look()).get("archiving"), timeout_s=WAIT_S)
        assert f"{TOPIC}-0" in str(found)
        assert "AccessDenied" in str(found)
        (topic,) = look()["topics"]  # type: ignore[misc]
        assert topic["copy_lag_bytes"] > 0  # type: ignore[index]

        fault_proxy.clear()
        eventually(lambda: troubles(look()) == {}, timeout_s=WAIT_S)
        fault_proxy.go_away()
        client.produce(make_batches(base_offset=client.offset_at(LATEST), size_bytes=SEGMENT_BYTES))
        eventually(lambda: "object store" in troubles(look()), timeout_s=WAIT_S)
        fault_proxy.come_back()
        eventually(lambda: troubles(look()) == {}, timeout_s=WAIT_S)


def test_metadata_that_does_not_reach_the_bucket_is_seen(
    broker: TieredBroker,
    look: Callable[..., dict[str, object]],
    fault_proxy: FaultProxy,
) -> None:
    lag = "strandline_metadata_mirror_lag"
    eventually(lambda: metric(broker, lag) == 0, timeout_s=WAIT_S)
    refusal = Rule(
        action=Action.STATUS,
        method="PUT",
        path="metadata/log",
        status=403,
        code="AccessDenied",
        times=-1,
    )
    fault_proxy.add(refusal)
    with broker.client(TOPIC) as client:
        client.create_topic(TIERED)
    assert metric(broker, lag) == 1
    assert "metadata in the bucket" in troubles(look())
    fault_proxy.clear()
    eventually(lambda: metric(broker, lag) == 0, timeout_s=WAIT_S)


def test_it_needs_no_kafka_client_where_the_address_is_given(
    broker: TieredBroker, look: Callable[..., dict[str, object]], capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"http://127.0.0.1:{metrics_port(broker)}"
    assert get(broker, "/readyz") == "ok\n"
    assert look("--bootstrap-server", "127.0.0.1:1", "--metrics", url)["metrics"] == url
    capsys.readouterr()
    main(["status", "--metrics", url])
    told = capsys.readouterr().out
    assert told.startswith("if this machine burned now: no record of a topic with an archive ")
    assert "✓ serves clients" in told
    assert "requests to the object store since the start" in told


def test_a_broker_without_metrics_is_told_what_to_set(
    make_broker: MakeBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    with make_broker(name="mute") as broker:
        assert main(["status", "--bootstrap-server", broker.bootstrap]) == 1
        assert "strandline.metrics.listener" in capsys.readouterr().err
        assert main(["status", "--metrics", f"http://127.0.0.1:{broker.port}"]) == 1


def test_an_archive_that_was_emptied_is_not_all_well_and_deleted_records_let_it_begin_anew(
    broker: TieredBroker,
    look: Callable[..., dict[str, object]],
    archive: Archive,
) -> None:
    """What the disk holds does not continue the archive: segments wait, and no attempt fails."""
    with broker.client(TOPIC) as client:
        client.create_topic({**TIERED, **FREE_LOCALLY})
        client.produce(BATCHES)
        broker.wait_until_archived(client)
        local_start = broker.wait_until_freed(client)
        client.produce(make_batches(base_offset=client.offset_at(LATEST), size_bytes=SEGMENT_BYTES))
    broker.stop()
    archive.store.delete(archive.keys())
    broker.start()
    with broker.client(TOPIC) as client:
        eventually(
            lambda: "manifest lost" in troubles(look()).get("waiting for the archive", ""),
            timeout_s=WAIT_S,
        )
        client.delete_records(local_start)
        eventually(lambda: "waiting for the archive" not in troubles(look()), timeout_s=WAIT_S)
        eventually(lambda: archive.end_offset(TOPIC) > local_start, timeout_s=WAIT_S)


def test_a_segment_that_is_gone_is_not_all_well_and_is_read_again_when_it_is_back(
    broker: TieredBroker,
    look: Callable[..., dict[str, object]],
    archive: Archive,
) -> None:
    """A 404 is no damage by checksum, and consumers stand still there all the same."""
    name = "strandline_cold_failures_total"
    with broker.client(TOPIC) as client:
        client.create_topic({**TIERED, **FREE_LOCALLY})
        client.produce(BATCHES)
        broker.wait_until_archived(client)
        broker.wait_until_freed(client)
        # The mirror of the metadata may be a moment behind.
        eventually(lambda: troubles(look()) == {}, timeout_s=WAIT_S)
        key = archive.segments(TOPIC)[0].log_key
        content = archive.store.get(key)
        archive.store.delete([key])
        eventually(lambda: client.fetch(0).error_code, timeout_s=WAIT_S)
        told = troubles(look())["reads of the archive"]
        assert "objects that are gone" in told
        assert "archive verify" in told
        assert metric(broker, name, reason="missing")
        assert [line for line in broker.warnings("reason=missing") if key in line]
        archive.store.put(key, content)
        assert client.read(0, end_of(BATCHES)) == BATCHES
        # Whoever was not there when it was gone hears of it.
        assert metric(broker, name, reason="missing")
        assert "reads of the archive" in troubles(look())


def test_the_last_verify_is_told_with_its_kind_and_what_it_found(
    broker: TieredBroker, look: Callable[..., dict[str, object]], archive: Archive
) -> None:
    bucket = archive.bucket
    options = ["--remote", bucket.url, "--endpoint-url", bucket.endpoint_url, "--region", REGION]

    def figure() -> str:
        checks = look()["checks"]
        assert isinstance(checks, list)
        return str({one["check"]: one["figure"] for one in checks}["archive verified"])

    with broker.client(TOPIC) as client:
        client.create_topic(TIERED)
        client.produce(BATCHES)
        broker.wait_until_archived(client)
        assert figure().startswith("never")
        assert main(["archive", "verify", *options]) == 0
        eventually(lambda: figure().endswith("ago (checksums)"), timeout_s=WAIT_S)
        assert "archive verified" not in troubles(look())
        archive.store.delete([archive.segments(TOPIC)[0].log_key])
        assert main(["archive", "verify", *options, "--quick"]) == 3
        eventually(
            lambda: troubles(look()).get("archive verified", "").startswith("1 finding"),
            timeout_s=WAIT_S,
        )
