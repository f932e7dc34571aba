"""Every local disk is lost, the bucket is not: `strandline restore`, and what was archived serves.

What was not archived when the machine died is gone; what was is read from the log start on, byte
for byte, and the log goes on behind it under higher epochs, with its groups and its producers.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass

import pytest

from strandline.broker.cli import main
from strandline.storage.crash_points import (
    ENVIRONMENT_VARIABLE,
    EXIT_STATUS_KILLED,
    RESTORE_AFTER_GROUPS,
    RESTORE_AFTER_MARK,
    RESTORE_AFTER_METADATA,
    RESTORE_AFTER_PARTITION,
    RESTORE_BEFORE_UNMARK,
)
from tests.conftest import make_bucket
from tests.support.broker import eventually
from tests.support.fault_proxy import Action, FaultProxy, Rule
from tests.support.ministack import ServerProcess
from tests.support.wire import WireClient
from tests.system.group_calls import commit, committed
from tests.system.tiers.conftest import MakeBroker
from tests.system.tiers.log_client import (
    EARLIEST,
    LATEST,
    LogClient,
    end_of,
    make_batches,
    with_epoch,
)
from tests.system.tiers.restoring import mirrors_topic, run_restore
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

KAFKA_STORAGE_ERROR = 56
TOPIC = "restored"
GROUP = "readers"
BATCHES = make_batches(size_bytes=5 * SEGMENT_BYTES // 2)
SETTINGS = {"strandline.remote.groups.upload.ms": "100", "offsets.topic.num.partitions": "2"}
STEPS = [
    RESTORE_AFTER_MARK,
    RESTORE_AFTER_METADATA,
    RESTORE_AFTER_PARTITION,
    RESTORE_AFTER_GROUPS,
    RESTORE_BEFORE_UNMARK,
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """What is left of a broker whose machine is gone: its bucket. The archive ends at `border`."""

    objects: dict[str, bytes]
    border: int

    def copy_to(self, archive: Archive) -> None:
        for key, content in self.objects.items():
            archive.store.put(key, content)


@pytest.fixture(scope="module")
def lost(ministack: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Lost:
    """Two segments archived, the third not; a group in their middle and one beyond."""
    bucket = make_bucket(ministack.endpoint_url)
    archive = Archive.open(bucket)
    folder = tmp_path_factory.mktemp("lost")
    with TieredBroker(folder, bucket, settings=SETTINGS) as broker:
        with broker.client(TOPIC) as client, WireClient(broker.port) as groups:
            client.create_topic({**TIERED, **FREE_LOCALLY})
            client.produce(BATCHES)
            border = broker.wait_until_archived(client)
            broker.wait_until_freed(client)
            assert commit(groups, GROUP, {(TOPIC, 0): border // 2}) == [0]
            assert commit(groups, "ahead", {(TOPIC, 0): end_of(BATCHES)}) == [0]
            eventually(lambda: has_groups(archive, 2), timeout_s=WAIT_S)
        eventually(lambda: mirrors_topic(archive, TOPIC), timeout_s=WAIT_S)
        broker.kill()
    return Lost(objects=archive.contents(), border=border)


def has_groups(archive: Archive, count: int) -> bool:
    found = archive.below("groups/")
    return sum(archive.store.get(key).count(TOPIC.encode()) for key in found) >= count


def check_serves(broker: TieredBroker, archive: Archive, border: int) -> None:
    """All of the archive is there, and the log goes on behind it, into the archive again."""
    archived = [batch for batch in BATCHES if end_of([batch]) <= border]
    with broker.client(TOPIC) as client, WireClient(broker.port) as groups:
        assert (client.offset_at(EARLIEST), client.offset_at(LATEST)) == (0, border)
        assert client.read(0, border) == archived
        assert committed(groups, GROUP, TOPIC) == border // 2
        # What it had read is lost: it must not skip what is written in its place.
        assert committed(groups, "ahead", TOPIC) == border
        more = [
            with_epoch(batch, 1)
            for batch in make_batches(base_offset=border, size_bytes=2 * SEGMENT_BYTES)
        ]
        client.produce(more)
        broker.wait_until_archived(client)
        broker.wait_until_freed(client)
        assert client.read(0, end_of(more)) == archived + more
    archive.wait_until_tidy()


@pytest.mark.heavy
def test_listings_without_etags_are_enough_to_restore_to_verify_and_to_count(
    make_broker: MakeBroker,
    archive: Archive,
    lost: Lost,
    fault_proxy: FaultProxy,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Some servers leave them out."""
    lost.copy_to(archive)
    without = Rule(action=Action.BLANK, method="GET", path="list-type=2", times=-1)
    without.blank = b"<ETag>.*?</ETag>"
    fault_proxy.add(without)
    broker = make_broker(settings=SETTINGS, endpoint_url=fault_proxy.endpoint_url)
    ended = run_restore(broker)
    assert ended.returncode == 0, ended
    where = ["--remote", archive.bucket.url, "--endpoint-url", fault_proxy.endpoint_url]
    for command in (
        "archive verify",
        "archive orphans",
        "archive usage",
        f"lake plan --topic {TOPIC}",
    ):
        assert main([*command.split(), *where, "--region", REGION]) == 0, capsys.readouterr()
    assert without.hit_count > 4
    broker.start()
    check_serves(broker, archive, lost.border)


def test_a_broker_is_made_again_from_its_bucket_alone(
    make_broker: MakeBroker, archive: Archive, lost: Lost
) -> None:
    lost.copy_to(archive)
    broker = make_broker(settings=SETTINGS)
    before = archive.contents()
    # A start on the empty folders was refused by the archive, and told its operator to restore.
    broker.data.mkdir(parents=True)
    identity = "version=1\nnode.id=1\ncluster.id=made-up-by-that-start\n"
    (broker.data / "meta.properties").write_text(identity)
    ended = run_restore(broker)
    assert ended.returncode == 0, ended.stderr
    assert TOPIC in ended.stdout
    assert archive.contents() == before
    # Not a byte of a segment came with it: that is read when somebody wants it.
    (local,) = broker.segment_files(TOPIC)
    assert (int(local.stem), local.stat().st_size) == (lost.border, 0)
    # A second time there is something that could be lost.
    again = run_restore(broker)
    assert again.returncode != 0
    assert "is not empty" in again.stderr
    broker.start()
    check_serves(broker, archive, lost.border)


def test_a_restored_broker_takes_records_before_it_has_read_all_metadata_back(
    make_broker: MakeBroker, archive: Archive, lost: Lost, fault_proxy: FaultProxy
) -> None:
    """Whose the archive is shows in its newest entry; the others may come when they like."""
    lost.copy_to(archive)
    broker = make_broker(settings=SETTINGS)
    assert run_restore(broker).returncode == 0
    keys = [info.key for info in archive.store.list("metadata/log/")]
    entries = Rule(action=Action.HANG, times=-1, method="GET")
    entries.path = "|".join(re.escape(key) for key in keys[:-1])
    fault_proxy.add(entries)
    broker.settings["strandline.remote.s3.endpoint.url"] = fault_proxy.endpoint_url
    broker.start()
    with broker.client(TOPIC) as client:
        (batch,) = make_batches(base_offset=lost.border, size_bytes=1)
        eventually(lambda: takes(client, batch), timeout_s=WAIT_S)


def takes(client: LogClient, batch: bytes) -> bool:
    with contextlib.suppress(AssertionError):
        return client.produce([batch]) == [batch]
    return False


@pytest.mark.crash
def test_a_restore_that_dies_at_a_step_is_made_again_and_no_broker_starts_in_between(
    make_broker: MakeBroker, archive: Archive, lost: Lost
) -> None:
    lost.copy_to(archive)
    broker = make_broker(settings=SETTINGS)
    before = archive.contents()
    for step in STEPS:
        died = run_restore(broker, environment={ENVIRONMENT_VARIABLE: step})
        assert died.returncode == EXIT_STATUS_KILLED, (step, died.stderr)
    # All but the mark is in place now, and still nobody may write.
    with pytest.raises(AssertionError, match="a restore was interrupted"):
        broker.start()
    assert archive.contents() == before
    assert run_restore(broker).returncode == 0
    broker.start()
    check_serves(broker, archive, lost.border)


def test_a_damaged_manifest_stops_a_restore_before_anything_is_written(
    make_broker: MakeBroker, archive: Archive, lost: Lost
) -> None:
    lost.copy_to(archive)
    broker = make_broker(settings=SETTINGS)
    (key,) = [key for key in archive.below("") if key.endswith("/manifest.json")]
    content = archive.store.get(key)
    archive.store.put(key, content.replace(b'"log_start_offset":0', b'"log_start_offset":1'))
    ended = run_restore(broker)
    assert ended.returncode != 0
    assert key in ended.stderr
    assert not list(broker.data.glob("*")) or not (broker.data / "meta.properties").exists()
    # The rest may be had without it; nobody writes below the damaged archive, or calls it empty.
    assert run_restore(broker, "--skip-damaged").returncode == 1
    broker.start()
    with broker.client(TOPIC) as client:
        assert client.list_offset(LATEST).error_code == KAFKA_STORAGE_ERROR
        assert client.fetch(0).error_code == KAFKA_STORAGE_ERROR
    assert archive.store.get(key) != content


def test_nobody_goes_on_behind_an_older_manifest_and_the_newest_one_brings_everything_back(
    make_broker: MakeBroker, archive: Archive
) -> None:
    first = make_broker(name="first", settings=SETTINGS)
    first.start()
    with first.client(TOPIC) as client:
        topic_id = client.create_topic({**TIERED, **FREE_LOCALLY})
        key = f"topics/{TOPIC}-{topic_id}/0/manifest.json"
        client.produce(BATCHES)
        end = first.wait_until_archived(client)
        older = archive.store.get(key)
        more = make_batches(base_offset=end_of(BATCHES), size_bytes=5 * SEGMENT_BYTES)
        client.produce(more)
        border = first.wait_until_archived(client)
    eventually(lambda: mirrors_topic(archive, TOPIC), timeout_s=WAIT_S)
    first.kill()
    newest = archive.store.get(key)
    # No list of changes tells of it either.
    archive.store.put(key, older)
    archive.store.delete(["changes.json"])
    broker = make_broker(settings=SETTINGS)
    ended = run_restore(broker)
    assert ended.returncode == 1, ended.stdout
    assert f"{key}: ends at {end} and is an older one" in ended.stderr
    assert "Bring back the newest version" in ended.stderr
    assert not list(broker.data.glob("*"))
    ended = run_restore(broker, "--skip-damaged")
    assert ended.returncode == 1, ended.stdout
    assert f"{TOPIC}-0: damaged, not restored" in ended.stderr
    broker.start()
    with broker.client(TOPIC) as client:
        eventually(lambda: broker.warnings("is an older one"), timeout_s=WAIT_S)
        assert client.list_offset(LATEST).error_code == KAFKA_STORAGE_ERROR
        archive.store.put(key, newest)
        eventually(lambda: client.list_offset(LATEST).offset == border, timeout_s=WAIT_S)
        archived = [batch for batch in [*BATCHES, *more] if end_of([batch]) <= border]
        assert client.read(0, border) == archived
    assert archive.findings() == []


def test_a_bucket_without_an_archive_is_refused(make_broker: MakeBroker) -> None:
    ended = run_restore(make_broker())
    assert ended.returncode == 1
    assert "holds no archive" in ended.stderr
    assert "Traceback" not in ended.stderr
