"""The broker dies at each step of compacting an archive in its bucket, and no key is lost.

    archive    [a0][a1][a2][a3]     the same keys in each segment, and some that only it has
    a round    [a0'][a1'][a2'][a3]  a run after the other loses what a later segment has anew

The folder and the bucket that every test begins with were made with rounds turned off: segment by
segment, each archived and freed before the next was written, so that no cleaner on a disk could
take away what the round in the bucket is there for. Then rounds are turned on, in a broker that
dies at the step; another one heals. Each test looks at what lies in the bucket in between.
"""

from __future__ import annotations

import random
import shutil

import pytest

from strandline.storage.crash_points import (
    COMPACT_AFTER_COMMIT,
    COMPACT_AFTER_LOG,
    COMPACT_AFTER_MARK,
    COMPACT_AFTER_META,
    COMPACT_BEFORE_COMMIT,
)
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.records.batch.record import Record, encode_batch, iter_records
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.tiering.audit.orphans import delete_orphans
from tests.conftest import make_bucket
from tests.support.broker import eventually
from tests.support.heavy import HEAVY, all_but
from tests.support.ministack import ServerProcess
from tests.system.crash.dead_brokers import Saved, orphan_keys, wait_for_death
from tests.system.tiers.conftest import MakeBroker
from tests.system.tiers.log_client import EARLIEST, LATEST, LogClient
from tests.system.tiers.restoring import run_restore
from tests.system.tiers.tiered_broker import (
    FREE_LOCALLY,
    TIERED,
    WAIT_S,
    Archive,
    TieredBroker,
)

pytestmark = [pytest.mark.slow, pytest.mark.s3, pytest.mark.crash]

TOPIC = "crashing"
SEGMENTS = 4
# Every segment has all of these, and as many of its own.
SHARED_KEYS = 40
# Deleted again by the segment after the one that wrote them.
SHORT_LIVED_KEYS = 10
VALUE_BYTES = 10_000
RATIO = "log.cleaner.min.cleanable.ratio"
COMPACTED = {
    **TIERED,
    **FREE_LOCALLY,
    "cleanup.policy": "compact",
    "delete.retention.ms": "0",
}
BROKER = {"log.cleaner.backoff.ms": "100"}
ROUNDS_OFF = {**BROKER, RATIO: "1"}
ROUNDS_ON = {**BROKER, RATIO: "0.3"}
# What a dead attempt leaves that nothing refers to.
ORPHANS = {
    COMPACT_AFTER_LOG: 1,
    COMPACT_AFTER_META: 2,
    COMPACT_BEFORE_COMMIT: 2,
    COMPACT_AFTER_COMMIT: 0,
    COMPACT_AFTER_MARK: 0,
}

Table = dict[bytes, bytes]


def rows_of(number: int) -> list[tuple[bytes, bytes | None]]:
    """What segment `number` is made of; a little more than one segment holds."""
    chance = random.Random(number)
    names = [b"shared-%d" % key for key in range(SHARED_KEYS)]
    names += [b"only-%d-%d" % (number, key) for key in range(SHARED_KEYS)]
    names += [b"short-%d-%d" % (number, key) for key in range(SHORT_LIVED_KEYS)]
    chance.shuffle(names)
    dead = [b"short-%d-%d" % (number - 1, key) for key in range(SHORT_LIVED_KEYS)]
    filler = [b"filler-%d" % key for key in range(20)]
    return [
        *((name, None) for name in dead if number),
        *((name, chance.randbytes(VALUE_BYTES)) for name in [*names, *filler]),
    ]


def batches_of(rows: list[tuple[bytes, bytes | None]], base_offset: int) -> list[bytes]:
    """A record a batch, or a segment would never be full to the byte."""
    return [
        encode_batch([Record(offset=offset, timestamp_ms=offset, key=key, value=value)])
        for offset, (key, value) in enumerate(rows, base_offset)
    ]


def table_below(end_offset: int | None) -> Table:
    """The last values of the records below it."""
    rows = [row for number in range(SEGMENTS) for row in rows_of(number)]
    table: Table = {}
    for key, value in rows[:end_offset]:
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value
    return table


TABLE = table_below(None)


def table_of(client: LogClient) -> Table:
    """What a reader from the beginning ends with."""
    table: Table = {}
    start, end = client.offset_at(EARLIEST), client.offset_at(LATEST)
    last_offset = -1
    while start < end:
        content = client.fetch_records(start)
        for batch in walk(content):
            start = batch.header.next_offset
            for record in iter_records(content, batch.header, batch.position):
                assert record.offset > last_offset
                last_offset = record.offset
                assert record.key is not None
                if record.value is None:
                    table.pop(bytes(record.key), None)
                else:
                    table[bytes(record.key)] = bytes(record.value)
    return table


@pytest.fixture(scope="module")
def dusty(ministack: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """An archive of which a good part is superfluous, and on the disk an open segment."""
    bucket = make_bucket(ministack.endpoint_url)
    archive = Archive.open(bucket)
    with (
        TieredBroker(tmp_path_factory.mktemp("dusty"), bucket, settings=ROUNDS_OFF) as broker,
        broker.client(TOPIC) as client,
    ):
        client.create_topic(COMPACTED)
        end_offset = 0
        for number in range(SEGMENTS):
            batches = batches_of(rows_of(number), end_offset)
            client.produce(batches)
            end_offset += len(batches)
            eventually(lambda n=number: len(archive.segments(TOPIC)) > n, timeout_s=WAIT_S)
            broker.wait_until_archived(client)
            broker.wait_until_freed(client)
        assert table_of(client) == TABLE
        broker.stop()
    return Saved(data=broker.data, bucket=bucket)


def manifest_of(archive: Archive) -> Manifest:
    manifest = archive.manifest(TOPIC)
    assert manifest is not None
    return manifest


def record_count(archive: Archive) -> int:
    return sum(entry.record_count for entry in archive.segments(TOPIC))


def start_over(make_broker: MakeBroker, archive: Archive, dusty: Saved) -> TieredBroker:
    """A broker on a copy of the dusty archive that would compact it; not started."""
    broker = make_broker(settings=ROUNDS_ON)
    dusty.copy_data(broker)
    dusty.copy_objects(archive)
    return broker


def is_compacted(archive: Archive) -> bool:
    """Whether a round came to its end, and what it replaced is gone."""
    manifest = manifest_of(archive)
    return manifest.compaction is not None and not manifest.deleting


def check_healed(broker: TieredBroker, archive: Archive) -> None:
    """A round is made to its end, and every key has its last value, from both tiers."""
    broker.start()
    with broker.client(TOPIC) as client:
        assert table_of(client) == TABLE
        eventually(lambda: is_compacted(archive), timeout_s=WAIT_S)
        assert table_of(client) == TABLE
    assert broker.scratch_files() == []
    mark = manifest_of(archive).compaction
    assert mark is not None
    assert mark.cleaned_offset == archive.end_offset(TOPIC)
    assert archive.findings() == []


def check_restored(broker: TieredBroker, archive: Archive) -> None:
    """With the orphans and the disk gone as well, what is in the bucket is still the table."""
    delete_orphans(archive.store, archive.orphans())
    broker.kill()
    archived_below = archive.end_offset(TOPIC)
    with broker_again(broker) as again, again.client(TOPIC) as client:
        assert client.offset_at(LATEST) == archived_below
        assert table_of(client) == table_below(archived_below)
    assert archive.orphans() == ()


def broker_again(broker: TieredBroker) -> TieredBroker:
    shutil.rmtree(broker.data)
    assert run_restore(broker).returncode == 0
    return broker


@pytest.mark.parametrize("point", all_but([COMPACT_AFTER_META], ORPHANS))
def test_a_compaction_in_the_bucket_that_dies_at_a_step_is_made_again_and_loses_no_key(
    make_broker: MakeBroker, archive: Archive, dusty: Saved, point: str
) -> None:
    broker = start_over(make_broker, archive, dusty)
    before = archive.segments(TOPIC)
    assert len(before) == SEGMENTS
    broker.start_to_crash_at(point)
    wait_for_death(broker)
    # What it was just putting lies on the disk.
    assert bool(broker.scratch_files()) == (point in (COMPACT_AFTER_LOG, COMPACT_AFTER_META))

    manifest = manifest_of(archive)
    is_committed = point in (COMPACT_AFTER_COMMIT, COMPACT_AFTER_MARK)
    assert (manifest.segments != before) == is_committed
    assert (manifest.compaction is not None) == (point == COMPACT_AFTER_MARK)
    if point == COMPACT_AFTER_COMMIT:
        # The first run and no other; what it replaced is still there for those who read it.
        assert manifest.segments[1:] == before[1:]
        assert [mark.log_key for mark in manifest.deleting] == [before[0].log_key]
        assert before[0].log_key in set(archive.keys())
    dead = orphan_keys(archive)
    assert len(dead) == ORPHANS[point]
    assert dead.isdisjoint({entry.log_key for entry in before})

    check_healed(broker, archive)
    assert record_count(archive) < sum(entry.record_count for entry in before)
    archive.check_uploads(TOPIC)
    # Nothing but what the dead attempt uploaded is left over.
    assert orphan_keys(archive) == dead
    check_restored(broker, archive)


@HEAVY
def test_a_broker_that_dies_after_each_run_of_a_round_comes_to_its_end(
    make_broker: MakeBroker, archive: Archive, dusty: Saved
) -> None:
    broker = start_over(make_broker, archive, dusty)
    left = [(record_count(archive), len(archive.segments(TOPIC)))]
    while manifest_of(archive).compaction is None:
        broker.start_to_crash_at(COMPACT_AFTER_COMMIT)
        eventually(lambda: not broker.running or is_compacted(archive), timeout_s=WAIT_S)
        if broker.running:
            break
        left.append((record_count(archive), len(archive.segments(TOPIC))))
        # Each broker began where the one before had died: fewer records, or fewer segments.
        assert left == sorted(set(left), reverse=True)
        assert archive.orphans() == ()
    assert len(left) > SEGMENTS // 2
    broker.kill()
    check_healed(broker, archive)
    assert archive.orphans() == ()
    check_restored(broker, archive)
