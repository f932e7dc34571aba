"""Measures start time with a bare client: until every partition has acknowledged a record.

    connect ──> Metadata until every partition has a leader ──> Produce to all of them at once
       └────────────── again, on a new connection, when the broker closes it ──────────────┘

librdkafka is no stopwatch for this: a client that has just been made learns of a broker in steps of
50 ms of its own, two of which were a quarter of the shortest start. This one connects, asks and
hears within a millisecond of the broker. Both brokers get the same bytes: Metadata version 8,
Produce version 7 with the batches of all partitions in one request, as Java's producer sends them.
What a partition that is not ready yet refuses is sent again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence, Set

from strandline.broker.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from strandline.broker.protocol.messages.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)
from strandline.storage.records.batch.record import Record, encode_batch
from tests.support.wire import WireClient

METADATA_VERSION, PRODUCE_VERSION = 8, 7
RECORD_BYTES = 100
PRODUCE_TIMEOUT_MS = 30_000
# An answer about thousands of partitions costs a broker that starts more than asking late.
FEW_PARTITIONS = 100
FEW_INTERVAL_S, MANY_INTERVAL_S = 0.002, 0.1
# What a partition says that is about to be led here: UNKNOWN_TOPIC_OR_PARTITION,
# LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER, REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS.
NOT_YET = frozenset({3, 5, 6, 7, 19})


def await_acknowledged(port: int, topic: str, partitions: int, *, timeout_s: float) -> None:
    """Returns when each partition of the topic has acknowledged a record. Raises TimeoutError, and
    RuntimeError if a partition refuses it for good.
    """
    interval_s = FEW_INTERVAL_S if partitions < FEW_PARTITIONS else MANY_INTERVAL_S
    deadline_s = time.monotonic() + timeout_s
    missing: Set[int] = frozenset(range(partitions))
    client: WireClient | None = None
    try:
        while True:
            try:
                if client is None:
                    client = WireClient(port, client_id="bench")
                if _led(client, topic) >= missing:
                    missing = _refused(client, topic, sorted(missing))
                    if not missing:
                        return
            except ConnectionError:
                if client is not None:
                    client.close()
                client = None
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{len(missing)} partitions do not serve after {timeout_s} s")
            time.sleep(interval_s)
    finally:
        if client is not None:
            client.close()


def _led(client: WireClient, topic: str) -> Set[int]:
    """The partitions of the topic that have a leader."""
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
    )
    (found,) = client.ask(request, MetadataResponse, METADATA_VERSION).topics
    return {one.partition_index for one in found.partitions if one.leader_id >= 0}


def _refused(client: WireClient, topic: str, partitions: Sequence[int]) -> Set[int]:
    """Sends a record to each of the partitions; those that have not taken it yet."""
    now_ms = int(time.time() * 1000)
    record = Record(offset=0, timestamp_ms=now_ms, key=None, value=b"r" * RECORD_BYTES)
    batch = memoryview(encode_batch([record]))
    request = ProduceRequest(
        acks=1,
        timeout_ms=PRODUCE_TIMEOUT_MS,
        topics=[
            ProduceTopic(
                name=topic,
                partitions=[ProducePartition(index=index, records=batch) for index in partitions],
            )
        ],
    )
    (answered,) = client.ask(request, ProduceResponse, PRODUCE_VERSION).topics
    errors = {one.index: one.error_code for one in answered.partitions if one.error_code}
    if errors.keys() - set(partitions) or set(errors.values()) - NOT_YET:
        raise RuntimeError(f"records of {topic} are refused: {set(errors.values())}")
    return errors.keys()
