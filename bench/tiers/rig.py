"""Shared rig of `bench.tiers.run`: the store, a tiered broker, topics and archived segments.

Sizes are in bytes, MB are 10^6 of them. The store is the null S3, near or as far as asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from bench.clients.rdkafka import ProduceLoad, producers
from bench.measure import Measured
from bench.run import null_s3, s3_client
from strandline.storage.remote.manifest.manifest import Manifest
from tests.support.broker import BrokerProcess, eventually

BUCKET = "bench"
TOPIC = "tiers"
RECORD_BYTES = 1000
BATCH_BYTES = 1_000_000
SEGMENT_BYTES = 64 * 1024 * 1024
CONNECTION_MB_PER_S = "90"
WAIT_S = 180.0

TIERED: Mapping[str, str] = {
    "segment.bytes": str(SEGMENT_BYTES),
    "retention.ms": "-1",
    "file.delete.delay.ms": "0",
}
COLD: Mapping[str, str] = {
    **TIERED,
    "remote.storage.enable": "true",
    "local.retention.ms": "1000",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number of one run. `goal` says what the project promises about it, if anything."""

    part: str
    name: str
    value: float
    unit: str
    goal: str = ""


def cost_figure(
    part: str, name: str, measured: Measured, size_bytes: int, *, goal: str = ""
) -> Figure:
    cost = measured.cpu_s_per_gb(size_bytes)
    return Figure(part=part, name=f"{name}, broker CPU", value=cost, unit="s/GB", goal=goal)


# --- the store, brokers and topics -----------------------------------------------------------


@contextmanager
def bucket(distance_ms: int = 0, *, is_paced: bool = False) -> Iterator[tuple[str, Any]]:
    """The endpoint of a null S3 that far away, with the bucket in it, and a client of it.

    A connection brings CONNECTION_MB_PER_S, as from S3, where the store is away or `is_paced`; else
    as much as the machine can copy, as from no S3.
    """
    paced = ["--first-byte-ms", str(distance_ms), "--connection-mb-per-s", CONNECTION_MB_PER_S]
    with null_s3(paced if distance_ms or is_paced else ()) as endpoint:
        client: Any = s3_client(endpoint)
        client.create_bucket(Bucket=BUCKET)
        yield endpoint, client


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
    _alter(broker, ResourceType.TOPIC, topic, config)


def alter_broker(broker: BrokerProcess, name: str, value: str | None) -> None:
    """Alters a key of the running broker; None gives it its default again."""
    _alter(broker, ResourceType.BROKER, "1", {name: value})


def _alter(
    broker: BrokerProcess, kind: ResourceType, of: str, config: Mapping[str, str | None]
) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    operations = {True: AlterConfigOpType.DELETE, False: AlterConfigOpType.SET}
    entries = [
        ConfigEntry(name, value, incremental_operation=operations[value is None])
        for name, value in config.items()
    ]
    resource = ConfigResource(kind, of, incremental_configs=entries)
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


# --- what is archived ------------------------------------------------------------------------


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


def wait_until_cold(
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
