"""A read-only replica serves another broker's archive, follows it, and never writes to it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from strandline.broker.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterQuotaEntry,
    EntityData,
    QuotaOperation,
)
from strandline.broker.protocol.messages.incremental_alter_configs import ConfigOperation
from strandline.broker.tools.client.health import Page, check_broker
from strandline.storage.remote.keys import MANIFEST_FILE
from tests.support.broker import eventually
from tests.support.fault_proxy import FaultProxy
from tests.support.metrics import METRICS_ON, get, metric
from tests.support.wire import WireClient
from tests.system.config_calls import alter
from tests.system.group_calls import commit, committed
from tests.system.tiers.conftest import MakeBroker
from tests.system.tiers.log_client import EARLIEST, LATEST, end_of, make_batches, timestamp_of
from tests.system.tiers.replicas import start_replica
from tests.system.tiers.restoring import mirrors_topic
from tests.system.tiers.tiered_broker import (
    FREE_LOCALLY,
    SEGMENT_BYTES,
    TIERED,
    WAIT_S,
    Archive,
    TieredBroker,
)

pytestmark = [pytest.mark.slow, pytest.mark.s3]

TOPIC = "followed"
POLICY_VIOLATION = 44
KAFKA_STORAGE_ERROR = 56
LAG = "strandline_replica_lag_seconds"
UPLOAD_MS = "strandline.remote.active.segment.upload.ms"
FIRST = make_batches(size_bytes=5 * SEGMENT_BYTES // 2)
# So many batches of it are produced before somebody looks.
PIECE = 16
MORE = make_batches(base_offset=end_of(FIRST), size_bytes=2 * SEGMENT_BYTES)


def test_a_replica_follows_the_archive_as_it_grows_and_writes_nothing_to_it(
    make_broker: MakeBroker, fault_proxy: FaultProxy, archive: Archive
) -> None:
    origin = make_broker(name="origin")
    origin.start()
    with origin.client(TOPIC) as client:
        client.create_topic({**TIERED, **FREE_LOCALLY})
        client.produce(FIRST)
        border = origin.wait_until_archived(client)
        replica = start_replica(make_broker, METRICS_ON, endpoint_url=fault_proxy.endpoint_url)
        with replica.client(TOPIC) as reader:
            # The origin's metadata comes into the bucket by itself, and may come later.
            eventually(lambda: reader.list_offset(EARLIEST).error_code == 0, timeout_s=WAIT_S)
            assert (reader.offset_at(EARLIEST), reader.offset_at(LATEST)) == (0, border)
            archived = [batch for batch in FIRST if end_of([batch]) <= border]
            assert reader.read(0, border) == archived
            # It grows, and a part of it is let go.
            client.produce(MORE)
            new_border = origin.wait_until_archived(client)
            assert new_border > border
            eventually(lambda: reader.offset_at(LATEST) == new_border, timeout_s=WAIT_S)
            everything = [batch for batch in FIRST + MORE if end_of([batch]) <= new_border]
            assert reader.read(0, new_border) == everything
            client.delete_records(border + 5)
            eventually(lambda: reader.offset_at(EARLIEST) == border + 5, timeout_s=WAIT_S)
            # It says its role, and that it is up to date.
            eventually(lambda: metric(replica, LAG) < WAIT_S, timeout_s=WAIT_S)
            figures = {one.what: one for one in check_broker(Page(get(replica, "/metrics")), "")}
            assert not figures["read-only replica"].trouble
            assert not {"owns the archive", "metadata in the bucket"} & figures.keys()
            # Its groups are its own.
            with WireClient(replica.port) as groups:
                eventually(lambda: commit(groups, "g", {(TOPIC, 0): 9}) == [0], timeout_s=WAIT_S)
            # A restart begins where it was, asking for little, without what is gone since.
            with origin.client("gone") as gone:
                gone.create_topic(TIERED)
                eventually((replica.data / "gone-0").exists, timeout_s=WAIT_S)
                replica.stop()
                mirrored = len(archive.below("metadata/"))
                gone.delete_topic()
            eventually(lambda: len(archive.below("metadata/")) > mirrored, timeout_s=WAIT_S)
            replica.start()
            eventually(lambda: not [*replica.data.glob("gone-0*")], timeout_s=WAIT_S)
        with replica.client(TOPIC) as reader:
            assert reader.offset_at(LATEST) == new_border
            with WireClient(replica.port) as groups:
                eventually(lambda: committed(groups, "g", TOPIC) == 9, timeout_s=WAIT_S)
        # A topic that is gone there is gone here.
        client.delete_topic()
        with replica.client(TOPIC) as reader:
            eventually(lambda: reader.list_offset(LATEST).error_code != 0, timeout_s=WAIT_S)
    assert fault_proxy.count("PUT", ".*") == fault_proxy.count("POST", ".*") == 0
    assert fault_proxy.count("DELETE", ".*") == 0


def test_a_replica_whose_folder_is_another_one_by_now_writes_nothing_there(
    make_broker: MakeBroker,
) -> None:
    """Another volume, as it may be there after a remount: it may be another broker's."""
    _, replica = replica_of_a_full_archive(make_broker)
    # What it took out of its logs when it began to follow is unlinked a little later.
    eventually(lambda: not [*(replica.data / f"{TOPIC}-0").glob("*.deleted")], timeout_s=WAIT_S)
    mounted = replica.data.rename(replica.folder / "mounted")
    shutil.copytree(mounted, replica.data)
    before = files_in(replica.data)
    with WireClient(replica.port) as groups:
        # The first group there is makes the topic for their offsets.
        for _ in range(3):
            assert commit(groups, "g", {(TOPIC, 0): 9}) != [0]
    assert files_in(replica.data) == before
    # At once: a look in between finds no folder at all.
    replica.data.rename(replica.folder / "another")
    mounted.rename(replica.data)
    with WireClient(replica.port) as groups:
        eventually(lambda: commit(groups, "g", {(TOPIC, 0): 9}) == [0], timeout_s=WAIT_S)


def test_a_replica_takes_its_folder_into_service_again(make_broker: MakeBroker) -> None:
    origin, replica = replica_of_a_full_archive(make_broker)
    away = replica.data.rename(replica.folder / "away")
    eventually(lambda: "log folder offline" in replica.log_text(), timeout_s=WAIT_S)
    away.rename(replica.data)
    eventually(lambda: "log folder online again" in replica.log_text(), timeout_s=WAIT_S)
    with origin.client(TOPIC) as client, replica.client(TOPIC) as reader:
        client.produce(MORE)
        border = origin.wait_until_archived(client)
        eventually(lambda: reader.offset_at(LATEST) == border, timeout_s=WAIT_S)
        everything = [batch for batch in FIRST + MORE if end_of([batch]) <= border]
        assert reader.read(0, border) == everything
    with WireClient(replica.port) as groups:
        eventually(lambda: commit(groups, "g", {(TOPIC, 0): 9}) == [0], timeout_s=WAIT_S)


def test_a_replica_does_not_call_a_partition_empty_whose_manifest_it_cannot_read(
    make_broker: MakeBroker, archive: Archive
) -> None:
    """Who was told so would take what he has read for lost, or have read all of nothing."""
    origin = make_broker(name="origin")
    origin.start()
    with origin.client(TOPIC) as client:
        client.create_topic({**TIERED, **FREE_LOCALLY})
        client.produce(FIRST)
        border = origin.wait_until_archived(client)
        eventually(lambda: mirrors_topic(archive, TOPIC), timeout_s=WAIT_S)
    origin.stop()
    (key,) = (key for key in archive.below("topics/") if key.endswith(MANIFEST_FILE))
    whole = archive.store.get(key)
    archive.store.put(key, whole[: len(whole) // 2])
    replica = start_replica(make_broker)
    with replica.client(TOPIC) as reader:
        for special in (EARLIEST, LATEST, timestamp_of(0)):
            assert reader.list_offset(special).error_code == KAFKA_STORAGE_ERROR
        for offset in (0, border):
            assert reader.fetch(offset).error_code == KAFKA_STORAGE_ERROR
        archive.store.put(key, whole)
        eventually(lambda: reader.list_offset(LATEST).offset == border, timeout_s=WAIT_S)
        assert reader.read(0, border) == [one for one in FIRST if end_of([one]) <= border]


def replica_of_a_full_archive(make_broker: MakeBroker) -> tuple[TieredBroker, TieredBroker]:
    """A broker that has archived all of FIRST, and a replica of it; both run."""
    origin = make_broker(name="origin")
    origin.start()
    with origin.client(TOPIC) as client:
        client.create_topic({**TIERED, **FREE_LOCALLY})
        client.produce(FIRST)
        origin.wait_until_archived(client)
    wait_until_mirrored(origin)
    replica = start_replica(make_broker)
    return origin, replica


def wait_until_mirrored(origin: TieredBroker) -> None:
    """The metadata comes into the bucket at its own pace, and may come after the records."""
    archive = Archive.open(origin.bucket)
    eventually(lambda: mirrors_topic(archive, TOPIC), timeout_s=WAIT_S)


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_what_would_change_the_archive_is_refused_with_a_code_that_nobody_repeats(
    make_broker: MakeBroker,
) -> None:
    origin, replica = replica_of_a_full_archive(make_broker)
    with replica.client(TOPIC) as reader, replica.client("other") as other:
        for refused in (
            lambda: reader.produce(FIRST[:1]),
            lambda: reader.delete_records(1),
            reader.delete_topic,
            lambda: other.create_topic(TIERED),
        ):
            with pytest.raises(AssertionError, match=str(POLICY_VIOLATION)):
                refused()
    with WireClient(replica.port) as admin:
        wanted = ("log.retention.ms", ConfigOperation.SET, "1")
        assert alter(admin, "", wanted).error_code == POLICY_VIOLATION
        entry = AlterQuotaEntry(
            entity=[EntityData(entity_type="user", entity_name="ann")],
            ops=[QuotaOperation(key="producer_byte_rate", value=1000.0)],
        )
        asked = AlterClientQuotasRequest(entries=[entry])
        answer = admin.ask(asked, AlterClientQuotasResponse, 1)
        assert [one.error_code for one in answer.entries] == [POLICY_VIOLATION]
    replica.stop()
    # Neither is mistaken for the other.
    replica.command = ("serve",)
    with pytest.raises(AssertionError, match="read-only replica"):
        replica.start()
    origin.stop()
    origin.command = ("serve", "--read-only")
    with pytest.raises(AssertionError, match="folders of its own"):
        origin.start()


def test_a_replica_serves_what_is_in_the_bucket_of_the_open_segment_and_keeps_no_copy_of_the_rest(
    make_broker: MakeBroker,
) -> None:
    origin = make_broker(name="origin")
    origin.start()
    end = end_of(FIRST)
    with origin.client(TOPIC) as client:
        client.create_topic({**TIERED, **FREE_LOCALLY, UPLOAD_MS: "200"})
        client.produce(FIRST)
        border = origin.wait_until_archived(client)
        assert border < end
        replica = start_replica(make_broker)
        with replica.client(TOPIC) as reader:
            # An error first: it may not have the partition yet.
            eventually(lambda: reader.list_offset(LATEST).offset == end, timeout_s=WAIT_S)
            assert reader.read(0, end) == FIRST
            assert reader.offset_at(timestamp_of(end - 1)) == end - 1
            # Piece by piece, so that all of each segment was open once, and followed.
            for start in range(0, len(MORE), PIECE):
                client.produce(MORE[start : start + PIECE])
                grown = end_of(MORE[start : start + PIECE])
                eventually(lambda: reader.offset_at(LATEST) == grown, timeout_s=WAIT_S)  # noqa: B023
            archived = origin.wait_until_archived(client)
            eventually(
                lambda: int(replica.segment_files(TOPIC)[0].stem) == archived, timeout_s=WAIT_S
            )
            assert reader.read(0, end_of(MORE)) == FIRST + MORE
            # Nobody who was served is told that there is no such offset after a restart.
            replica.kill()
            replica.start()
        with replica.client(TOPIC) as reader:
            eventually(lambda: reader.offset_at(LATEST) == end_of(MORE), timeout_s=WAIT_S)
            assert reader.read(0, end_of(MORE)) == FIRST + MORE


@pytest.mark.heavy
def test_a_replica_finds_what_was_merged_since_it_last_looked(make_broker: MakeBroker) -> None:
    origin = make_broker(name="origin")
    origin.start()
    with origin.client(TOPIC) as client:
        client.create_topic({**TIERED, **FREE_LOCALLY})
        client.produce(FIRST)
        border = origin.wait_until_archived(client)
    wait_until_mirrored(origin)
    # It looks once an hour by itself.
    replica = start_replica(make_broker, {"strandline.remote.replica.poll.ms": "3600000"})
    archive = Archive.open(origin.bucket)
    old = archive.uploads(topic=TOPIC)
    assert len(old) > 1
    origin.stop()
    origin.settings["strandline.remote.merge.target.bytes"] = str(3 * SEGMENT_BYTES)
    origin.start()
    eventually(lambda: archive.uploads(topic=TOPIC) != old, timeout_s=WAIT_S)
    eventually(lambda: set(archive.uploads(topic=TOPIC)).isdisjoint(old), timeout_s=WAIT_S)
    with replica.client(TOPIC) as reader:
        assert reader.offset_at(timestamp_of(5)) == 5
        assert reader.read(0, border) == [batch for batch in FIRST if end_of([batch]) <= border]
