"""Logs of releases before Kafka's records are read whole, and converted by the first append.

`metadata_of_471ed254.jsonl` has a log with every type of record, as the last of those releases
wrote it: its entries, and the snapshots after entries 8, 14 and 23.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection
from pathlib import Path

import pytest

from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.log_format import NO_ENTRY_CHECKSUM, decode_entry
from strandline.broker.cluster.metadata.log_reader import read_history
from strandline.broker.cluster.metadata.metadata_log import MetadataLog
from strandline.broker.cluster.metadata.records import DeletedTopic, QuotaEntity
from strandline.storage.crash_points import CRASH_POINTS, SimulatedCrash, simulated_crash
from strandline.storage.errors import CorruptFile, TierUnavailable, UnsupportedFormat
from strandline.storage.remote.keys import (
    METADATA_LOG_PREFIX,
    metadata_log_key,
    metadata_snapshot_key,
)
from strandline.storage.remote.manifest.json_document import encode_document
from tests.support.memory_store import Fault, MemoryStore, Timing
from tests.unit.broker.cluster.metadata_rig import copy_of, created, keys_in, opened, producer_ids

ROWS = [
    json.loads(line)
    for line in Path(__file__).with_name("metadata_of_471ed254.jsonl").read_text().splitlines()
]
CONTENTS = {row["key"]: row["content"].encode() for row in ROWS}
ENTRY_COUNT = 23
SNAPSHOTS = (8, 14, 23)
A, B, C, D = (uuid.UUID(int=0xA0 + number) for number in range(4))


def store_of_before(snapshots: Collection[int] = (), *, first_entry: int = 1) -> MemoryStore:
    store = MemoryStore()
    for index in range(first_entry, ENTRY_COUNT + 1):
        store.put(metadata_log_key(index), CONTENTS[metadata_log_key(index)])
    for index in snapshots:
        store.put(metadata_snapshot_key(index), CONTENTS[metadata_snapshot_key(index)])
    return store


def read(store: MemoryStore) -> MetadataImage:
    return read_history(store, cluster_id="c-1").image


def test_every_record_of_before_says_what_it_said() -> None:
    image = read(store_of_before())
    assert (image.version, image.next_offset, image.cluster_id) == (23, 23, "c-1")
    assert set(image.topics) == {"a"}
    topic = image.topics["a"]
    assert topic.topic_id == C
    assert dict(topic.properties) == {"remote.storage.enable": "true", "x": "y"}
    states = [(p.leader, p.leader_epoch, p.replicas, p.isr) for p in topic.partitions]
    # Raised to 7 by a restore, then by a start; the other by the start alone.
    assert states == [(1, 8, (1,), (1,)), (1, 1, (1,), (1,))]
    # B had no archive, and its purge is none.
    assert dict(image.pending_purges) == {
        A: DeletedTopic(name="a", topic_id=A, partition_count=5),
        D: DeletedTopic(name="d", topic_id=D, partition_count=1),
    }
    assert image.next_producer_id == 1000
    assert dict(image.broker_properties) == {None: {"max.connections": "9"}}
    quotas = {"request_percentage": 0.2}
    assert dict(image.client_quotas) == {QuotaEntity.of({"user": "", "client-id": "c"}): quotas}
    assert dict(image.group_properties) == {"g": {"consumer.session.timeout.ms": "45000"}}
    assert list(image.scram_credentials) == ["alice"]
    (credential,) = image.scram_credentials["alice"].values()
    assert (credential.salt, credential.iterations) == (b"salt4", 4100)
    # Every feature had its highest level, if none was set.
    levels = {"metadata.version": 25, "group.version": 1, "transaction.version": 1}
    assert dict(image.feature_levels) == levels
    assert not image.brokers


@pytest.mark.parametrize("snapshot", SNAPSHOTS)
def test_a_snapshot_of_before_is_the_image_of_the_entries_that_it_replaces(snapshot: int) -> None:
    store = store_of_before([snapshot], first_entry=snapshot + 1)
    assert read(store) == read(store_of_before())


def test_the_first_append_writes_a_snapshot_of_now_and_deletes_what_two_snapshots_cover() -> None:
    store = store_of_before([8, 14])
    log = MetadataLog(store, cluster_id="c-1")
    before = log.load()
    _, after = log.append(created(0))
    assert after.version == 24
    assert after.next_offset == before.next_offset + len(created(0))
    assert log.statistics().snapshot_version == 24
    entries = [key for key in keys_in(store) if key.startswith(METADATA_LOG_PREFIX)]
    assert entries[0] == metadata_log_key(14)
    assert b'"version":5' in store.get(metadata_snapshot_key(24))
    assert read(store) == after
    # What follows is converted already.
    log.append(created(1))
    assert log.statistics().snapshot_version == 24
    # The snapshot of before is the reserve for a damaged one, with the entries of both kinds.
    store.damage(metadata_snapshot_key(24), lambda _old: b"{}")
    assert read(store) == log.image


@pytest.mark.parametrize("moment", list(Timing))
@pytest.mark.parametrize("snapshots", [(), (8,), (8, 14), (14, 23)])
def test_a_kill_at_any_step_of_the_conversion_leaves_a_whole_log(
    snapshots: tuple[int, ...], moment: Timing
) -> None:
    first = snapshots[-1] if snapshots else 1
    clean = store_of_before(snapshots, first_entry=first)
    converted = copy_of(clean)
    begun = converted.count_requests("put|delete")
    log = MetadataLog(converted, cluster_id="c-1")
    before = log.load()
    _, after = log.append(created(0))
    step_count = converted.count_requests("put|delete") - begun
    # The boundary, the entry, the snapshot; then what two snapshots cover is deleted.
    assert step_count >= 3
    for step in range(step_count):
        store = copy_of(clean)
        store.add_fault(
            Fault(operation="put|delete", error=TierUnavailable, moment=moment, skip=step)
        )
        try:
            killed = MetadataLog(store, cluster_id="c-1")
            killed.load()
            killed.append(created(0))
        except TierUnavailable:
            assert step <= 1
        found = read(store)
        assert found in (before, after), step
        # The next start goes on from there, and ends what was begun.
        survivor = opened(store, cluster_id="c-1", snapshot_interval=1000)
        survivor.append(producer_ids(5000))
        assert survivor.statistics().snapshot_version > ENTRY_COUNT
        assert read(store) == survivor.image


@pytest.mark.parametrize("point", [one for one in CRASH_POINTS if one.startswith("metadata.")])
def test_a_kill_at_each_crash_point_of_the_conversion_leaves_a_whole_log(point: str) -> None:
    store, mirror = store_of_before([8, 14]), store_of_before([8, 14])
    killed = MetadataLog(store, mirror, cluster_id="c-1")
    killed.load()
    with simulated_crash(point), pytest.raises(SimulatedCrash):
        killed.append(created(0))
    # It is written before the first of these points.
    assert "t0" in read(store).topics
    survivor = MetadataLog(store, mirror, cluster_id="c-1")
    survivor.load()
    survivor.append(created(1))
    assert survivor.mirror_once() == 0
    assert read(store) == read(mirror) == survivor.image
    assert survivor.statistics().snapshot_version >= ENTRY_COUNT + 1


def test_a_mirror_of_before_follows_the_converted_log() -> None:
    store, mirror = store_of_before([8]), store_of_before([8])
    log = MetadataLog(store, mirror, cluster_id="c-1")
    log.load()
    assert log.mirror_once() == 0
    log.append(created(0))
    assert log.mirror_once() == 0
    assert read(mirror) == log.image
    assert opened(MemoryStore(), mirror, cluster_id="c-1").image == log.image


def test_an_entry_of_before_that_names_no_topic_is_corrupt() -> None:
    # Behind the empty image: the topic that gets partitions was never created.
    document = json.loads(CONTENTS[metadata_log_key(5)])
    fields = {k: v for k, v in document.items() if k not in ("format", "version", "crc32c")}
    fields |= {"index": 1, "previous": NO_ENTRY_CHECKSUM}
    store = MemoryStore()
    store.put(metadata_log_key(1), encode_document(document["format"], 1, fields))
    with pytest.raises(CorruptFile, match="entry 1: "):
        read(store)


def test_a_record_of_before_of_unknown_type_is_refused() -> None:
    document = json.loads(CONTENTS[metadata_log_key(1)])
    fields = {k: v for k, v in document.items() if k not in ("format", "version", "crc32c")}
    fields["records"] = [{"type": "teleported"}]
    content = encode_document(document["format"], 1, fields)
    with pytest.raises(UnsupportedFormat, match=r"teleported.*: a later release wrote it"):
        decode_entry(content, key="k", index=1)
