"""Requests of the archive commands: the necessary ones, each once."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from strandline.broker.cluster.metadata.metadata_log import MetadataLog
from strandline.broker.commands.archive import commands as archive_commands
from strandline.broker.commands.archive import retention as archive_retention
from strandline.broker.commands.archive import tables as archive_tables
from strandline.broker.commands.archive.commands import VerifyOptions
from strandline.storage import files
from strandline.storage.model import EpochStart, TopicIdPartition
from strandline.storage.remote.keys import manifest_key, segment_keys, topic_key
from strandline.storage.remote.manifest import store as manifest_store
from strandline.storage.remote.manifest.cluster_info import ClusterInfo, create_cluster_info
from strandline.storage.remote.manifest.entries import SegmentEntry
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.remote.manifest.topic_info import TopicInfo, save_topic_info
from strandline.storage.remote.object_store.interface import checksum
from strandline.storage.tiering.audit.listing import list_partitions
from strandline.storage.tiering.audit.orphans import compare
from strandline.storage.tiering.audit.scrub import Depth
from tests.support.memory_store import MemoryStore

CLUSTER = "cluster-of-many-parts0"
TOPICS = [f"topic-{letter}" for letter in "abcdef"]
PARTITIONS = 3
LOG, META = b"the log", b"its indexes"


def entry_of(partition: TopicIdPartition, store: MemoryStore) -> SegmentEntry:
    names = segment_keys(partition, base_offset=0, leader_epoch=0, unique=uuid.uuid4().hex)
    store.put(names.log_key, LOG)
    store.put(names.meta_key, META)
    return SegmentEntry(
        base_offset=0,
        end_offset=10,
        leader_epochs=(EpochStart(0, 0),),
        size_bytes=len(LOG),
        record_count=10,
        min_timestamp_ms=1,
        max_timestamp_ms=2,
        log_key=names.log_key,
        meta_key=names.meta_key,
        log_crc32c=checksum(LOG),
        meta_size_bytes=len(META),
        meta_crc32c=checksum(META),
        has_transactions=False,
        uploaded_ms=3,
    )


@pytest.fixture
def store() -> MemoryStore:
    """Each partition has a segment, and an object that nobody knows."""
    made = MemoryStore()
    create_cluster_info(made, ClusterInfo(cluster_id=CLUSTER))
    MetadataLog(made, cluster_id=CLUSTER).load()
    for topic in TOPICS:
        topic_id = uuid.uuid4()
        save_topic_info(
            made,
            TopicInfo(
                topic=topic,
                topic_id=topic_id,
                partition_count=PARTITIONS,
                properties={"retention.ms": "-1"},
            ),
        )
        for number in range(PARTITIONS):
            partition = TopicIdPartition(topic, topic_id, number)
            manifest = Manifest(topic=topic, topic_id=topic_id, partition=number)
            manifest_store.commit(made, None, manifest.with_segment(entry_of(partition, made)))
            spare = segment_keys(partition, base_offset=0, leader_epoch=0, unique=uuid.uuid4().hex)
            made.put(spare.log_key, LOG)
    made.requests.clear()
    return made


def reads(store: MemoryStore) -> Counter[str]:
    return Counter(request.key for request in store.requests if request.operation.startswith("get"))


def documents(store: MemoryStore, *topics: str) -> set[str]:
    """The keys of what describes these topics and their partitions."""
    keys = set()
    for row in list_partitions(store):
        partition = row.partition
        if partition.topic in topics:
            keys |= {manifest_key(partition), topic_key(partition.topic, partition.topic_id)}
    store.requests.clear()
    return keys


def test_showing_every_segment_asks_for_each_topic_twice_however_many_there_are(
    store: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once for the widths of the columns, once for the rows."""
    wanted = documents(store, *TOPICS)
    assert archive_tables.print_segments(store, topic=None) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if ".log" in line]
    assert [row.split()[0] for row in rows] == [
        f"{topic}-{number}" for topic in TOPICS for number in range(PARTITIONS)
    ]
    assert reads(store) == dict.fromkeys(wanted, 2)


def test_of_one_topic_no_other_is_asked_for(store: MemoryStore) -> None:
    wanted = documents(store, "topic-c")
    archive_tables.print_segments(store, topic="topic-c")
    assert set(reads(store)) == wanted
    store.requests.clear()
    archive_retention.print_retention(
        store, "topic-c", retention_ms=-1, retention_bytes=None, as_json=True
    )
    found = reads(store)
    assert set(found) == wanted
    assert max(found.values()) <= 3


def test_threads_find_the_orphans_that_one_finds_and_in_the_same_order(store: MemoryStore) -> None:
    now_ms = store.clock_ms() + 10
    listed = []
    alone = compare(store, now_ms=now_ms, grace_ms=0)
    with ThreadPoolExecutor(4) as executor:
        together = compare(
            store, now_ms=now_ms, grace_ms=0, executor=executor, on_objects=listed.append
        )
    assert together == alone
    assert len(together.orphans) == len(TOPICS) * PARTITIONS
    assert sum(listed) == together.object_count


def verified(store: MemoryStore, state: Path) -> int:
    return archive_commands.verify(store, VerifyOptions(depth=Depth.CHECKSUMS, state=state))


def test_a_whole_partition_is_verified_from_one_look_at_its_manifest(
    store: MemoryStore, tmp_path: Path
) -> None:
    """And one before it, to know how much there is to look at."""
    manifests = {key for key in documents(store, *TOPICS) if key.endswith("manifest.json")}
    assert verified(store, tmp_path / "state") == 0
    found = reads(store)
    assert {key: found[key] for key in manifests} == dict.fromkeys(manifests, 2)


def test_what_verify_has_looked_at_is_not_written_anew_for_each_partition(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each writing is of all of them: 10,000 would be some GB."""
    monkeypatch.setattr(archive_commands, "STATE_INTERVAL_S", 3600.0, raising=False)
    written: list[int] = []
    write: Callable[..., None] = files.write_atomically

    def counted(path: Path, content: bytes, **options: bool) -> None:
        written.append(len(content))
        write(path, content, **options)

    monkeypatch.setattr(files, "write_atomically", counted)
    all_keys = store.keys()
    store.delete([key for key in all_keys if "topic-d" in key and key.endswith(".meta")][:1])
    state = tmp_path / "state"
    assert verified(store, state) == archive_commands.DAMAGED
    assert len(written) <= 2, "the first, and all when it ends"
    written.clear()
    assert len(json.loads(state.read_text())["done"]) == len(TOPICS) * PARTITIONS - 1
