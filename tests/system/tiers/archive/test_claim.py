"""A bucket belongs to one cluster: another one is refused before it could write anything."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import boto3.session
import pytest

from strandline.broker.server.upkeep.archive_upkeep import CLAIM_WAIT_S
from strandline.storage.tiering.audit.orphans import OrphanReason
from tests.conftest import S3Bucket
from tests.support.broker import eventually
from tests.support.fault_proxy import Action, FaultProxy, Rule
from tests.support.forked import run_process
from tests.support.ministack import ServerProcess
from tests.system.tiers.conftest import MakeBroker
from tests.system.tiers.log_client import EARLIEST, LATEST, end_of, make_batches, with_epoch
from tests.system.tiers.tiered_broker import (
    ARCHIVE_ALL,
    FREE_LOCALLY,
    REGION,
    SEGMENT_BYTES,
    TIERED,
    WAIT_S,
    Archive,
    TieredBroker,
)

pytestmark = [pytest.mark.slow, pytest.mark.s3]

START_TIMEOUT_S = 120.0
KAFKA_STORAGE_ERROR = 56
BATCHES = make_batches(size_bytes=3 * SEGMENT_BYTES // 2)


def refused_start(broker: TieredBroker) -> subprocess.CompletedProcess[str]:
    """Starts a broker that is expected to end by itself, as a user would see it."""
    command = [*broker.program, "serve", "--set", f"log.dirs={broker.data}"]
    command += ["--set", "listeners=PLAINTEXT://127.0.0.1:0"]
    for name, value in broker.settings.items():
        command += ["--set", f"{name}={value}"]
    return run(command, broker.folder)


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    folder.mkdir(parents=True, exist_ok=True)
    return run_process(command, folder=folder, timeout_s=START_TIMEOUT_S)


def test_the_archive_of_another_cluster_is_refused_and_not_touched(
    make_broker: MakeBroker, archive: Archive
) -> None:
    owner = make_broker(name="owner")
    owner.start()
    with owner.client("owned") as client:
        client.create_topic({**TIERED, **FREE_LOCALLY})
        client.produce(BATCHES)
        owner.wait_until_archived(client)
    owner.stop()
    cluster_id = cluster_id_of(owner)
    before = archive.contents()

    stranger = make_broker(name="stranger")
    ended = refused_start(stranger)
    assert ended.returncode != 0
    assert ended.stdout == ""
    message = ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr
    assert archive.bucket.url in message
    assert cluster_id in message
    assert cluster_id_of(stranger) in message
    assert archive.contents() == before

    # Beside it, under another prefix of the same bucket, there is room.
    stranger.settings["strandline.remote.url"] = f"s3://{archive.bucket.name}/another"
    stranger.start()
    with stranger.client("owned") as client:
        client.create_topic({**TIERED, **FREE_LOCALLY})
        client.produce(BATCHES)
        stranger.wait_until_archived(client)
        stranger.wait_until_freed(client)
        assert client.read(0, end_of(BATCHES)) == BATCHES
    assert archive.contents() == before


def cluster_id_of(broker: TieredBroker) -> str:
    found = re.search(r"^cluster\.id=(\S+)$", properties_of(broker), re.MULTILINE)
    assert found is not None
    return found[1]


def properties_of(broker: TieredBroker) -> str:
    return (broker.data / "meta.properties").read_text()


def test_a_missing_bucket_is_named_when_a_new_broker_is_started(
    make_broker: MakeBroker, ministack: ServerProcess
) -> None:
    broker = make_broker()
    broker.settings["strandline.remote.url"] = "s3://nobody-made-this-bucket/archive"
    ended = refused_start(broker)
    assert ended.returncode != 0
    assert "Traceback" not in ended.stderr
    message = ended.stderr.splitlines()[-1]
    assert "bucket 'nobody-made-this-bucket' does not exist" in message
    assert "A first start needs the remote tier" in message
    assert ministack.endpoint_url in message


def test_a_broker_whose_bucket_was_lost_says_so_and_goes_on_once_there_is_one(
    make_broker: MakeBroker, ministack: ServerProcess
) -> None:
    broker = make_broker()
    broker.start()
    with broker.client("kept") as client:
        client.create_topic({**TIERED, **FREE_LOCALLY})
        first = client.produce(BATCHES[:1])
    broker.stop()
    lost = f"lost-{broker.settings['strandline.remote.url'].split('/')[2]}"
    broker.settings["strandline.remote.url"] = f"s3://{lost}/archive"
    broker.start()
    batches = first + [with_epoch(batch, 1) for batch in BATCHES[1:]]
    with broker.client("kept") as client:
        client.produce(batches[1:])
        eventually(lambda: broker.warnings(f"bucket '{lost}' does not exist"), timeout_s=WAIT_S)
        assert client.read(0, end_of(batches)) == batches
        create_bucket(ministack.endpoint_url, lost)
        broker.wait_until_archived(client)
        broker.wait_until_freed(client)
        assert client.read(0, end_of(batches)) == batches
    bucket = S3Bucket(name=lost, endpoint_url=ministack.endpoint_url)
    Archive.open(bucket).wait_until_tidy()


def create_bucket(endpoint_url: str, name: str) -> None:
    client = boto3.session.Session().client("s3", endpoint_url=endpoint_url, region_name=REGION)
    client.create_bucket(Bucket=name)
    client.close()


@pytest.mark.heavy
def test_a_store_that_answers_late_is_asked_once_whose_it_is(
    make_broker: MakeBroker, fault_proxy: FaultProxy
) -> None:
    """The start goes on without the answer, and what is cold is read as soon as it comes."""
    broker = make_broker(endpoint_url=fault_proxy.endpoint_url)
    broker.start()
    with broker.client("t") as client:
        client.create_topic({**TIERED, **FREE_LOCALLY})
        client.produce(BATCHES)
        border = broker.wait_until_archived(client)
        broker.wait_until_freed(client)
    broker.stop()
    fault_proxy.clear()
    late = Rule(action=Action.LATENCY, method="PUT", path=r"cluster\.json", times=-1)
    # Between the start's patience and the 10 s of a socket.
    late.delay_s = CLAIM_WAIT_S + 2
    fault_proxy.add(late)
    broker.start()
    assert broker.warnings("remote tier cannot be reached")
    with broker.client("t") as client:
        # Who asks for seconds while the store is away is told so.
        eventually(lambda: client.fetch(0).records, timeout_s=WAIT_S)
        archived = [batch for batch in BATCHES if end_of([batch]) <= border]
        assert client.read(0, border) == archived
    assert late.hit_count == 1


def test_a_store_that_fails_from_the_first_moment_refuses_no_record_but_of_a_lost_disk(
    make_broker: MakeBroker, archive: Archive, fault_proxy: FaultProxy
) -> None:
    """It cannot be written, so nobody knows whose the archive is; what cannot be deleted is no
    reason to wait for it.
    """
    broker = make_broker(endpoint_url=fault_proxy.endpoint_url)
    broker.start()
    first = BATCHES[:2]
    for topic in ("empty", "idle", "lost"):
        with broker.client(topic) as client:
            client.create_topic({**TIERED, **FREE_LOCALLY, **ARCHIVE_ALL})
            if topic != "empty":
                client.produce(first)
                broker.wait_until_all_cold(client)
    broker.stop()
    shutil.rmtree(broker.data / "lost-0")
    undeletable = Rule(action=Action.STATUS, path=r"\?delete", times=-1)
    undeletable.status, undeletable.code = 403, "AccessDenied"
    fault_proxy.add(undeletable)
    unwritable = Rule(action=Action.STATUS, method="PUT", path="metadata/", times=-1)
    fault_proxy.add(unwritable)
    broker.start()
    later = [with_epoch(batch, 1) for batch in BATCHES[2:]]
    with broker.client("idle") as client:
        client.produce(later)
    own = make_batches(size_bytes=SEGMENT_BYTES // 2, leader_epoch=1)
    with broker.client("empty") as client:
        client.produce(own)
    with broker.client("lost") as client:
        with pytest.raises(AssertionError, match="error_code=56"):
            client.produce(later)
        # Who was told that it is empty would take what he has read for lost, and begin anew.
        for border in (EARLIEST, LATEST):
            assert client.list_offset(border).error_code == KAFKA_STORAGE_ERROR
        assert client.fetch(end_of(first)).error_code == KAFKA_STORAGE_ERROR
    # On a loaded machine the broker may serve before it comes to that.
    eventually(lambda: undeletable.hit_count and unwritable.hit_count, timeout_s=WAIT_S)
    fault_proxy.clear()
    with broker.client("lost") as client:
        eventually(lambda: client.list_offset(LATEST).offset == end_of(first), timeout_s=WAIT_S)
        assert client.read(0, end_of(first)) == first
        client.produce(later)
    for topic, sent in (("idle", first + later), ("lost", first + later), ("empty", own)):
        with broker.client(topic) as client:
            broker.wait_until_all_cold(client)
            assert client.read(0, end_of(sent)) == sent
    assert {orphan.reason for orphan in archive.orphans()} == {OrphanReason.PROBE}
