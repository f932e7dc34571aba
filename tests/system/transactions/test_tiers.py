"""Transactions over both tiers: either has what is committed, and no open one is copied."""

from __future__ import annotations

import shutil
import time

import pytest

from strandline.broker.cli import main
from strandline.broker.protocol.messages.fetch import FetchResponse
from strandline.broker.protocol.schema.errors import ErrorCode
from tests.support.broker import eventually
from tests.support.fault_proxy import FaultProxy
from tests.support.heavy import heavy
from tests.support.metrics import METRICS_ON, metric, metrics_port, samples
from tests.support.wire import WireClient
from tests.system.calls import (
    create_topic,
    fetch,
    fetch_request,
    fetch_topic,
    offset_at,
)
from tests.system.tiers.conftest import MakeBroker, archive, make_broker
from tests.system.tiers.tiered_broker import FREE_LOCALLY, TIERED, WAIT_S, Archive
from tests.system.transactions.committed import READ_COMMITTED, committed_values, take_committed
from tests.system.transactions.going_on import retried, write_on
from tests.system.transactions.wire_producer import WireProducer

__all__ = ["archive", "make_broker"]

pytestmark = [pytest.mark.slow, pytest.mark.s3]

TOPIC = "t"
WAITING = "strandline_remote_copy_waiting_segments"
HELD = "strandline_remote_copy_held_seconds"
# A segment has two of them.
VALUE_BYTES = 400_000
TRANSACTIONS = 12
PIECES_AT_ONCE = {"strandline.remote.active.segment.upload.ms": "200"}


def value(number: int) -> bytes:
    return b"%d:" % number + b"x" * VALUE_BYTES


def write_some(producer: WireProducer, first: int) -> list[bytes]:
    """Transactions of which each third is aborted; the values that are committed."""
    kept = []
    for number in range(first, first + TRANSACTIONS):
        producer.send(TOPIC, value(number))
        if number % 3 == 0:
            assert producer.abort() is ErrorCode.NONE
        else:
            assert producer.commit() is ErrorCode.NONE
            kept.append(value(number))
    return kept


@pytest.mark.parametrize("version", [heavy(1), 2])
def test_committed_records_are_read_from_both_tiers(
    make_broker: MakeBroker,
    archive: Archive,
    version: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    broker = make_broker(settings=METRICS_ON)
    broker.start()
    with WireClient(broker.port) as client, broker.client(TOPIC) as log:
        create_topic(client, TOPIC, 1, {**TIERED, **FREE_LOCALLY})
        producer = WireProducer(client, "tx", version=version)
        producer.begin()
        kept = write_some(producer, 0)
        broker.wait_until_archived(log)
        broker.wait_until_freed(log)
        assert committed_values(client, TOPIC) == kept
        stable_offset = fetch(client, TOPIC, log.offset_at(-1) - 1).last_stable_offset
        patient = WireProducer(client, "patient", version=version)
        patient.begin()
        patient.send(TOPIC, b"patient")
        begun_s = time.time()
        kept_behind = write_some(producer, 100)
        # Nothing above the last stable offset goes to the bucket, however much there is.
        eventually(lambda: len(broker.segment_files(TOPIC)) > 2, timeout_s=WAIT_S)
        assert committed_values(client, TOPIC) == kept
        assert archive.end_offset(TOPIC) <= stable_offset
        held = {"topic": TOPIC, "reason": "unstable"}
        eventually(lambda: metric(broker, WAITING, **held) > 0, timeout_s=WAIT_S)
        whose = {
            "transactional_id": patient.transactional_id,
            "producer_id": str(patient.producer_id),
            "start_offset": str(stable_offset),
        }
        assert metric(broker, HELD, topic=TOPIC, partition="0", **whose) >= 0
        main(["status", "--metrics", f"http://127.0.0.1:{metrics_port(broker)}"])
        told = f"{TOPIC}-0: {patient.transactional_id!r} (producer {patient.producer_id}) has had a"
        assert f"{told} transaction open since offset {stable_offset}" in capsys.readouterr().out
        # A restart knows since when, too.
        age_s = time.time() - begun_s
        broker.kill()
        broker.start()
    with WireClient(broker.port) as client, broker.client(TOPIC) as log:
        patient.client = client
        eventually(lambda: sum(samples(broker, HELD).values()) >= age_s, timeout_s=WAIT_S)
        assert patient.commit() is ErrorCode.NONE
        broker.wait_until_archived(log)
        broker.wait_until_freed(log)
        assert committed_values(client, TOPIC) == [*kept, b"patient", *kept_behind]
        cold = fetch(client, TOPIC, 0, isolation_level=READ_COMMITTED)
        assert cold.last_stable_offset == cold.high_watermark
    broker.kill()
    broker.start()
    with WireClient(broker.port) as client:
        assert committed_values(client, TOPIC) == [*kept, b"patient", *kept_behind]


def test_sessions_and_lookups_by_time_read_cold_transactions_as_hot_ones(
    make_broker: MakeBroker,
) -> None:
    # Later than any marker: these have the broker's time, and are found as well.
    soon_ms = int(time.time() * 1000) + 20 * 60_000

    def time_of(number: int) -> int:
        return soon_ms + 1000 * number

    broker = make_broker()
    broker.start()
    with WireClient(broker.port) as client, broker.client(TOPIC) as log:
        create_topic(client, TOPIC, 1, {**TIERED, **FREE_LOCALLY})
        producer = WireProducer(client, "tx", version=2)
        producer.begin()
        kept, offsets = [], []
        for number in range(TRANSACTIONS):
            code = producer.write(TOPIC, value(number), timestamp_ms=time_of(number))
            assert code is ErrorCode.NONE
            offsets.append(producer.base_offset)
            is_commit = number % 3 != 0
            assert producer.end(is_commit=is_commit) is ErrorCode.NONE
            kept += [value(number)] * is_commit
        code = producer.write(TOPIC, b"open", timestamp_ms=time_of(TRANSACTIONS))
        assert code is ErrorCode.NONE
        broker.wait_until_archived(log)
        assert broker.wait_until_freed(log) > offsets[TRANSACTIONS // 2]

        def found(number: int) -> int:
            at_ms = time_of(number)
            return offset_at(client, TOPIC, at_ms, isolation_level=READ_COMMITTED).offset

        # Also of aborted records, as in Kafka: only what is open is not found.
        assert [found(number) for number in range(TRANSACTIONS)] == offsets
        assert found(TRANSACTIONS) == -1
        assert offset_at(client, TOPIC, time_of(TRANSACTIONS)).offset == producer.base_offset
        assert values_in_session(client) == kept


def values_in_session(client: WireClient) -> list[bytes]:
    """Reads all that is committed in one fetch session."""
    values: list[bytes] = []
    offset, session_id, session_epoch = 0, 0, 0

    def is_at_end() -> bool:
        nonlocal offset, session_id, session_epoch
        request = fetch_request(
            fetch_topic(TOPIC, {0: offset}),
            isolation_level=READ_COMMITTED,
            session_id=session_id,
            session_epoch=session_epoch,
            max_wait_ms=500,
        )
        answer = client.ask(request, FetchResponse, 12)
        session_id, session_epoch = answer.session_id, session_epoch + 1
        for topic in answer.topics:
            for partition in topic.partitions:
                offset = take_committed(partition, offset, values)
                if offset == partition.last_stable_offset:
                    return True
        return False

    assert eventually(is_at_end, timeout_s=WAIT_S)
    return values


def begin_in_new_topic(client: WireClient, version: int) -> WireProducer:
    create_topic(client, TOPIC, 1, TIERED)
    producer = WireProducer(client, "tx", version=version)
    producer.begin()
    return producer


def send_to_archive(producer: WireProducer, record: bytes, archive: Archive) -> int:
    """Returns the end of the log when the archive has it, in a piece of the open segment."""
    producer.send(TOPIC, record)
    end_offset = fetch(producer.client, TOPIC, 0).high_watermark
    eventually(lambda: archive.tail_end_offset(TOPIC) == end_offset, timeout_s=WAIT_S)
    return end_offset


@pytest.mark.parametrize("version", [heavy(1), 2])
@pytest.mark.parametrize("is_commit", [True, heavy(False)], ids=["committed", "aborted"])
def test_a_partition_that_is_lost_from_its_disk_ends_a_transaction_as_its_coordinator_did(
    make_broker: MakeBroker,
    archive: Archive,
    fault_proxy: FaultProxy,
    version: int,
    is_commit: bool,
) -> None:
    """The bucket has its records in the open segment, and not its marker."""
    broker = make_broker(endpoint_url=fault_proxy.endpoint_url, settings=PIECES_AT_ONCE)
    broker.start()
    with WireClient(broker.port) as client:
        producer = begin_in_new_topic(client, version)
        producer.send(TOPIC, b"first")
        assert producer.commit() is ErrorCode.NONE
        end_offset = send_to_archive(producer, b"decided", archive)
        fault_proxy.go_away()
        assert producer.end(is_commit=is_commit) is ErrorCode.NONE
    if version == 1:
        broker.kill()
    else:
        broker.stop()
    shutil.rmtree(broker.data / f"{TOPIC}-0")
    fault_proxy.come_back()
    broker.start()
    kept = [b"first", b"decided"] if is_commit else [b"first"]
    with WireClient(broker.port) as client:
        eventually(lambda: is_stable_from(client, end_offset), timeout_s=WAIT_S)
        assert committed_values(client, TOPIC) == kept
        producer.client = client
        write_on(producer, TOPIC, [b"later"], refused_max=1)
        assert committed_values(client, TOPIC) == [*kept, b"later"]


@pytest.mark.parametrize("version", [heavy(1), 2])
@pytest.mark.heavy
def test_a_lost_partition_takes_the_end_that_was_decided_before_it_knew_its_archive(
    make_broker: MakeBroker, archive: Archive, fault_proxy: FaultProxy, version: int
) -> None:
    broker = make_broker(endpoint_url=fault_proxy.endpoint_url, settings=PIECES_AT_ONCE)
    broker.start()
    with WireClient(broker.port) as client:
        producer = begin_in_new_topic(client, version)
        end_offset = send_to_archive(producer, b"kept", archive)
    broker.kill()
    shutil.rmtree(broker.data / f"{TOPIC}-0")
    fault_proxy.go_away()
    broker.start()
    with WireClient(broker.port) as client:
        producer.client = client
        assert retried(producer.commit) is ErrorCode.NONE
        fault_proxy.come_back()
        eventually(lambda: is_stable_from(client, end_offset), timeout_s=WAIT_S)
        assert committed_values(client, TOPIC) == [b"kept"]


@pytest.mark.parametrize("is_commit", [True, heavy(False)], ids=["committed", "aborted"])
def test_a_partition_that_is_lost_with_its_coordinator_ends_a_transaction_as_the_archive_has_it(
    make_broker: MakeBroker, archive: Archive, is_commit: bool
) -> None:
    """The bucket has its first two records and its outcome, not the others and not its marker."""
    broker = make_broker()
    broker.start()
    # Not long before the marker: it would close a segment of old records, to be copied as well.
    now_ms = int(time.time() * 1000)
    with WireClient(broker.port) as client:
        producer = begin_in_new_topic(client, 2)
        for number in range(4):
            assert producer.write(TOPIC, value(number), timestamp_ms=now_ms) is ErrorCode.NONE
        assert producer.end(is_commit=is_commit) is ErrorCode.NONE
        eventually(lambda: archive.end_offset(TOPIC) > 0, timeout_s=WAIT_S)
    # The open segment has the rest, so nothing more is copied from here on.
    assert [int(path.stem) for path in broker.segment_files(TOPIC)] == [0, 2]
    broker.kill()
    for folder in (*broker.data.glob(f"{TOPIC}-*"), *broker.data.glob("__transaction_state-*")):
        shutil.rmtree(folder)
    broker.start()
    archived = [value(0), value(1)]
    with WireClient(broker.port) as client:
        eventually(lambda: is_stable_from(client, len(archived) + 1), timeout_s=WAIT_S)
        assert committed_values(client, TOPIC) == (archived if is_commit else [])


def is_stable_from(client: WireClient, offset: int) -> bool:
    """Whether the partition has records from that offset on, and none is undecided."""
    answer = fetch(client, TOPIC, 0)
    return answer.high_watermark >= offset and answer.last_stable_offset == answer.high_watermark
