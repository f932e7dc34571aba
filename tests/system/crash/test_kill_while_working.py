"""kill -9 while clients produce and segments are uploaded, at moments that nobody chose."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from strandline.storage.records.batch.record import Record
from tests.conftest import S3Bucket
from tests.support.broker import eventually
from tests.support.fault_proxy import Action, FaultProxy, Rule
from tests.support.heavy import heavy
from tests.system.tiers.conftest import MakeBroker
from tests.system.tiers.log_client import LATEST, end_of, make_batches
from tests.system.tiers.tiered_broker import (
    ARCHIVE_ALL,
    FREE_LOCALLY,
    SEGMENT_BYTES,
    TIERED,
    WAIT_S,
    Archive,
    TieredBroker,
)

pytestmark = [pytest.mark.slow, pytest.mark.s3, pytest.mark.crash]

TIERED_TOPIC, LOCAL_TOPIC = "tiered", "local"
PARTITIONS = 2
KILLS = 3
# How many records the producer has in flight at most; enough for several batches per partition.
UNACKNOWLEDGED_MAX = 5_000
VALUE_BYTES = 2_000
FLUSH_TIMEOUT_S = 60.0
SEED = 20


@dataclass(slots=True)
class KeenProducer:
    """An idempotent librdkafka producer in a thread; it goes on whatever the broker does."""

    bootstrap: str
    acknowledged: dict[tuple[str, int, int], bytes] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    _sent_count: int = 0
    _stopping: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="keen producer", daemon=True)
        self._thread.start()

    def stop(self) -> int:
        """Waits until everything is acknowledged; how many records were sent."""
        self._stopping.set()
        assert self._thread is not None
        self._thread.join(FLUSH_TIMEOUT_S + 10)
        assert not self._thread.is_alive()
        return self._sent_count

    def _run(self) -> None:
        try:
            self._produce()
        except KafkaException as error:
            self.failures.append(str(error))

    def _produce(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "compression.type": "lz4",
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.ms": 50,
                # It would print a line for every attempt to connect to a dead broker.
                "log_level": 0,
            }
        )
        chance = random.Random(SEED)
        while not self._stopping.is_set():
            for topic in (TIERED_TOPIC, LOCAL_TOPIC):
                value = b"%d " % self._sent_count + chance.randbytes(VALUE_BYTES)
                producer.produce(
                    topic,
                    partition=self._sent_count // 2 % PARTITIONS,
                    value=value,
                    on_delivery=self._delivered,
                )
                self._sent_count += 1
            producer.poll(0)
            while len(producer) > UNACKNOWLEDGED_MAX and not self._stopping.is_set():
                producer.poll(0.05)
        left = producer.flush(FLUSH_TIMEOUT_S)
        if left:
            self.failures.append(f"{left} records were never answered")

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failures.append(str(error))
            return
        place = (str(message.topic()), int(message.partition() or 0), int(message.offset() or 0))
        if place in self.acknowledged:
            self.failures.append(f"{place} was given out twice")
        self.acknowledged[place] = bytes(message.value() or b"")


def read_all(broker: TieredBroker, topic: str, partition: int) -> Iterator[Record]:
    with broker.client(topic, partition) as client:
        yield from client.read_records(0, client.offset_at(LATEST))


def test_no_acknowledged_record_is_lost_or_doubled_by_kills_while_producing_and_uploading(
    make_broker: MakeBroker, archive: Archive
) -> None:
    broker = make_broker()
    broker.start()
    for topic, config in ((TIERED_TOPIC, {**TIERED, **FREE_LOCALLY}), (LOCAL_TOPIC, {})):
        with broker.client(topic) as client:
            client.create_topic(config, partitions=PARTITIONS)
    producer = KeenProducer(broker.bootstrap)
    producer.start()
    chance = random.Random(SEED)
    for _ in range(KILLS):
        grown(archive, producer)
        time.sleep(chance.uniform(0, 0.3))  # Any moment will do, so there is nothing to wait for.
        broker.kill()
        broker.start()
        assert producer.failures == []
    grown(archive, producer)
    sent_count = producer.stop()
    assert producer.failures == []
    assert len(producer.acknowledged) == sent_count

    values: Counter[bytes] = Counter()
    for topic in (TIERED_TOPIC, LOCAL_TOPIC):
        for partition in range(PARTITIONS):
            for expected_offset, record in enumerate(read_all(broker, topic, partition)):
                assert record.offset == expected_offset
                assert record.value is not None
                assert producer.acknowledged[topic, partition, record.offset] == record.value
                values[record.value] += 1
    assert values.total() == sent_count
    assert max(values.values()) == 1
    for partition in range(PARTITIONS):
        with broker.client(TIERED_TOPIC, partition) as client:
            broker.wait_until_archived(client)
    archive.check_uploads(TIERED_TOPIC, PARTITIONS)


def grown(archive: Archive, producer: KeenProducer) -> None:
    """Returns when both the archive and the number of acknowledged records have grown."""
    uploads, acknowledged = len(archive.uploads()), len(producer.acknowledged)
    eventually(
        lambda: (
            producer.failures
            or (len(archive.uploads()) > uploads and len(producer.acknowledged) > acknowledged)
        ),
        timeout_s=WAIT_S,
    )


@pytest.mark.parametrize("victim", [heavy(r"\.log"), r"manifest\.json"])
def test_a_kill_in_the_middle_of_an_upload_leaves_a_log_that_is_archived_anew(
    make_broker: MakeBroker,
    archive: Archive,
    s3_bucket: S3Bucket,
    fault_proxy: FaultProxy,
    victim: str,
) -> None:
    batches = make_batches(size_bytes=5 * SEGMENT_BYTES // 2)
    stuck = fault_proxy.add(Rule(action=Action.HANG, method="PUT", path=victim))
    broker = make_broker(endpoint_url=fault_proxy.endpoint_url)
    broker.start()
    with broker.client("uploaded") as client:
        client.create_topic({**TIERED, **ARCHIVE_ALL})
        client.produce(batches)
        eventually(lambda: stuck.hit_count, timeout_s=WAIT_S)
        broker.kill()
    fault_proxy.clear()
    broker.start()
    with broker.client("uploaded") as client:
        assert client.read(0, end_of(batches)) == batches
        assert broker.wait_until_all_cold(client) == end_of(batches)
        assert client.read(0, end_of(batches)) == batches
    archive.check_uploads("uploaded")


INSPECTOR = "strandline.storage.tiering.copy.inspector"


def test_a_killed_inspection_process_is_replaced_and_never_outlives_its_broker(
    broker: TieredBroker, archive: Archive
) -> None:
    half = make_batches(size_bytes=3 * SEGMENT_BYTES // 2)
    rest = make_batches(base_offset=end_of(half), size_bytes=2 * SEGMENT_BYTES)
    with broker.client("inspected") as client:
        client.create_topic({**TIERED, **FREE_LOCALLY})
        client.produce(half)
        broker.wait_until_archived(client)
        (first,) = inspectors_of(broker.pid)
        os.kill(first, signal.SIGKILL)
        client.produce(rest)
        broker.wait_until_archived(client)
        assert client.read(0, end_of(rest)) == half + rest
    (second,) = inspectors_of(broker.pid)
    assert second != first
    # The one that downloads as well, if so much was read cold that there is one.
    children = children_of(broker.pid)
    broker.kill()
    eventually(lambda: not any(map(is_alive, children)), timeout_s=WAIT_S)
    archive.check_uploads("inspected")


@dataclass(frozen=True, slots=True)
class Child:
    """A process, told from a later one of the same number by when it began."""

    pid: int
    start_ticks: int
    command: str


def inspectors_of(parent: int) -> list[int]:
    return [child.pid for child in children_of(parent) if INSPECTOR in child.command]


def children_of(parent: int) -> list[Child]:
    """The child processes that are not dead."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    found = [(pid, state_of(pid)) for pid in pids]
    return [
        Child(pid, state.start_ticks, command_of(pid))
        for pid, state in found
        if state is not None and state.parent == parent
    ]


def is_alive(child: Child) -> bool:
    state = state_of(child.pid)
    return state is not None and state.start_ticks == child.start_ticks


@dataclass(frozen=True, slots=True)
class State:
    parent: int
    start_ticks: int


def state_of(pid: int) -> State | None:
    """None for a dead process."""
    try:
        # pid (name, which may hold anything) state parent ...
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else State(int(fields[1]), int(fields[19]))


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):
        return ""


@pytest.mark.heavy
def test_a_multipart_upload_that_was_killed_is_found_and_the_segment_uploaded_again(
    make_broker: MakeBroker, archive: Archive, fault_proxy: FaultProxy
) -> None:
    # Above 64 MiB a segment goes in parts; incompressible, or it would not be that large.
    batches = make_batches(size_bytes=66 << 20, record_count=1, record_bytes=1_000_000)
    stuck = fault_proxy.add(Rule(action=Action.HANG, method="PUT", path="partNumber=3"))
    broker = make_broker(
        endpoint_url=fault_proxy.endpoint_url, settings={"log.segment.bytes": str(65 << 20)}
    )
    broker.start()
    with broker.client("large") as client:
        client.create_topic({**TIERED, **FREE_LOCALLY})
        client.produce(batches)
        eventually(lambda: stuck.hit_count, timeout_s=WAIT_S)
        broker.kill()
    fault_proxy.clear()
    # Parts are no objects, so they cannot be orphans; the store finds them by themselves.
    assert archive.orphans() == ()
    assert archive.store.abort_uploads("topics/", older_than_ms=-60_000) == 1
    broker.start()
    with broker.client("large") as client:
        broker.wait_until_archived(client)
        broker.wait_until_freed(client)
        assert client.read(0, end_of(batches), bytes_max=8 << 20) == batches
    archive.check_uploads("large")
    assert archive.store.abort_uploads("topics/", older_than_ms=-60_000) == 0
