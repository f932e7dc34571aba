"""Who reads committed values out of both tiers: each must see the same ones.

consumer   a reader of committed records, of the broker that wrote them: hot and cold
restored   the same, of a broker whose disk was lost: `strandline restore` made it anew
scan       the lake in Python, from the bucket alone
jvm        the lake's reader inside Spark's JVM, from the bucket alone
python     the lake's reader in Spark's Python workers
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from strandline.spark_lake import load, scan
from tests.conftest import S3Bucket
from tests.support.broker import BrokerProcess
from tests.support.wire import WireClient
from tests.system.tiers.restoring import run_restore
from tests.system.tiers.tiered_broker import TieredBroker
from tests.system.transactions.committed import committed_values

COLUMNS = ("partition", "offset", "value")
ENGINES = ("jvm", "python")


def consumer_values(broker: BrokerProcess, topic: str, partitions: int) -> list[bytes]:
    """In order of partition and offset, as from all others here."""
    with WireClient(broker.port) as client:
        return [
            value
            for partition in range(partitions)
            for value in committed_values(client, topic, partition=partition)
        ]


def restored_values(folder: Path, lost: TieredBroker, topic: str, partitions: int) -> list[bytes]:
    """The disk of a broker that is dead is gone: what one made from its bucket has."""
    assert not lost.running
    restored = TieredBroker(folder, lost.bucket, settings=lost.settings)
    outcome = run_restore(restored)
    assert outcome.returncode == 0, outcome.stderr
    with restored:
        return consumer_values(restored, topic, partitions)


def scan_values(bucket: S3Bucket, topic: str) -> list[bytes]:
    options = {"s3.endpoint.url": bucket.endpoint_url}
    rows = scan(bucket.url, topic, columns=COLUMNS, options=options).read_all()
    return in_order(rows.to_pylist())


def spark_values(session: SparkSession, bucket: S3Bucket, topic: str, engine: str) -> list[bytes]:
    options = {"s3.endpoint.url": bucket.endpoint_url, "engine": engine}
    frame = load(session, bucket.url, topic, columns=COLUMNS, options=options)
    return in_order([row.asDict() for row in frame.collect()])


def in_order(rows: list[dict[str, object]]) -> list[bytes]:
    """The values of rows in order of partition and offset."""
    ordered = sorted(rows, key=lambda row: (row["partition"], row["offset"]))
    return [bytes(row["value"]) for row in ordered]  # type: ignore[call-overload]
