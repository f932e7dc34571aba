"""Upload: a backlog of closed segments against raw PUTs of the same bytes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.measure import measuring
from bench.tiers.rig import (
    BUCKET,
    TIERED,
    TOPIC,
    Figure,
    alter_topic,
    bucket,
    cost_figure,
    create_topic,
    produce,
    tiered_broker,
    wait_until_archived,
)
from strandline.storage.remote.manifest.manifest import Manifest
from tests.support.broker import BrokerProcess


def run_upload(folder: Path, total_bytes: int) -> Iterator[Figure]:
    """A topic gets its remote tier when its log is long already: the backlog is what is timed."""
    with bucket() as (endpoint, client), tiered_broker(folder, endpoint) as broker:
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
    yield cost_figure("upload", "upload", measured, manifest.size_bytes)


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


def closed_segment_count(broker: BrokerProcess, topic: str) -> int:
    return len(list(broker.data.glob(f"{topic}-*/*.log"))) - len(
        list(broker.data.glob(f"{topic}-*"))
    )
