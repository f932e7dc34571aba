"""Readers of committed records: librdkafka over both tiers, and the lake over the bucket alone."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaError, TopicPartition

from strandline.spark_lake import scan
from tests.conftest import S3Bucket
from tests.system.soak.clients import _Thread
from tests.system.soak.libraries import POLL_S, QUIET
from tests.system.soak.model import Violations
from tests.system.soak.patience import PATIENCE
from tests.system.soak.transacted.model import CommittedPass, TransactionModel

STUCK_S = 120.0
PAUSE_S = 0.5


class CommittedReader(_Thread):
    """Reads every partition from its start to the last stable offset, over and over."""

    def __init__(
        self, bootstrap: str, model: TransactionModel, violations: Violations, *, place: str = ""
    ) -> None:
        super().__init__(f"reader of committed records{place}", violations)
        self.record_count = self.pass_count = 0
        self._bootstrap = bootstrap
        self._model = model

    def _run(self) -> None:
        while not self._stopping.is_set():
            for partition in self._model.partitions:
                if not partition.is_closed and self.read(partition.number) is not None:
                    self.pass_count += 1
            self._stopping.wait(PAUSE_S)

    def read(self, number: int) -> CommittedPass | None:
        """One pass; None if it was told to stop, or its partition was lost meanwhile."""
        reading = CommittedPass(self._model, number, self.name)
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 200,
                **QUIET,
            }
        )
        try:
            consumer.assign([TopicPartition(self._model.partitions[number].topic, number, 0)])
            return reading if self._read(consumer, reading) else None
        finally:
            consumer.close()

    def _read(self, consumer: Consumer, reading: CommittedPass) -> bool:
        moved_s = PATIENCE.now_s()
        while not self._stopping.is_set() and not reading.is_outdated:
            for message in consumer.consume(500, POLL_S):
                error = message.error()
                if error is None:
                    moved_s = PATIENCE.now_s()
                    self.record_count += 1
                    reading.accept(int(message.offset() or 0), bytes(message.value() or b""))
                elif error.code() == KafkaError._PARTITION_EOF:
                    reading.finish(int(message.offset() or 0))
                    return True
            if PATIENCE.now_s() - moved_s > STUCK_S:
                self._violations.add(f"{self.name}: nothing of {reading.number} for {STUCK_S} s")
                return False
        return False


def read_all(
    bootstrap: str, model: TransactionModel, violations: Violations, place: str
) -> list[CommittedPass]:
    """A pass over each partition, of a topic that nobody writes to."""
    reader = CommittedReader(bootstrap, model, violations, place=place)
    passes = [reader.read(partition.number) for partition in model.partitions]
    return [one for one in passes if one is not None]


def scan_all(bucket: S3Bucket, model: TransactionModel) -> list[CommittedPass]:
    """What the lake has of each partition; `finish` is up to who knows where the archive ends."""
    topic = model.partitions[0].topic
    options = {"s3.endpoint.url": bucket.endpoint_url}
    rows = scan(bucket.url, topic, columns=["partition", "offset", "value"], options=options)
    passes = [CommittedPass(model, one.number, "lake") for one in model.partitions]
    for row in rows.read_all().to_pylist():
        passes[row["partition"]].accept(row["offset"], row["value"])
    return passes
