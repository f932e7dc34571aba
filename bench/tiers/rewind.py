"""Rewind: cold sequential consumption against raw parallel ranged GETs, and GETs per byte."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from bench.clients.rdkafka import ConsumeLoad, consumer
from bench.measure import await_quiet, measuring
from bench.run import DOWNLOAD_RANGE_BYTES, plain_download
from bench.tiers.rig import (
    COLD,
    CONNECTION_MB_PER_S,
    TOPIC,
    Figure,
    bucket,
    cost_figure,
    create_topic,
    produce,
    tiered_broker,
    wait_until_cold,
)
from strandline.storage.remote.manifest.manifest import Manifest
from tests.support.broker import BrokerProcess

# As many as the broker may have under way (remote.log.*.pool.size).
PARALLEL_GETS = 8


def run_rewind(
    folder: Path, total_bytes: int, distance_ms: int, *, is_paced: bool = False
) -> Iterator[Figure]:
    """Everything is in the store; a consumer reads it twice, and raw GETs after each.

    A store 0 ms away is either as quick as memory, where reader and raw GETs are bound by the two
    cores alone, or `is_paced`: each connection brings what one of S3's does, as from farther away.
    No user has such a store, so only those farther away have goals for speed and CPU.

    The second read is as cold as the first: the GETs are counted. What the broker does once after
    its start (memory, indexes) is done by then, as is what the SDK of the raw GETs does.
    """
    where = f"{distance_ms} ms away"
    if is_paced and not distance_ms:
        where += f", {CONNECTION_MB_PER_S} MB/s a connection"
    with (
        bucket(distance_ms, is_paced=is_paced) as (endpoint, client),
        tiered_broker(folder, endpoint) as broker,
    ):
        create_topic(broker, TOPIC, **COLD)
        produce(broker, TOPIC, total_bytes)
        wait_until_cold(client, broker, total_bytes, partitions=1)
        await_quiet(broker.pid)
        (manifest,) = wait_until_cold(client, broker, total_bytes, partitions=1)
        reads = [
            _read(client, broker, endpoint, manifest, name, has_goals=distance_ms > 0)
            for name in (where, f"{where}, again")
        ]
    for read in reads:
        yield from read


def _read(
    client: object,
    broker: BrokerProcess,
    endpoint: str,
    manifest: Manifest,
    name: str,
    *,
    has_goals: bool,
) -> list[Figure]:
    """One cold read and the raw GETs after it."""
    await_quiet(broker.pid)
    before = counts(endpoint)
    load = ConsumeLoad(topic=TOPIC, count=manifest.end_offset)
    with consumer(broker.bootstrap, load) as ready, measuring(broker.pid) as measured:
        ready.run()
    after = counts(endpoint)
    raw_mb_per_s = plain_download(client, manifest, threads=PARALLEL_GETS)
    cold_mb_per_s = measured.mb_per_s(manifest.size_bytes)
    gets = {key: after.get(key, 0) - before.get(key, 0) for key in ("GET .log", "GET .meta")}
    allowed = manifest.size_bytes / DOWNLOAD_RANGE_BYTES + len(manifest.segments)
    # Only so is it a cold read.
    assert gets["GET .log"] >= manifest.size_bytes // DOWNLOAD_RANGE_BYTES, gets
    return [
        Figure(part="rewind", name=f"{name}: cold consume", value=cold_mb_per_s, unit="MB/s"),
        Figure(part="rewind", name=f"{name}: raw GETs", value=raw_mb_per_s, unit="MB/s"),
        Figure(
            part="rewind",
            name=f"{name}: cold / raw",
            value=cold_mb_per_s / raw_mb_per_s,
            unit="",
            goal=">= 0.95" if has_goals else "",
        ),
        cost_figure(
            "rewind",
            f"{name}: cold consume",
            measured,
            manifest.size_bytes,
            goal="<= 0.8" if has_goals else "",
        ),
        Figure(
            part="rewind",
            name=f"{name}: GETs / (one per 8 MiB and one per segment)",
            value=sum(gets.values()) / allowed,
            unit="",
            goal="<= 1",
        ),
    ]


def counts(endpoint: str) -> dict[str, int]:
    """Requests that the null S3 has seen."""
    with urllib.request.urlopen(f"{endpoint}/_counts", timeout=10) as answer:
        found = json.load(answer)
    assert isinstance(found, dict)
    return found
