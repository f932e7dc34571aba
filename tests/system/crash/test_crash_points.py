"""The broker dies at each named step of what it does to the archive, and nothing is lost.

Each test looks twice:

    1  a broker that dies at the step        what lies where at that moment is looked at
    2  a broker after it                     everything acknowledged is read from the log start on,
                                             the interrupted work is finished, objects of the dead
                                             attempt are the orphans and nothing else is, and a
                                             scrub that reads every byte has nothing to say

A restore that dies at its steps is in tests/system/tiers/restore/test_restore.py. Most tests
begin with a copy of the same data folder: four segments, three of them closed, that were produced
while the store was away, so that not one of them is archived.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from strandline.storage.crash_points import (
    COPY_AFTER_COMMIT,
    COPY_AFTER_LOG,
    COPY_AFTER_META,
    COPY_AFTER_REWRITE,
    COPY_BEFORE_COMMIT,
    DELETE_AFTER_LOG_START,
    DELETE_AFTER_MARK,
    DELETE_AFTER_OBJECTS,
    DELETE_BEFORE_LOCAL,
    MERGE_AFTER_COMMIT,
    MERGE_AFTER_LOG,
    MERGE_AFTER_META,
    MERGE_BEFORE_COMMIT,
    PURGE_AFTER_SOME,
    PURGE_AFTER_TOMBSTONE,
    PURGE_BEFORE_TOPIC,
    TAIL_AFTER_COMMIT,
    TAIL_AFTER_PART,
)
from strandline.storage.records.batch.batch import read_header
from strandline.storage.records.batch.record import Record, encode_batch, iter_records
from strandline.storage.remote.keys import ObjectKind
from strandline.storage.tiering.audit.orphans import delete_orphans
from tests.conftest import make_bucket
from tests.support.broker import eventually
from tests.support.fault_proxy import FaultProxy
from tests.support.heavy import HEAVY, all_but, heavy
from tests.support.ministack import ServerProcess
from tests.system.crash.dead_brokers import Saved, orphan_keys, wait_for_death
from tests.system.tiers.conftest import MakeBroker
from tests.system.tiers.log_client import EARLIEST, LATEST, end_of, make_batches
from tests.system.tiers.restoring import run_restore
from tests.system.tiers.tiered_broker import (
    FREE_LOCALLY,
    SEGMENT_BYTES,
    TIERED,
    WAIT_S,
    Archive,
    TieredBroker,
)

pytestmark = [pytest.mark.slow, pytest.mark.s3, pytest.mark.crash]

TOPIC = "crashing"
UPLOAD_MS = "strandline.remote.active.segment.upload.ms"
COPY_POINTS = [COPY_AFTER_LOG, COPY_AFTER_META, COPY_BEFORE_COMMIT, COPY_AFTER_COMMIT]
DELETE_POINTS = [DELETE_AFTER_LOG_START, DELETE_AFTER_MARK, DELETE_AFTER_OBJECTS]
TAIL_POINTS = [TAIL_AFTER_PART, TAIL_AFTER_COMMIT]
PURGE_POINTS = [PURGE_AFTER_TOMBSTONE, PURGE_AFTER_SOME, PURGE_BEFORE_TOPIC]
MERGE_POINTS = [MERGE_AFTER_LOG, MERGE_AFTER_META, MERGE_BEFORE_COMMIT, MERGE_AFTER_COMMIT]
CLOSED_SEGMENTS = 3
OFFSET_OUT_OF_RANGE = 1
BATCHES = make_batches(size_bytes=CLOSED_SEGMENTS * SEGMENT_BYTES + SEGMENT_BYTES // 2)
END = end_of(BATCHES)


@pytest.fixture(scope="module")
def unarchived(ministack: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return produce_unarchived(ministack, tmp_path_factory.mktemp("unarchived"), BATCHES)


def produce_unarchived(ministack: ServerProcess, folder: Path, batches: Sequence[bytes]) -> Saved:
    """Everything produced, nothing archived: the store was away."""
    bucket = make_bucket(ministack.endpoint_url)
    with (
        FaultProxy(ministack.port) as proxy,
        TieredBroker(folder, bucket, endpoint_url=proxy.endpoint_url) as broker,
        broker.client(TOPIC) as client,
    ):
        client.create_topic({**TIERED, **FREE_LOCALLY})
        proxy.go_away()
        client.produce(batches)
        broker.stop()
    return Saved(data=broker.data, bucket=bucket)


@pytest.fixture(scope="module")
def archived(
    ministack: ServerProcess, tmp_path_factory: pytest.TempPathFactory, unarchived: Saved
) -> Saved:
    """All closed segments archived, and their local copies gone."""
    bucket = make_bucket(ministack.endpoint_url)
    broker = TieredBroker(tmp_path_factory.mktemp("archived"), bucket)
    unarchived.copy_data(broker)
    with broker:
        settle(broker)
        broker.stop()
    return Saved(data=broker.data, bucket=bucket)


def settle(broker: TieredBroker) -> None:
    """Waits until both tiers are as they would be without any crash, and compares every batch."""
    with broker.client(TOPIC) as client:
        assert client.read(0, END) == BATCHES
        assert broker.wait_until_archived(client) == broker.wait_until_freed(client)
        assert client.read(0, END) == BATCHES
        assert client.offset_at(EARLIEST) == 0
        assert client.offset_at(LATEST) == END


def uploaded_keys(archive: Archive) -> set[str]:
    return {*archive.uploads(ObjectKind.LOG), *archive.uploads(ObjectKind.META)}


def live_keys(archive: Archive) -> set[str]:
    return {key for entry in archive.segments(TOPIC) for key in (entry.log_key, entry.meta_key)}


COPIES = "remote.log.manager.copier.thread.pool.size"


@pytest.mark.parametrize("point", all_but([COPY_AFTER_COMMIT], COPY_POINTS))
def test_a_copy_that_dies_at_a_step_is_made_again_and_leaves_only_orphans(
    make_broker: MakeBroker, archive: Archive, unarchived: Saved, point: str
) -> None:
    broker = make_broker()
    # One copy at a time: what is left behind is what the steps say, no more.
    broker.settings[COPIES] = "1"
    unarchived.copy_data(broker)
    broker.start_to_crash_at(point)
    wait_for_death(broker)

    left_behind = uploaded_keys(archive)
    is_committed = point == COPY_AFTER_COMMIT
    assert len(left_behind) == (1 if point == COPY_AFTER_LOG else 2)
    assert len(archive.segments(TOPIC)) == (1 if is_committed else 0)
    orphans = set() if is_committed else left_behind
    assert orphan_keys(archive) == orphans
    # What is being archived is still on disk.
    assert len(broker.segment_files(TOPIC)) == CLOSED_SEGMENTS + 1

    broker.start()
    settle(broker)
    archive.check_uploads(TOPIC)
    assert orphan_keys(archive) == orphans
    assert len(archive.segments(TOPIC)) == CLOSED_SEGMENTS
    # Nobody needs the orphans: without them everything is still there.
    delete_orphans(archive.store, archive.orphans())
    settle(broker)
    archive.wait_until_tidy()
    assert archive.findings() == []


@pytest.mark.parametrize("point", [heavy(COPY_AFTER_LOG), COPY_BEFORE_COMMIT])
@pytest.mark.heavy
def test_two_copies_that_die_together_are_made_again_and_leave_only_orphans(
    make_broker: MakeBroker, archive: Archive, unarchived: Saved, point: str
) -> None:
    broker = make_broker()
    unarchived.copy_data(broker)
    broker.start_to_crash_at(point)
    wait_for_death(broker)
    left_behind = uploaded_keys(archive)
    assert left_behind
    assert archive.segments(TOPIC) == ()
    assert left_behind <= orphan_keys(archive)
    broker.start()
    settle(broker)
    archive.check_uploads(TOPIC)
    # What one of them had sent may have come in after that look.
    assert left_behind <= orphan_keys(archive)
    assert len(orphan_keys(archive)) <= 4
    assert len(archive.segments(TOPIC)) == CLOSED_SEGMENTS


def repetitive_batches() -> list[bytes]:
    """Three segments and a half of records that zstd makes much smaller."""
    return [
        encode_batch(
            [
                Record(offset=offset, timestamp_ms=offset, key=b"k", value=b"%07d" % offset * 1000)
                for offset in range(start, start + 25)
            ]
        )
        for start in range(0, 525, 25)
    ]


@pytest.mark.parametrize("point", [COPY_AFTER_REWRITE, heavy(COPY_BEFORE_COMMIT)])
@pytest.mark.heavy
def test_a_copy_that_dies_after_its_batches_were_rewritten_loses_no_record(
    make_broker: MakeBroker,
    archive: Archive,
    ministack: ServerProcess,
    tmp_path: Path,
    point: str,
) -> None:
    batches = repetitive_batches()
    end = end_of(batches)
    broker = make_broker()
    broker.settings["strandline.remote.compression.type"] = "zstd"
    produce_unarchived(ministack, tmp_path / "first", batches).copy_data(broker)
    names = {path.suffix for path in broker.segment_files(TOPIC)[0].parent.iterdir()}
    broker.start_to_crash_at(point)
    wait_for_death(broker)
    left = {path.suffix for path in broker.segment_files(TOPIC)[0].parent.iterdir()}
    assert left <= names
    assert archive.segments(TOPIC) == ()
    left_behind = uploaded_keys(archive)
    broker.start()
    with broker.client(TOPIC) as client:
        assert broker.wait_until_archived(client) == broker.wait_until_freed(client)
        assert records_of(client.read(0, end)) == records_of(batches)
    # What another copy had sent may have come in after that look.
    assert left_behind <= orphan_keys(archive)
    archive.check_uploads(TOPIC)
    assert all(entry.recompressed_from_bytes for entry in archive.segments(TOPIC))


def records_of(batches: Sequence[bytes]) -> list[Record]:
    return [record for batch in batches for record in iter_records(batch, read_header(batch))]


@HEAVY
def test_a_broker_that_dies_again_and_again_archives_everything_once_and_loses_no_local_copy(
    make_broker: MakeBroker, archive: Archive, unarchived: Saved
) -> None:
    broker = make_broker()
    broker.settings[COPIES] = "1"
    unarchived.copy_data(broker)
    # The first commit makes the manifest; the other steps then happen to an archive that exists.
    deaths = {COPY_AFTER_COMMIT: 2, COPY_AFTER_LOG: 3, COPY_BEFORE_COMMIT: 5}
    # Nothing is freed before it is looked at, however slow the machine is.
    delay_ms = broker.settings["log.initial.task.delay.ms"]
    broker.settings["log.initial.task.delay.ms"] = "3600000"
    for point, uploaded_count in deaths.items():
        broker.start_to_crash_at(point)
        wait_for_death(broker)
        archive.check_uploads(TOPIC)
        assert len(uploaded_keys(archive)) == uploaded_count
        assert len(archive.segments(TOPIC)) == 1
    broker.settings["log.initial.task.delay.ms"] = delay_ms
    broker.start_to_crash_at(DELETE_BEFORE_LOCAL)
    wait_for_death(broker)
    # It was about to free what is archived, and had not done so.
    assert len(broker.segment_files(TOPIC)) == CLOSED_SEGMENTS + 1
    broker.start()
    settle(broker)
    archive.check_uploads(TOPIC)
    assert len(archive.segments(TOPIC)) == CLOSED_SEGMENTS
    assert archive.findings() == []


@pytest.mark.parametrize("point", all_but([DELETE_AFTER_MARK], DELETE_POINTS))
def test_a_deletion_that_dies_at_a_step_is_finished_and_the_log_start_never_goes_back(
    make_broker: MakeBroker, archive: Archive, archived: Saved, point: str
) -> None:
    broker = make_broker()
    archived.copy_data(broker)
    archived.copy_objects(archive)
    before = archive.segments(TOPIC)
    # Two whole segments, and a part of the third.
    new_start = before[2].base_offset + 5
    gone = {key for entry in before[:2] for key in (entry.log_key, entry.meta_key)}

    broker.start_to_crash_at(point)
    # The broker may die before it has answered: the log start is in the bucket by then.
    with broker.client(TOPIC) as client, contextlib.suppress(ConnectionError):
        assert client.delete_records(new_start) == new_start
    wait_for_death(broker)

    manifest = archive.manifest(TOPIC)
    assert manifest is not None
    # Whatever else was done, the log start was moved first.
    assert manifest.log_start_offset == new_start
    marked = {key for mark in manifest.deleting for key in mark.keys}
    assert marked == (set() if point == DELETE_AFTER_LOG_START else gone)
    assert manifest.segments == (before if point == DELETE_AFTER_LOG_START else before[2:])
    assert gone.isdisjoint(archive.keys()) == (point == DELETE_AFTER_OBJECTS)
    archive.wait_until_tidy()

    broker.start()
    with broker.client(TOPIC) as client:
        assert client.offset_at(EARLIEST) == new_start
        kept = [batch for batch in BATCHES if read_header(batch).next_offset > new_start]
        assert client.read(new_start, END) == kept
        assert client.fetch(new_start - 1).error_code == OFFSET_OUT_OF_RANGE
    eventually(lambda: is_clean(archive), timeout_s=WAIT_S)
    assert gone.isdisjoint(archive.keys())
    assert archive.segments(TOPIC) == before[2:]
    archive.wait_until_tidy()
    assert archive.findings() == []


@pytest.mark.parametrize("point", all_but([MERGE_BEFORE_COMMIT], MERGE_POINTS))
def test_a_merge_that_dies_at_a_step_is_made_again_and_leaves_only_orphans(
    make_broker: MakeBroker, archive: Archive, unarchived: Saved, point: str
) -> None:
    # Two segments are less than half of it, all three are more.
    target_bytes = 4 * SEGMENT_BYTES
    broker = make_broker(settings={"strandline.remote.merge.target.bytes": str(target_bytes)})
    unarchived.copy_data(broker)
    broker.start_to_crash_at(point)
    wait_for_death(broker)
    is_committed = point == MERGE_AFTER_COMMIT
    assert len(archive.segments(TOPIC)) == (1 if is_committed else CLOSED_SEGMENTS)
    dead = broker.scratch_files()
    assert len(dead) == (point in (MERGE_AFTER_LOG, MERGE_AFTER_META))

    broker.start()
    settle(broker)
    eventually(lambda: len(archive.segments(TOPIC)) == 1 and is_clean(archive), timeout_s=WAIT_S)
    settle(broker)
    assert broker.scratch_files() == []
    spare = uploaded_keys(archive) - live_keys(archive)
    assert orphan_keys(archive) == spare
    assert len(spare) == {MERGE_AFTER_LOG: 1, MERGE_AFTER_COMMIT: 0}.get(point, 2)
    assert archive.findings() == []


@pytest.mark.parametrize("point", all_but([TAIL_AFTER_PART], TAIL_POINTS))
def test_an_upload_of_the_open_segment_that_dies_at_a_step_is_made_again(
    make_broker: MakeBroker, archive: Archive, point: str
) -> None:
    open_batches = BATCHES[: len(BATCHES) // 8]
    end = end_of(open_batches)
    broker = make_broker()
    broker.start_to_crash_at(point)
    with broker.client(TOPIC) as client:
        client.create_topic(TIERED)
        client.produce(open_batches)
    # Asked for when all of it is there; the broker may die before it has answered.
    with contextlib.suppress(ConnectionError):
        assert broker.alter_topic(TOPIC, {UPLOAD_MS: "200"}) == 0
    wait_for_death(broker)
    is_committed = point == TAIL_AFTER_COMMIT
    assert archive.tail_end_offset(TOPIC) == (end if is_committed else 0)
    dead = set(archive.uploads(ObjectKind.TAIL))
    assert len(dead) == 1
    assert orphan_keys(archive) == (set() if is_committed else dead)

    broker.start()
    eventually(lambda: archive.tail_end_offset(TOPIC) == end, timeout_s=WAIT_S)
    with broker.client(TOPIC) as client:
        assert client.read(0, end) == open_batches
    assert orphan_keys(archive) == (set() if is_committed else dead)
    delete_orphans(archive.store, archive.orphans())
    assert archive.findings() == []
    # The machine is lost as well, and nothing that was acknowledged.
    broker.kill()
    shutil.rmtree(broker.data)
    assert run_restore(broker).returncode == 0
    broker.start()
    with broker.client(TOPIC) as client:
        assert client.read(0, end) == open_batches


@pytest.mark.parametrize("point", all_but([PURGE_AFTER_SOME], PURGE_POINTS))
def test_a_deletion_of_a_topic_that_dies_at_a_step_is_finished_by_the_next_start(
    make_broker: MakeBroker, archive: Archive, archived: Saved, point: str
) -> None:
    broker = make_broker()
    archived.copy_data(broker)
    archived.copy_objects(archive)
    topic_id = archive.topic_id(TOPIC)
    assert topic_id is not None
    before = archive.keys(TOPIC, topic_id)
    broker.start_to_crash_at(point)
    with broker.client(TOPIC) as client, contextlib.suppress(ConnectionError):
        client.delete_topic()
    wait_for_death(broker)

    left = archive.keys(TOPIC, topic_id)
    # Nothing goes before its topic is known to be deleted, and what says so goes last.
    assert archive.topic_id(TOPIC) is None
    assert len(left) == (len(before) if point == PURGE_AFTER_TOMBSTONE else 1)
    archive.wait_until_tidy()

    broker.start()
    eventually(lambda: archive.keys(TOPIC, topic_id) == [], timeout_s=WAIT_S)
    with broker.client(TOPIC) as client:
        # The name is free, and nothing of the dead topic is in the new one.
        assert client.create_topic({**TIERED, **FREE_LOCALLY}) != topic_id
        client.produce(BATCHES)
        settle(broker)
    archive.wait_until_tidy()
    assert archive.findings() == []


def is_clean(archive: Archive) -> bool:
    """Whether no deletion is under way."""
    manifest = archive.manifest(TOPIC)
    return manifest is not None and not manifest.deleting
