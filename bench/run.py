"""`make bench`: librdkafka against the broker, hot from the page cache and cold from S3.

    hot    produce and consume 1 KB records in batches of 16 KB and of 1 MB
    cold   consume records whose segments lie only in the object store, beside a plain parallel
           boto3 ranged download of the same objects from the same server in the same run. Each
           read follows a start of the broker. A rewind is COLD_MEGABYTES; what a short one gets,
           FIRST_BYTES, of which a start takes a larger part, is a row of its own
    compact  a dirty log of 100-byte records, as MB of dirty log; CPU is the cleaner process's

Every figure is the median of RUNS alternating runs; MB are 10^6 bytes. CPU is that of the broker
process and its children, per 10^9 bytes of record values.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import boto3
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.clients.rdkafka import ConsumeLoad, ProduceLoad, consumer, producers
from bench.compact import run_compaction
from bench.comparison.peers import Peer
from bench.measure import Measured, await_quiet, measuring, resident_mib
from strandline.storage.remote.manifest.manifest import Manifest
from tests.support.broker import BrokerProcess, eventually
from tests.support.ministack import ministack

REPOSITORY = Path(__file__).resolve().parents[1]
KB = 1000
MIB = 1024 * 1024
RECORD_BYTES = 1 * KB
BATCHES = {"16 KB": 16 * 1024, "1 MB": 1_000_000}
COLD_SEGMENT_BYTES = 64 * MIB
DOWNLOAD_RANGE_BYTES = 8 * MIB
DOWNLOAD_THREADS = 4
# A rewind reads gigabytes; a first look at the past does not.
COLD_MEGABYTES = 2000
FIRST_BYTES = 500_000_000
# A store on loopback that answers at once; one that is as far away as S3 in the same region, about
# 30 ms to the first byte and 90 MB/s on one connection; and the emulator of the demo.
STORES: Mapping[str, Sequence[str]] = {
    "near S3": (),
    "S3-like": ("--first-byte-ms", "30", "--connection-mb-per-s", "90"),
    "MiniStack": (),
}
BUCKET = "bench"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One row of the report, of one run."""

    name: str
    mb_per_s: float
    cpu_s_per_gb: float | None


def create_topic(broker: BrokerProcess | Peer, topic: str, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    new = NewTopic(topic, num_partitions=1, replication_factor=1, config=config)
    admin.create_topics([new])[topic].result(10)


def run_hot(folder: Path, total_bytes: int) -> Iterator[Figure]:
    """Produce and consume against a fresh broker."""
    with BrokerProcess(folder / "hot") as broker:
        time.sleep(1)
        yield Figure(name="idle memory, MiB", mb_per_s=resident_mib(broker.pid), cpu_s_per_gb=None)
        for label, batch_bytes in BATCHES.items():
            topic = f"t-{batch_bytes}"
            create_topic(broker, topic)
            yield from _produce_consume(
                f"strandline {label}", broker.bootstrap, broker.pid, topic, batch_bytes, total_bytes
            )


def _produce_consume(
    name: str, bootstrap: str, pid: int, topic: str, batch_bytes: int, total_bytes: int
) -> Iterator[Figure]:
    count = total_bytes // RECORD_BYTES
    measured = produce(
        bootstrap, pid, ProduceLoad(topic=topic, count=count, batch_bytes=batch_bytes)
    )
    yield _figure(f"{name} produce", measured, total_bytes)
    measured = consume(bootstrap, pid, ConsumeLoad(topic=topic, count=count))
    yield _figure(f"{name} consume", measured, total_bytes)


def produce(bootstrap: str, pid: int, load: ProduceLoad) -> Measured:
    """Sends the load; connecting is not part of the measure."""
    with producers(bootstrap, load) as ready, measuring(pid) as measured:
        ready.run()
    return measured


def consume(bootstrap: str, pid: int, load: ConsumeLoad) -> Measured:
    """Reads the load; connecting is not part of the measure."""
    with consumer(bootstrap, load) as ready, measuring(pid) as measured:
        value_bytes = ready.run()
    assert value_bytes == load.count * RECORD_BYTES, (value_bytes, load)
    return measured


def _figure(name: str, measured: Measured, total_bytes: int) -> Figure:
    return Figure(
        name=name,
        mb_per_s=measured.mb_per_s(total_bytes),
        cpu_s_per_gb=measured.cpu_s_per_gb(total_bytes),
    )


@contextmanager
def _store(name: str, folder: Path) -> Iterator[str]:
    """The URL of one of STORES, in a process of its own."""
    if name == "MiniStack":
        folder.mkdir(parents=True, exist_ok=True)
        with ministack(folder / "ministack.log") as server:
            yield server.endpoint_url
    else:
        with null_s3(STORES[name]) as endpoint:
            yield endpoint


@contextmanager
def null_s3(arguments: Sequence[str] = ()) -> Iterator[str]:
    """The URL of a null S3 in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, str(REPOSITORY / "bench" / "null_s3.py"), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield "http://" + process.stdout.readline().split()[-1]
    finally:
        process.kill()
        process.wait()


def s3_client(endpoint: str) -> object:
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )


def run_cold(folder: Path, total_bytes: int, runs: int, store: str) -> Iterator[Figure]:
    """Archives a topic, then reads it through the broker and around it, in turns."""
    with _store(store, folder) as endpoint:
        client = s3_client(endpoint)
        client.create_bucket(Bucket=BUCKET)  # type: ignore[attr-defined]
        settings = {
            "remote.log.storage.system.enable": "true",
            "strandline.remote.url": f"s3://{BUCKET}/archive",
            "strandline.remote.s3.endpoint.url": endpoint,
            "remote.log.manager.task.interval.ms": "500",
            "log.retention.check.interval.ms": "1000",
            "log.initial.task.delay.ms": "500",
        }
        with BrokerProcess(folder / f"cold {store}", settings=settings) as broker:
            create_topic(
                broker,
                "cold",
                **{
                    "remote.storage.enable": "true",
                    "segment.bytes": str(COLD_SEGMENT_BYTES),
                    "retention.ms": "-1",
                    "local.retention.ms": "1000",
                    "file.delete.delay.ms": "0",
                },
            )
            measured = produce(
                broker.bootstrap,
                broker.pid,
                ProduceLoad(topic="cold", count=total_bytes // RECORD_BYTES, batch_bytes=1_000_000),
            )
            yield _figure(f"{store}: tiered produce 1 MB", measured, total_bytes)
            archived_manifest(client, broker, total_bytes)
            await_quiet(broker.pid)
            # Small segments may have been merged since.
            manifest = archived_manifest(client, broker, total_bytes)
            for _ in range(runs):
                yield from _read_through(broker, store, manifest.end_offset)
                yield from _read_around(client, store, manifest)


def _read_through(broker: BrokerProcess, store: str, count: int) -> Iterator[Figure]:
    """The topic's `count` records, and a part of them, through a broker that was just started."""
    first_count = min(count, FIRST_BYTES // RECORD_BYTES)
    reads = {"cold consume, first 0.5 GB": first_count, "cold consume": count}
    for name, read_count in reads.items():
        load = ConsumeLoad(topic="cold", count=read_count)
        measured = consume(broker.bootstrap, broker.pid, load)
        yield _figure(f"{store}: {name}", measured, read_count * RECORD_BYTES)
        if read_count == count:
            # As cold: the broker keeps 128 MiB of chunks, and their end by now. Its memory and the
            # indexes are there, as are its connections and those of the plain client.
            await_quiet(broker.pid)
            measured = consume(broker.bootstrap, broker.pid, load)
            yield _figure(f"{store}: {name}, again", measured, count * RECORD_BYTES)
        # Another broker process and no chunks on disk: the next read is as cold.
        broker.stop()
        shutil.rmtree(broker.data / "remote-cache", ignore_errors=True)
        broker.start()
        # The plain client has its SDK loaded too, and is connected.
        await_quiet(broker.pid)


def _read_around(client: object, store: str, manifest: Manifest) -> Iterator[Figure]:
    """The same objects without a broker, as MB of record values."""
    value_share = manifest.end_offset * RECORD_BYTES / manifest.size_bytes
    yield Figure(
        name=f"{store}: plain boto3 download",
        mb_per_s=plain_download(client, manifest) * value_share,
        cpu_s_per_gb=None,
    )


def archived_manifest(client: object, broker: BrokerProcess, total_bytes: int) -> Manifest:
    """Waits until everything but the open segment is archived and gone from the local disk."""

    def look() -> Manifest | None:
        found = client.list_objects_v2(Bucket=BUCKET, Prefix="archive/topics/")  # type: ignore[attr-defined]
        keys = [entry["Key"] for entry in found.get("Contents", ())]
        manifests = [key for key in keys if key.endswith("manifest.json")]
        if not manifests:
            return None
        body = client.get_object(Bucket=BUCKET, Key=manifests[0])["Body"].read()  # type: ignore[attr-defined]
        manifest = Manifest.decode(body)
        local = list(broker.data.glob("cold-0/*.log"))
        done = manifest.size_bytes > total_bytes - COLD_SEGMENT_BYTES and len(local) == 1
        return manifest if done else None

    manifest = eventually(look, timeout_s=120, interval_s=0.5)
    assert isinstance(manifest, Manifest)
    return manifest


def plain_download(client: object, manifest: Manifest, *, threads: int = DOWNLOAD_THREADS) -> float:
    """MB/s of ranged GETs of all segments, `threads` at a time."""
    ranges = [
        (entry.log_key, start, min(start + DOWNLOAD_RANGE_BYTES, entry.size_bytes))
        for entry in manifest.segments
        for start in range(0, entry.size_bytes, DOWNLOAD_RANGE_BYTES)
    ]

    def get(wanted: tuple[str, int, int]) -> int:
        key, start, end = wanted
        answer = client.get_object(  # type: ignore[attr-defined]
            Bucket=BUCKET, Key=f"archive/{key}", Range=f"bytes={start}-{end - 1}"
        )
        return len(answer["Body"].read())

    started_s = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        total_bytes = sum(pool.map(get, ranges))
    assert total_bytes == manifest.size_bytes
    return total_bytes / 1e6 / (time.perf_counter() - started_s)


def run_compact(folder: Path, total_bytes: int) -> Iterator[Figure]:
    """Compaction of a log that is all dirty, 100-byte records; see bench/compact.py."""
    for found in run_compaction(folder, total_bytes):
        yield Figure(
            name=f"compact 100 B records, {found.codec}",
            mb_per_s=found.mb_per_s,
            cpu_s_per_gb=1000 / found.mb_per_cpu_s,
        )


def report(figures: list[Figure], console: Console) -> None:
    """Medians and spreads, and the ratios that are promised."""
    table = Table(title="median of the runs (min - max)")
    for column in ("what", "MB/s", "broker CPU s/GB", "runs"):
        table.add_column(column, justify="left" if column == "what" else "right")
    grouped: dict[str, list[Figure]] = {}
    for figure in figures:
        grouped.setdefault(figure.name, []).append(figure)
    for name, group in grouped.items():
        speeds = [figure.mb_per_s for figure in group]
        costs = [figure.cpu_s_per_gb for figure in group if figure.cpu_s_per_gb is not None]
        table.add_row(name, _spread(speeds, 0), _spread(costs, 2) if costs else "", str(len(group)))
    console.print(table)
    for store in STORES:
        plain = grouped.get(f"{store}: plain boto3 download", [])
        for name in ("cold consume", "cold consume, again", "cold consume, first 0.5 GB"):
            _print_ratio(console, f"{store}: {name}", grouped, plain, "plain download")


def _print_ratio(
    console: Console,
    name: str,
    grouped: Mapping[str, Sequence[Figure]],
    beside: Sequence[Figure],
    what: str,
) -> None:
    """MB/s of a row beside those of another, run by run."""
    ratios = [a.mb_per_s / b.mb_per_s for a, b in zip(grouped.get(name, ()), beside, strict=False)]
    if ratios:
        console.print(f"{name} / {what}, MB/s: {_spread(ratios, 2)}")


def _spread(numbers: list[float], digits: int) -> str:
    middle = statistics.median(numbers)
    return f"{middle:.{digits}f} ({min(numbers):.{digits}f} - {max(numbers):.{digits}f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3, help="repetitions of each figure")
    parser.add_argument("--megabytes", type=int, default=500, help="record bytes per figure, MB")
    parser.add_argument(
        "--cold-megabytes", type=int, default=COLD_MEGABYTES, help="of a cold read, MB"
    )
    parser.add_argument("--only", choices=("hot", "cold", "compact"), help="a part of it")
    parser.add_argument("--store", choices=tuple(STORES), help="the one store of the cold part")
    parser.add_argument("--output", type=Path, help="write every run as JSON")
    arguments = parser.parse_args()
    total_bytes = arguments.megabytes * 1_000_000
    figures: list[Figure] = []
    console = Console()
    folder = Path(tempfile.mkdtemp(prefix="strandline-bench-"))
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    try:
        with Progress(*columns, console=console) as progress:
            if arguments.only in (None, "hot"):
                task = progress.add_task("hot", total=arguments.runs)
                for number in range(arguments.runs):
                    run_folder = folder / str(number)
                    figures += run_hot(run_folder, total_bytes)
                    shutil.rmtree(run_folder, ignore_errors=True)
                    progress.advance(task)
            if arguments.only in (None, "cold"):
                for store in (arguments.store,) if arguments.store else STORES:
                    per_run = 4
                    task = progress.add_task(f"cold, {store}", total=per_run * arguments.runs + 1)
                    cold_bytes = arguments.cold_megabytes * 1_000_000
                    for figure in run_cold(folder, cold_bytes, arguments.runs, store):
                        figures.append(figure)
                        progress.advance(task)
            if arguments.only in (None, "compact"):
                task = progress.add_task("compact", total=arguments.runs)
                for number in range(arguments.runs):
                    figures += run_compact(folder / f"compact {number}", total_bytes)
                    progress.advance(task)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    report(figures, console)
    if arguments.output:
        arguments.output.write_text(
            json.dumps([{n: getattr(f, n) for n in f.__slots__} for f in figures], indent=1)
        )


if __name__ == "__main__":
    main()
