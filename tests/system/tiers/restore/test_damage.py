"""Damaged and missing objects: a clear error, never wrong data, and everybody else goes on.

One broker, one topic per kind of damage. Everything is archived and no local copy is left; then
the objects are damaged while the broker is down, so that it has nothing in its caches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest

from strandline.storage.model import TopicIdPartition
from strandline.storage.remote.keys import manifest_key
from tests.conftest import make_bucket
from tests.support.broker import eventually
from tests.support.ministack import ServerProcess
from tests.system.tiers.log_client import (
    Fetched,
    LogClient,
    end_of,
    make_batches,
    split_batches,
    with_epoch,
)
from tests.system.tiers.tiered_broker import (
    FREE_LOCALLY,
    SEGMENT_BYTES,
    TIERED,
    WAIT_S,
    Archive,
    TieredBroker,
)

pytestmark = [pytest.mark.slow, pytest.mark.s3]

KAFKA_STORAGE_ERROR = 56
OK = 0
BATCHES = make_batches(size_bytes=5 * SEGMENT_BYTES // 2)
# The second of two archived segments is damaged, in its middle.
DAMAGED_SEGMENT = 1
# Batches are of one size, so the very middle may be the first byte of a header.
FLIP_OFFSET = 1000
DAMAGES = ["whole", "manifest", "meta", "no meta", "no log", "short log", "flipped bit", "lost"]


def topic_of(damage: str) -> str:
    return f"damage-{damage.replace(' ', '-')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Damaged:
    """A broker that was started over damaged objects; `originals` are what they were."""

    broker: TieredBroker
    archive: Archive
    borders: dict[str, list[int]]
    originals: dict[str, tuple[str, bytes]]

    def client(self, damage: str) -> LogClient:
        return self.broker.client(topic_of(damage))

    def repair(self, damage: str) -> None:
        key, content = self.originals[damage]
        self.archive.store.put(key, content)


def damage_object(archive: Archive, damage: str) -> tuple[str, bytes]:
    """Does what `damage` says; the object's key and what it was."""
    topic = topic_of(damage)
    entry = archive.segments(topic)[DAMAGED_SEGMENT]
    topic_id = archive.topic_id(topic)
    assert topic_id is not None
    key = entry.log_key
    if damage == "manifest":
        key = manifest_key(TopicIdPartition(topic, topic_id, 0))
    elif "meta" in damage:
        key = entry.meta_key
    original = archive.store.get(key)
    changed = bytearray(original)
    # Inside the records of a batch: only its CRC can tell.
    changed[(len(changed) // 2 + FLIP_OFFSET) % len(changed)] ^= 0x10
    if damage.startswith("no ") or damage == "lost":
        archive.store.delete([key])
    elif damage == "short log":
        archive.store.put(key, original[: len(original) // 2])
    elif damage == "meta":
        archive.store.put(key, bytes(byte ^ 0xFF for byte in original))
    elif damage != "whole":
        archive.store.put(key, bytes(changed))
    return key, original


@pytest.fixture(scope="module")
def damaged(
    ministack: ServerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Damaged]:
    bucket = make_bucket(ministack.endpoint_url)
    archive = Archive.open(bucket)
    borders: dict[str, list[int]] = {}
    originals: dict[str, tuple[str, bytes]] = {}
    with TieredBroker(tmp_path_factory.mktemp("damage"), bucket) as broker:
        for damage in DAMAGES:
            with broker.client(topic_of(damage)) as client:
                client.create_topic({**TIERED, **FREE_LOCALLY})
                client.produce(BATCHES)
                broker.wait_until_archived(client)
                broker.wait_until_freed(client)
                borders[damage] = [s.base_offset for s in archive.segments(topic_of(damage))]
                borders[damage].append(archive.end_offset(topic_of(damage)))
        broker.stop()
        for damage in DAMAGES:
            originals[damage] = damage_object(archive, damage)
        broker.start()
        yield Damaged(broker=broker, archive=archive, borders=borders, originals=originals)
        assert broker.running, broker.log_text()[-4000:]


def read_until_error(client: LogClient, start: int, end: int) -> tuple[list[bytes], int]:
    """Batches from `start` on until an error or `end`; the batches and the error."""
    found: list[bytes] = []
    for _ in range(400):
        if start >= end:
            return found, OK
        answer = client.fetch(start)
        if answer.error_code:
            assert answer.records == b""
            return found, answer.error_code
        for batch in split_batches(answer.records):
            found.append(batch)
            start = end_of([batch])
    raise AssertionError(f"neither the end nor an error behind offset {start}")


@pytest.mark.parametrize("damage", ["whole", "meta", "no meta"])
def test_a_damaged_or_missing_meta_costs_an_index_and_no_record(
    damaged: Damaged, damage: str
) -> None:
    with damaged.client(damage) as client:
        assert client.read(0, end_of(BATCHES)) == BATCHES
    if damage == "meta":
        key, _ = damaged.originals[damage]
        assert any(key in line for line in damaged.broker.warnings())


@pytest.mark.parametrize("damage", ["no log", "short log", "flipped bit"])
def test_a_damaged_log_object_is_an_error_at_its_offsets_and_nowhere_else(
    damaged: Damaged, damage: str
) -> None:
    _, damaged_base, end = damaged.borders[damage]
    with damaged.client(damage) as client:
        found, error_code = read_until_error(client, 0, end_of(BATCHES))
        assert error_code == KAFKA_STORAGE_ERROR
        # What came before the damage is right, byte for byte.
        assert found == BATCHES[: len(found)]
        assert damaged_base <= end_of(found) < end
        # What lies behind it can still be read.
        behind = [batch for batch in BATCHES if end_of([batch]) > end]
        assert client.read(end, end_of(BATCHES)) == behind
        key, _ = damaged.originals[damage]
        assert any(key in line for line in damaged.broker.warnings())
        # An error is not remembered: whoever repairs the bucket need not restart the broker.
        damaged.repair(damage)
        assert client.read(0, end_of(BATCHES)) == BATCHES


def test_a_fetch_of_damaged_and_whole_partitions_gets_the_records_of_the_whole_ones(
    damaged: Damaged,
) -> None:
    border = damaged.borders["whole"][-1]
    offsets = {
        topic_of("lost"): damaged.borders["lost"][DAMAGED_SEGMENT],
        topic_of("manifest"): 0,
        topic_of("whole"): 0,
        topic_of("no meta"): border,
    }
    with damaged.client("whole") as client:
        # What takes longer than a fetch waits comes with the next one.
        def all_answers() -> Mapping[str, Fetched] | None:
            got = client.fetch_many(offsets)
            whole = len(got) == 4 and all(one.records or one.error_code for one in got.values())
            return got if whole else None

        answers = eventually(all_answers, timeout_s=WAIT_S)
        assert isinstance(answers, dict)
    assert answers[topic_of("lost")].error_code == KAFKA_STORAGE_ERROR
    assert answers[topic_of("manifest")].error_code == KAFKA_STORAGE_ERROR
    for damage, start in (("whole", 0), ("no meta", border)):
        got = split_batches(answers[topic_of(damage)].records)
        assert got == [b for b in BATCHES if end_of([b]) > start][: len(got)]
        assert got


def test_a_damaged_manifest_stops_cold_reads_and_copies_of_its_partition_only(
    damaged: Damaged,
) -> None:
    key, original = damaged.originals["manifest"]
    broken = damaged.archive.store.get(key)
    border = damaged.borders["manifest"][-1]
    with damaged.client("manifest") as client:
        found, error_code = read_until_error(client, 0, end_of(BATCHES))
        assert (found, error_code) == ([], KAFKA_STORAGE_ERROR)
        assert any(key in line for line in damaged.broker.warnings())
        # What is local is served, and more is taken.
        hot = [batch for batch in BATCHES if end_of([batch]) > border]
        more = make_batches(base_offset=end_of(BATCHES), size_bytes=2 * SEGMENT_BYTES)
        more = [with_epoch(batch, 1) for batch in more]
        client.produce(more)
        assert client.read(border, end_of(more)) == hot + more
        # Nobody writes over what nobody can read.
        assert damaged.archive.store.get(key) == broken
        damaged.repair("manifest")
        damaged.broker.wait_until_archived(client)
        assert client.read(0, end_of(more)) == BATCHES + more
    assert damaged.archive.store.get(key) != original
