"""A compacted topic with an archive and three replicas, whose leaders die meanwhile.

Consumers of each replica, and the lake, find the same records under the same offsets: the last one
of each key, and no tombstone that is old enough to go.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest
from confluent_kafka import KafkaError, Message, Producer

from strandline.spark_lake import scan
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.records.batch.record import iter_records
from tests.support.broker import eventually
from tests.support.wire import WireClient
from tests.system.calls import fetch, fetched_bytes
from tests.system.cluster.test_archive import Archived
from tests.system.cluster.test_several_brokers import WAIT_S

pytestmark = [pytest.mark.slow, pytest.mark.crash, pytest.mark.heavy]

TOPIC = "table"
KEYS = 60
ROUNDS = 5
EVERYBODY = (1, 2, 3)
COMPACTED = {
    "cleanup.policy": "compact",
    "min.insync.replicas": "2",
    "local.retention.ms": "500",
    # A round in the bucket begins with each segment that is archived.
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "500",
}
CLEANER = {"log.cleaner.backoff.ms": "200"}
Table = dict[bytes, bytes]


class Row(NamedTuple):
    offset: int
    key: bytes
    value: bytes | None


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Archived]:
    archived = Archived(tmp_path_factory.mktemp("tables"), settings=CLEANER)
    with archived.brokers as brokers:
        yield archived
        assert "Traceback" not in brokers.log_text(), brokers.log_text()[-4000:]


def test_a_table_is_the_same_at_each_replica_and_in_the_lake_after_its_leaders_died(
    cluster: Archived,
) -> None:
    """Each leader dies in the middle of a round, while segments are cleaned, copied and freed."""
    cluster.create(TOPIC, partitions=1, replicas=3, config=COMPACTED)
    table, changes = Table(), random.Random(7)
    for number in range(ROUNDS):
        wanted = [
            (b"%d" % key, None if changes.random() < 0.2 else b"%d of %d" % (number, key))
            for key in changes.sample(range(KEYS), KEYS)
        ]
        write(cluster, wanted[: KEYS // 2])
        if number in (1, 2, 3):
            eventually(lambda: cluster.in_sync(TOPIC, asked=1) == [*EVERYBODY])
            (leader,) = cluster.led_by(TOPIC, asked=1)
            os.kill(cluster.pid_of(leader), signal.SIGKILL)
        write(cluster, wanted[KEYS // 2 :])
        table |= {key: value for key, value in wanted if value is not None}
        table = {key: value for key, value in table.items() if (key, None) not in wanted}
        end_offset = (number + 1) * KEYS
        eventually(lambda end_offset=end_offset: cluster.archived(TOPIC) == end_offset)
    eventually(lambda: cluster.in_sync(TOPIC, asked=1) == [*EVERYBODY])
    assert len(table) < KEYS, "some keys are deleted"
    # Rounds in the bucket begin with what is archived: a record of another key for each.
    more = iter(range(1000))

    def are_gone() -> bool:
        value = b"%d" % next(more)
        write(cluster, [(b"more", value)])
        table[b"more"] = value
        end_offset = ROUNDS * KEYS + int(value) + 1
        eventually(lambda: cluster.archived(TOPIC) == end_offset)
        return all(row.value is not None for row in in_lake(cluster))

    eventually(are_gone)
    # What is archived and freed comes from the bucket, whoever is asked.
    end_offset = cluster.archived(TOPIC)
    for one in EVERYBODY:
        eventually(lambda one=one: cluster.local_start(TOPIC, one) == end_offset)
    (leader,) = cluster.led_by(TOPIC, asked=1)
    # A round in the bucket may still run.
    eventually(lambda: rows_at(cluster, leader, end_offset) == in_lake(cluster))
    rows = in_lake(cluster)
    assert {row.key: row.value for row in rows} == table
    for one in EVERYBODY:
        found = rows_at(cluster, one, end_offset)
        # A follower may know an archive that is not compacted as far as the leader's.
        assert {*rows} <= {*found}
        latest = {row.key: row.value for row in found}
        assert {key: value for key, value in latest.items() if value is not None} == table
    assert "whole" in cluster.run("archive", "verify", "--topic", TOPIC)


def write(cluster: Archived, wanted: Sequence[tuple[bytes, bytes | None]]) -> None:
    """Returns when all are acknowledged by all in sync, in this order."""
    failed: list[KafkaError] = []

    def note(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failed.append(error)

    servers = {"bootstrap.servers": cluster.brokers.bootstrap}
    producer = Producer({**servers, "enable.idempotence": True, "linger.ms": 1})
    for key, value in wanted:
        producer.produce(TOPIC, value, key, partition=0, on_delivery=note)
    assert producer.flush(WAIT_S) == 0
    assert failed == []


def in_lake(cluster: Archived) -> list[Row]:
    found = scan(cluster.url, TOPIC, columns=["offset", "key", "value"]).read_all().to_pylist()
    return sorted(Row(one["offset"], one["key"], one["value"]) for one in found)


def rows_at(cluster: Archived, node_id: int, end_offset: int) -> list[Row]:
    """All that a consumer gets from this broker, whoever leads (KIP-392)."""
    rows: list[Row] = []
    offset, until_s = 0, time.monotonic() + WAIT_S
    with WireClient(cluster.brokers.port + node_id - 1) as client:
        while offset < end_offset:
            assert time.monotonic() < until_s, (node_id, offset, end_offset)
            answer = fetch(client, TOPIC, offset, max_wait_ms=500)
            assert answer.error_code == 0, answer
            content = fetched_bytes(answer)
            for batch in walk(content):
                for record in iter_records(content, batch.header, batch.position):
                    if record.offset >= offset:
                        assert record.key is not None
                        value = None if record.value is None else bytes(record.value)
                        rows.append(Row(record.offset, bytes(record.key), value))
                # Compaction leaves batches without records, whose offsets count.
                offset = batch.header.last_offset + 1
    return rows
