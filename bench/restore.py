"""Time of a restore of 100 partitions with 1,000 archived segments each, over the null S3.

    python -m bench.restore [--partitions 100] [--segments 1000] [--first-byte-ms 0 30 150]

The bucket is made of manifests, pages and one `.meta` per partition: a restore reads nothing else,
and so there are no segments. For each latency of the store's GETs one line: seconds, GETs, and what
the longest possible chain of requests would be if they were made one after the other.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from pathlib import Path

from strandline.broker.commands.restore import Restore
from strandline.broker.config.loading import load_config
from strandline.storage.clock import SystemClock
from strandline.storage.model import EpochStart, TopicIdPartition
from strandline.storage.remote.keys import manifest_key, new_unique, segment_keys
from strandline.storage.remote.manifest import store as manifest_store
from strandline.storage.remote.manifest.cluster_info import ClusterInfo, create_cluster_info
from strandline.storage.remote.manifest.entries import SegmentEntry
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.remote.manifest.topic_info import TopicInfo, save_topic_info
from strandline.storage.remote.object_store.interface import ObjectStore, checksum
from strandline.storage.remote.open_store import open_store
from strandline.storage.remote.segment import meta as segment_meta
from strandline.storage.remote.segment.meta import Section

TOPIC = "restored"
SEGMENT_RECORDS = 100_000
ROOT_ENTRIES = 488
URL = "s3://bench/archive"


class NoProgress:
    """Progress output that is discarded."""

    def begin(self, what: str, total: int) -> None:
        """A step begins."""

    def advance(self, count: int = 1) -> None:
        """It goes on."""


def fill(store: ObjectStore, *, partitions: int, segments: int) -> None:
    """An archive as a broker leaves it, but for the segments."""
    topic_id = uuid.uuid4()
    create_cluster_info(store, ClusterInfo(cluster_id="bench-restore-cluster"))
    info = TopicInfo(
        topic=TOPIC,
        topic_id=topic_id,
        partition_count=partitions,
        properties={"remote.storage.enable": "true", "retention.ms": "-1"},
    )
    save_topic_info(store, info)
    for number in range(partitions):
        _fill_partition(store, TopicIdPartition(TOPIC, topic_id, number), segments)


def _fill_partition(store: ObjectStore, partition: TopicIdPartition, segments: int) -> None:
    meta = segment_meta.encode(
        {Section.LEADER_EPOCHS: segment_meta.encode_leader_epochs([EpochStart(0, 0)])}
    )
    entries = [_entry(partition, number, meta) for number in range(segments)]
    store.put(entries[-1].meta_key, meta)
    manifest = Manifest(
        topic=partition.topic, topic_id=partition.topic_id, partition=partition.partition
    )
    sealed = max(0, segments - ROOT_ENTRIES)
    pages = tuple(
        manifest_store.write_page(store, partition, entries[start : min(start + 256, sealed)])
        for start in range(0, sealed, 256)
    )
    whole = Manifest(
        topic=manifest.topic,
        topic_id=manifest.topic_id,
        partition=manifest.partition,
        revision=segments,
        pages=pages,
        segments=tuple(entries[sealed:]),
    )
    store.put(manifest_key(partition), whole.encode())


def _entry(partition: TopicIdPartition, number: int, meta: bytes) -> SegmentEntry:
    base_offset = number * SEGMENT_RECORDS
    keys = segment_keys(partition, base_offset=base_offset, leader_epoch=0, unique=new_unique())
    return SegmentEntry(
        base_offset=base_offset,
        end_offset=base_offset + SEGMENT_RECORDS,
        leader_epochs=(EpochStart(0, 0),),
        size_bytes=64 << 20,
        record_count=SEGMENT_RECORDS,
        min_timestamp_ms=number,
        max_timestamp_ms=number + 1,
        log_key=keys.log_key,
        meta_key=keys.meta_key,
        log_crc32c=1,
        meta_size_bytes=len(meta),
        meta_crc32c=checksum(meta),
        has_transactions=False,
        uploaded_ms=1,
    )


def measure(*, partitions: int, segments: int, first_byte_ms: float, folder: Path) -> str:
    """One line of the result."""
    command = [sys.executable, "-m", "bench.null_s3", "--first-byte-ms", str(first_byte_ms)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        found = re.search(r":(\d+)", server.stdout.readline())
        assert found is not None
        endpoint = f"http://127.0.0.1:{found[1]}"
        try:
            store = open_store(URL, endpoint_url=endpoint, region="us-east-1")
            fill(store, partitions=partitions, segments=segments)
            before = _gets(endpoint)
            config = load_config(
                None,
                [
                    f"log.dirs={folder}",
                    "remote.log.storage.system.enable=true",
                    f"strandline.remote.url={URL}",
                ],
            )
            began_s = time.monotonic()
            # This archive has no metadata; the topic comes back from its topic.json.
            Restore(
                config, store, clock=SystemClock(), progress=NoProgress(), skip_damaged=True
            ).run()
            took_s = time.monotonic() - began_s
            gets = _gets(endpoint) - before
        finally:
            server.terminate()
    alone_s = gets * first_byte_ms / 1000
    return f"{first_byte_ms:5.0f} ms   {took_s:6.2f} s   {gets:5d} GETs   {alone_s:6.1f} s in a row"


def _gets(endpoint: str) -> int:
    with urllib.request.urlopen(f"{endpoint}/_counts") as answer:
        counts = json.load(answer)
    return sum(count for name, count in _flat(counts) if "GET" in name and "_counts" not in name)


def _flat(counts: object, name: str = "") -> list[tuple[str, int]]:
    if isinstance(counts, dict):
        return [pair for key, value in counts.items() for pair in _flat(value, f"{name} {key}")]
    return [(name, int(str(counts)))]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=100)
    parser.add_argument("--segments", type=int, default=1000)
    parser.add_argument("--first-byte-ms", type=float, nargs="*", default=[0, 30, 150])
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    # The null S3 asks for none, and signs nothing.
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "bench")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "bench")
    print(f"{options.partitions} partitions with {options.segments} segments each")
    for first_byte_ms in options.first_byte_ms:
        with tempfile.TemporaryDirectory() as folder:
            line = measure(
                partitions=options.partitions,
                segments=options.segments,
                first_byte_ms=first_byte_ms,
                folder=Path(folder) / "data",
            )
        print(line, flush=True)


if __name__ == "__main__":
    main()
