"""What the remote tier costs, each figure beside something measured in the same run.

    upload      a backlog of closed segments against raw PUTs of the same bytes, as many at a time
    rewind      cold sequential consumption against raw parallel ranged GETs, from stores 0, 30 and
                150 ms away; GETs per 8 MiB and per segment
    hot         p50 and p99 of hot produce to consume, alone and while 8 partitions are read cold,
                from stores 0, 30 and 150 ms away; with cold reads that make way for it, and with
                such as do not; what the rewind gets in each case, and alone
    manifest    one commit, and opening, with 100 and with 100,000 archived segments

Run it as `make bench-tiers`. A figure is the median of RUNS runs (min - max), MB are 10^6 bytes.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.measure import Measured, await_quiet, measuring
from bench.rdkafka import ConsumeLoad, ProduceLoad, consumer, pacer, producers
from bench.run import null_s3, s3_client
from strandline.storage.errors import StrandlineError
from strandline.storage.model import EpochStart, TopicIdPartition
from strandline.storage.remote import manifest_store
from strandline.storage.remote.keys import new_unique, segment_keys
from strandline.storage.remote.manifest import Manifest
from strandline.storage.remote.manifest_entries import SegmentEntry
from strandline.storage.remote.memory import MemoryStore
from tests.support.broker import BrokerProcess, eventually
from tests.support.ports import ReservedPort

BUCKET = "bench"
TOPIC = "tiers"
RECORD_BYTES = 1000
BATCH_BYTES = 1_000_000
SEGMENT_BYTES = 64 * 1024 * 1024
RANGE_BYTES = 8 * 1024 * 1024
# As many as the broker may have under way (storage/remote/reader.py, remote.log.*.pool.size).
PARALLEL_GETS = 8
DISTANCES_MS = (0, 30, 150)
CONNECTION_MB_PER_S = "90"
REWIND_PARTITIONS = 8
HOT_RECORDS_PER_S = 1000
HOT_RECORDS = 10_000
REWIND_S = 3.0
YIELD = "strandline.remote.fetch.yield.ms"
WAIT_S = 180.0
PARTS = ("upload", "rewind", "hot", "manifest")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number of one run. `goal` says what the project promises about it, if anything."""

    part: str
    name: str
    value: float
    unit: str
    goal: str = ""


# --- brokers and topics ----------------------------------------------------------------------


@contextmanager
def tiered_broker(folder: Path, endpoint: str, **settings: str) -> Iterator[BrokerProcess]:
    """A broker whose remote tier is the bucket at `endpoint`."""
    common = {
        "remote.log.storage.system.enable": "true",
        "strandline.remote.url": f"s3://{BUCKET}/archive",
        "strandline.remote.s3.endpoint.url": endpoint,
        "remote.log.manager.task.interval.ms": "500",
        "log.retention.check.interval.ms": "1000",
        "log.initial.task.delay.ms": "500",
    }
    with BrokerProcess(folder, settings={**common, **settings}) as broker:
        yield broker


def create_topic(broker: BrokerProcess, topic: str, partitions: int = 1, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=config)
    admin.create_topics([new])[topic].result(10)


def alter_topic(broker: BrokerProcess, topic: str, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in config.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(10)


def produce(broker: BrokerProcess, topic: str, total_bytes: int, partitions: int = 1) -> None:
    load = ProduceLoad(
        topic=topic,
        count=total_bytes // RECORD_BYTES,
        record_bytes=RECORD_BYTES,
        batch_bytes=BATCH_BYTES,
        partitions=partitions,
    )
    with producers(broker.bootstrap, load) as ready:
        ready.run()


TIERED: Mapping[str, str] = {
    "segment.bytes": str(SEGMENT_BYTES),
    "retention.ms": "-1",
    "file.delete.delay.ms": "0",
}


def manifests(client: Any, topic: str = TOPIC) -> list[Manifest]:
    found = client.list_objects_v2(Bucket=BUCKET, Prefix=f"archive/topics/{topic}-")
    keys = [entry["Key"] for entry in found.get("Contents", ())]
    return [
        Manifest.decode(client.get_object(Bucket=BUCKET, Key=key)["Body"].read())
        for key in keys
        if key.endswith("manifest.json")
    ]


def wait_until_archived(client: Any, topic: str, closed_segments: int) -> list[Manifest]:
    """Until that many segments are committed, in all partitions together."""

    def look() -> list[Manifest] | None:
        found = manifests(client, topic)
        return found if sum(m.segment_count for m in found) >= closed_segments else None

    archived = eventually(look, timeout_s=WAIT_S, interval_s=0.05)
    assert archived
    return archived


def closed_segment_count(broker: BrokerProcess, topic: str) -> int:
    return len(list(broker.data.glob(f"{topic}-*/*.log"))) - len(
        list(broker.data.glob(f"{topic}-*"))
    )


# --- upload ----------------------------------------------------------------------------------


def run_upload(folder: Path, total_bytes: int) -> Iterator[Figure]:
    """A topic gets its remote tier when its log is long already: the backlog is what is timed."""
    with null_s3() as endpoint:
        client: Any = s3_client(endpoint)
        client.create_bucket(Bucket=BUCKET)
        with tiered_broker(folder, endpoint) as broker:
            warm_up(broker, client)
            create_topic(broker, TOPIC, **TIERED)
            produce(broker, TOPIC, total_bytes)
            closed = closed_segment_count(broker, TOPIC)
            with measuring(broker.pid) as measured:
                alter_topic(broker, TOPIC, **{"remote.storage.enable": "true"})
                (manifest,) = wait_until_archived(client, TOPIC, closed)
            raw_mb_per_s = raw_upload(client, broker, manifest)
    yield Figure(
        part="upload", name="upload", value=measured.mb_per_s(manifest.size_bytes), unit="MB/s"
    )
    yield Figure(part="upload", name="raw PUTs", value=raw_mb_per_s, unit="MB/s")
    yield Figure(
        part="upload",
        name="upload / raw",
        value=measured.mb_per_s(manifest.size_bytes) / raw_mb_per_s,
        unit="",
        goal=">= 0.85",
    )
    yield _cost("upload", "upload", measured, manifest.size_bytes)


def warm_up(broker: BrokerProcess, client: Any) -> None:
    """One small segment first: the SDK is loaded and connected then, as the raw client's is."""
    config = {**TIERED, "remote.storage.enable": "true", "segment.bytes": "1048576"}
    create_topic(broker, "first", **config)
    produce(broker, "first", 4_000_000)
    wait_until_archived(client, "first", 1)


def raw_upload(client: Any, broker: BrokerProcess, manifest: Manifest) -> float:
    """MB/s of PUTs of the same files, one at a time as the broker copies a partition."""
    folder = next(broker.data.glob(f"{TOPIC}-*"))
    paths = [folder / f"{entry.base_offset:020}.log" for entry in manifest.segments]
    paths = [path for path in paths if path.exists()]
    size_bytes = sum(path.stat().st_size for path in paths)
    assert paths, "the local copies are gone already"
    started_s = time.perf_counter()
    for path in paths:
        with open(path, "rb") as body:
            client.put_object(Bucket=BUCKET, Key=f"raw/{path.name}", Body=body)
    return size_bytes / 1e6 / (time.perf_counter() - started_s)


# --- rewind ----------------------------------------------------------------------------------


def run_rewind(folder: Path, total_bytes: int, distance_ms: int) -> Iterator[Figure]:
    """Everything is in the store; a consumer reads it once, then raw GETs do."""
    far = ["--first-byte-ms", str(distance_ms), "--connection-mb-per-s", CONNECTION_MB_PER_S]
    with null_s3(far if distance_ms else ()) as endpoint:
        client: Any = s3_client(endpoint)
        client.create_bucket(Bucket=BUCKET)
        with tiered_broker(folder, endpoint) as broker:
            config = {**TIERED, "remote.storage.enable": "true", "local.retention.ms": "1000"}
            create_topic(broker, TOPIC, **config)
            produce(broker, TOPIC, total_bytes)
            _wait_until_cold(client, broker, total_bytes, partitions=1)
            await_quiet(broker.pid)
            (manifest,) = _wait_until_cold(client, broker, total_bytes, partitions=1)
            before = counts(endpoint)
            load = ConsumeLoad(topic=TOPIC, count=manifest.end_offset)
            with consumer(broker.bootstrap, load) as ready, measuring(broker.pid) as measured:
                ready.run()
            after = counts(endpoint)
            raw_mb_per_s = raw_download(client, manifest)
    name = f"{distance_ms} ms away"
    cold_mb_per_s = measured.mb_per_s(manifest.size_bytes)
    yield Figure(part="rewind", name=f"{name}: cold consume", value=cold_mb_per_s, unit="MB/s")
    yield Figure(part="rewind", name=f"{name}: raw GETs", value=raw_mb_per_s, unit="MB/s")
    yield Figure(
        part="rewind",
        name=f"{name}: cold / raw",
        value=cold_mb_per_s / raw_mb_per_s,
        unit="",
        goal=">= 0.85",
    )
    yield _cost("rewind", f"{name}: cold consume", measured, manifest.size_bytes)
    gets = {key: after.get(key, 0) - before.get(key, 0) for key in ("GET .log", "GET .meta")}
    allowed = manifest.size_bytes / RANGE_BYTES + len(manifest.segments)
    yield Figure(
        part="rewind",
        name=f"{name}: GETs / (one per 8 MiB and one per segment)",
        value=sum(gets.values()) / allowed,
        unit="",
        goal="<= 1",
    )


def _wait_until_cold(
    client: Any, broker: BrokerProcess, total_bytes: int, *, partitions: int
) -> list[Manifest]:
    """Until everything but the open segments is archived and gone from the local disk."""

    def look() -> list[Manifest] | None:
        found = manifests(client)
        archived = sum(manifest.size_bytes for manifest in found)
        local = list(broker.data.glob(f"{TOPIC}-*/*.log"))
        is_done = archived > total_bytes - partitions * SEGMENT_BYTES and len(local) == partitions
        return found if is_done else None

    cold = eventually(look, timeout_s=WAIT_S, interval_s=0.2)
    assert cold
    return cold


def raw_download(client: Any, manifest: Manifest) -> float:
    """MB/s of ranged GETs of all segments, PARALLEL_GETS at a time."""
    ranges = [
        (entry.log_key, start, min(start + RANGE_BYTES, entry.size_bytes))
        for entry in manifest.segments
        for start in range(0, entry.size_bytes, RANGE_BYTES)
    ]

    def get(wanted: tuple[str, int, int]) -> int:
        key, start, end = wanted
        answer = client.get_object(
            Bucket=BUCKET, Key=f"archive/{key}", Range=f"bytes={start}-{end - 1}"
        )
        return len(answer["Body"].read())

    started_s = time.perf_counter()
    with ThreadPoolExecutor(PARALLEL_GETS) as pool:
        total_bytes = sum(pool.map(get, ranges))
    assert total_bytes == manifest.size_bytes
    return total_bytes / 1e6 / (time.perf_counter() - started_s)


def counts(endpoint: str) -> dict[str, int]:
    """Requests that the null S3 has seen."""
    with urllib.request.urlopen(f"{endpoint}/_counts", timeout=10) as answer:
        found = json.load(answer)
    assert isinstance(found, dict)
    return found


# --- hot beside cold -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Hot latencies of one stretch of time, and MB/s of what was read cold in it."""

    latencies_us: np.ndarray
    cold_mb_per_s: float

    def percentile_ms(self, percent: int) -> float:
        return float(np.percentile(self.latencies_us, percent)) / 1000


def run_hot(folder: Path, total_bytes: int, distance_ms: int) -> Iterator[Figure]:
    """Latency of a topic on local disk, alone and while another topic is read from the store."""
    far = ["--first-byte-ms", str(distance_ms), "--connection-mb-per-s", CONNECTION_MB_PER_S]
    metrics_port = ReservedPort().number
    with null_s3(far if distance_ms else ()) as endpoint:
        client: Any = s3_client(endpoint)
        client.create_bucket(Bucket=BUCKET)
        listener = {"strandline.metrics.listener": f"http://127.0.0.1:{metrics_port}"}
        with tiered_broker(folder, endpoint, **listener) as broker:
            config = {**TIERED, "remote.storage.enable": "true", "local.retention.ms": "1000"}
            create_topic(broker, TOPIC, partitions=REWIND_PARTITIONS, **config)
            create_topic(broker, "hot")
            produce(broker, TOPIC, total_bytes, partitions=REWIND_PARTITIONS)
            _wait_until_cold(client, broker, total_bytes, partitions=REWIND_PARTITIONS)
            alone = measure_hot(broker, metrics_port)
            with cold_readers(broker, total_bytes // RECORD_BYTES) as is_running:
                rewind_mb_per_s = measure_rewind(metrics_port)
                alter_broker(broker, YIELD, "0")
                unheld = measure_hot(broker, metrics_port)
                alter_broker(broker, YIELD, None)
                # The limit finds its level in the first seconds; then it is kept.
                measure_hot(broker, metrics_port)
                held = measure_hot(broker, metrics_port)
                was_running = is_running()
    if not was_running:
        raise StrandlineError("the cold rewind ended before the hot load: use more --megabytes")
    yield from _hot_figures(f"{distance_ms} ms away", alone, unheld, held, rewind_mb_per_s)


def _hot_figures(
    where: str, alone: Beside, unheld: Beside, held: Beside, rewind_mb_per_s: float
) -> Iterator[Figure]:
    cases = {"a rewind that does not make way": unheld, "a rewind": held}
    for percent in (50, 99):
        quiet_ms = alone.percentile_ms(percent)
        name = f"{where}: p{percent}"
        yield Figure(part="hot", name=f"{name} alone", value=quiet_ms, unit="ms")
        for case, found in cases.items():
            busy_ms = found.percentile_ms(percent)
            yield Figure(part="hot", name=f"{name} beside {case}", value=busy_ms, unit="ms")
            yield Figure(
                part="hot",
                name=f"{name} beside {case} / alone",
                value=busy_ms / quiet_ms,
                unit="",
                goal="<= 1.3" if percent == 99 and found is held else "",
            )
    name = f"{where}: the rewind"
    yield Figure(part="hot", name=f"{name} alone", value=rewind_mb_per_s, unit="MB/s")
    for case, found in cases.items():
        what = f"{name} beside hot, {case.removeprefix('a rewind').strip() or 'making way'}"
        yield Figure(part="hot", name=what, value=found.cold_mb_per_s, unit="MB/s")


def alter_broker(broker: BrokerProcess, name: str, value: str | None) -> None:
    """Alters a key of the running broker; None gives it its default again."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    entry = ConfigEntry(name, value, incremental_operation=operation)
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(10)


def cold_bytes(metrics_port: int) -> float:
    """What the broker has read from the store for consumers."""
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=30) as answer:
        page = answer.read().decode()
    found = re.search(rf'remotefetchbytes_total\{{topic="{TOPIC}"\}} (\S+)', page)
    assert found is not None
    return float(found[1])


def measure_rewind(metrics_port: int) -> float:
    """MB/s of the rewind that is under way, with nothing beside it."""
    before, started_s = cold_bytes(metrics_port), time.perf_counter()
    time.sleep(REWIND_S)
    return (cold_bytes(metrics_port) - before) / 1e6 / (time.perf_counter() - started_s)


def measure_hot(broker: BrokerProcess, metrics_port: int) -> Beside:
    before, started_s = cold_bytes(metrics_port), time.perf_counter()
    latencies_us = hot_latencies_us(broker)
    cold_mb = (cold_bytes(metrics_port) - before) / 1e6
    return Beside(
        latencies_us=latencies_us, cold_mb_per_s=cold_mb / (time.perf_counter() - started_s)
    )


def hot_latencies_us(broker: BrokerProcess) -> np.ndarray:
    """From the moment a record was due to its arrival at a consumer."""
    load = ProduceLoad(topic="hot", count=HOT_RECORDS, record_bytes=RECORD_BYTES, linger_ms=0)
    reading = ConsumeLoad(topic="hot", count=HOT_RECORDS, wait_ms=500)
    with pacer(broker.bootstrap, load) as sending, consumer(broker.bootstrap, reading) as receiving:
        receiving.start([-1])  # from the end
        time.sleep(0.5)
        thread = threading.Thread(
            target=lambda: sending.run(records_per_s=HOT_RECORDS_PER_S), daemon=True
        )
        thread.start()
        latencies_us = receiving.latencies_us(HOT_RECORDS)
        thread.join(WAIT_S)
    return latencies_us


@contextmanager
def cold_readers(broker: BrokerProcess, count: int) -> Iterator[Any]:
    """Reads the cold topic from its beginning, again and again, until the block ends."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def read() -> None:
        try:
            while not stop.is_set():
                # Half of it: the open segments are hot.
                load = ConsumeLoad(topic=TOPIC, count=count // 2, partitions=REWIND_PARTITIONS)
                with consumer(broker.bootstrap, load) as ready:
                    ready.run()
        except BaseException as error:
            failures.append(error)
            raise

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    time.sleep(0.5)
    try:
        yield lambda: thread.is_alive() and not failures
    finally:
        stop.set()
        thread.join(WAIT_S)


# --- manifest --------------------------------------------------------------------------------


def run_manifest(counts_of_segments: Sequence[int] = (100, 100_000)) -> Iterator[Figure]:
    """Commits to, and loads from, a store in memory: what is left is our own work."""
    commits, opens = [], []
    for count in counts_of_segments:
        store = MemoryStore()
        partition = TopicIdPartition(TOPIC, uuid.uuid4(), 0)
        stored = manifest_store.commit(
            store, None, Manifest(topic=TOPIC, topic_id=partition.topic_id, partition=0)
        )
        # In large commits, which seal pages as they go.
        step = 400
        for first in range(0, count, step):
            manifest = stored.manifest
            for number in range(first, min(first + step, count)):
                manifest = manifest.with_segment(_entry(partition, number))
            stored = manifest_store.commit(store, stored, manifest, now_ms=0)
            stored = replace(stored, manifest=replace(stored.manifest, deleting=()))
        commit_ms, open_ms = [], []
        # As many as there are between two pages that are sealed.
        for number in range(count, count + manifest_store.PAGE_ENTRIES):
            started_s = time.perf_counter()
            new = replace(stored.manifest.with_segment(_entry(partition, number)), deleting=())
            stored = manifest_store.commit(store, stored, new, now_ms=0)
            commit_ms.append(1000 * (time.perf_counter() - started_s))
            started_s = time.perf_counter()
            assert manifest_store.load(store, partition) is not None
            open_ms.append(1000 * (time.perf_counter() - started_s))
        commits.append(statistics.median(commit_ms))
        opens.append(statistics.median(open_ms))
        name = f"{count:,} segments"
        yield Figure(part="manifest", name=f"commit, {name}", value=commits[-1], unit="ms")
        yield Figure(
            part="manifest", name=f"open, {name}", value=opens[-1], unit="ms", goal="< 200"
        )
    yield Figure(
        part="manifest",
        name="commit, many / few segments",
        value=commits[-1] / commits[0],
        unit="",
        goal="about 1",
    )


def _entry(partition: TopicIdPartition, number: int) -> SegmentEntry:
    base_offset = number * 1000
    names = segment_keys(partition, base_offset=base_offset, leader_epoch=0, unique=new_unique())
    return SegmentEntry(
        base_offset=base_offset,
        end_offset=base_offset + 1000,
        leader_epochs=(EpochStart(0, base_offset),),
        size_bytes=SEGMENT_BYTES,
        record_count=1000,
        min_timestamp_ms=base_offset,
        max_timestamp_ms=base_offset + 999,
        log_key=names.log_key,
        meta_key=names.meta_key,
        log_crc32c=1,
        meta_size_bytes=4096,
        meta_crc32c=2,
        has_transactions=False,
        uploaded_ms=base_offset,
    )


# --- report ----------------------------------------------------------------------------------


def _cost(part: str, name: str, measured: Measured, size_bytes: int) -> Figure:
    cost = measured.cpu_s_per_gb(size_bytes)
    return Figure(part=part, name=f"{name}, broker CPU", value=cost, unit="s/GB")


def report(figures: Sequence[Figure], console: Console) -> None:
    table = Table(title="median of the runs (min - max)")
    for column in ("part", "what", "value", "unit", "goal", "runs"):
        table.add_column(column, justify="right" if column in ("value", "runs") else "left")
    grouped: dict[tuple[str, str], list[Figure]] = {}
    for figure in figures:
        grouped.setdefault((figure.part, figure.name), []).append(figure)
    for (part, name), group in grouped.items():
        values = [figure.value for figure in group]
        digits = 0 if group[0].unit == "MB/s" else 2
        middle = f"{statistics.median(values):.{digits}f}"
        spread = f"{middle} ({min(values):.{digits}f} - {max(values):.{digits}f})"
        table.add_row(part, name, spread, group[0].unit, group[0].goal, str(len(group)))
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3, help="repetitions of each figure")
    parser.add_argument("--megabytes", type=int, default=1500, help="record bytes per figure, MB")
    parser.add_argument("--only", choices=PARTS, help="a part of it")
    parser.add_argument("--output", type=Path, help="write every run as JSON")
    arguments = parser.parse_args()
    total_bytes = arguments.megabytes * 1_000_000
    console = Console()
    folder = Path(tempfile.mkdtemp(prefix="strandline-bench-"))
    work = {
        "upload": [lambda path: run_upload(path, total_bytes)],
        "rewind": [
            lambda path, far=far: run_rewind(path, total_bytes, far) for far in DISTANCES_MS
        ],
        "hot": [lambda path, far=far: run_hot(path, total_bytes, far) for far in DISTANCES_MS],
        "manifest": [lambda _: run_manifest()],
    }
    chosen = [arguments.only] if arguments.only else list(PARTS)
    figures: list[Figure] = []
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    try:
        with Progress(*columns, console=console) as progress:
            for part in chosen:
                task = progress.add_task(part, total=arguments.runs * len(work[part]))
                for number in range(arguments.runs):
                    for place, run in enumerate(work[part]):
                        path = folder / f"{part}-{number}-{place}"
                        figures += run(path)
                        shutil.rmtree(path, ignore_errors=True)
                        progress.advance(task)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    report(figures, console)
    if arguments.output:
        rows = [{name: getattr(figure, name) for name in figure.__slots__} for figure in figures]
        arguments.output.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    sys.exit(main())
