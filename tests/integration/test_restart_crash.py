"""kill -9 and start again: everything acknowledged is there, once, and clients notice the restart.

Each test kills a broker once, may damage what it left, and looks at what comes back.
"""

from __future__ import annotations

import random
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from strandline.broker.protocol.messages.create_topics import CreateTopicsRequest
from strandline.broker.protocol.messages.fetch import FetchResponse
from strandline.broker.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from strandline.storage.records.compression import Codec
from strandline.storage.records.record import Record
from tests.integration.calls import (
    EARLIEST,
    FIRST_TIMESTAMP_MS,
    KEEP_EVERYTHING,
    append,
    batch,
    create_topic,
    delete_records,
    delete_topic,
    describe_topic,
    end_offset,
    fetch,
    fetch_request,
    fetch_topic,
    fetched_bytes,
    new_producer_id,
    new_topic,
    offset_at,
    produce,
    read_all,
    records_in,
)
from tests.support.broker import BrokerProcess, eventually
from tests.support.wire import WireClient

pytestmark = [pytest.mark.slow, pytest.mark.crash]

UNKNOWN_TOPIC_OR_PARTITION = 3
OUT_OF_ORDER_SEQUENCE_NUMBER = 45
INVALID_PRODUCER_EPOCH = 47
FENCED_LEADER_EPOCH = 74
UNKNOWN_TOPIC_ID = 100
SMALL_SEGMENTS = {"segment.bytes": "1048576"}


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that tests of this file may kill, if they start it again."""
    with BrokerProcess(tmp_path_factory.mktemp("mortal"), settings=KEEP_EVERYTHING) as running:
        yield running
        assert "Traceback" not in running.log_text(), running.log_text()[-4000:]


def kill_and_start(broker: BrokerProcess) -> None:
    broker.kill()
    broker.start()


def partition_folder(broker: BrokerProcess, topic: str, partition: int = 0) -> Path:
    return broker.data / f"{topic}-{partition}"


def last_segment(broker: BrokerProcess, topic: str) -> Path:
    return max(partition_folder(broker, topic).glob("*.log"))


# --- acknowledged records --------------------------------------------------------------------


@dataclass
class Writer:
    """Produces numbered batches to one partition until the connection breaks."""

    topic: str
    partition: int
    acks: int
    value: bytes
    acknowledged: list[int] = field(default_factory=list)
    sent_count: int = 0

    def run(self, port: int) -> None:
        try:
            with WireClient(port) as client:
                while True:
                    encoded = batch(2, value=b"%d " % self.sent_count + self.value)
                    self.sent_count += 1
                    answer = produce(
                        client, self.topic, encoded, partition=self.partition, acks=self.acks
                    )
                    assert answer.error_code == 0, answer
                    self.acknowledged.append(answer.base_offset)
        except OSError:
            return


def test_what_was_acknowledged_before_kill_9_is_there_once_and_in_order(
    mortal: BrokerProcess, topic_name: str
) -> None:
    """Four producers at full speed, two of them filling segments, killed in the middle."""
    with WireClient(mortal.port) as client:
        create_topic(client, topic_name, 4, SMALL_SEGMENTS)
    writers = [
        Writer(topic_name, partition, acks, value)
        for partition, (acks, value) in enumerate(
            [(-1, b""), (1, b""), (-1, b"x" * 50_000), (1, b"x" * 200_000)]
        )
    ]
    threads = [threading.Thread(target=writer.run, args=(mortal.port,)) for writer in writers]
    for thread in threads:
        thread.start()
    eventually(lambda: all(len(writer.acknowledged) > 60 for writer in writers))
    mortal.kill()
    for thread in threads:
        thread.join(60)
    mortal.start()
    with WireClient(mortal.port) as client:
        for writer in writers:
            found = read_all(client, topic_name, partition=writer.partition)
            assert [record.offset for record in found] == list(range(len(found)))
            numbers = [int((record.value or b"").split(b" ")[0]) for record in found]
            # One batch may be in the log whose answer the kill cut off.
            batch_count = len(numbers) // 2
            assert len(writer.acknowledged) <= batch_count <= writer.sent_count
            assert numbers == [number for number in range(batch_count) for _ in range(2)]
            assert writer.acknowledged == list(range(0, 2 * len(writer.acknowledged), 2))
            end = append(client, topic_name, batch(), partition=writer.partition)
            assert end == len(found)


# --- what clients notice ---------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Restarted:
    """A broker that was killed, and what was known of a topic with five records before."""

    broker: BrokerProcess
    topic: str
    topic_id: object
    epoch: int
    cluster_id: str
    producer_ids: list[int]
    bytes_before: bytes


@pytest.fixture(scope="module")
def restarted(mortal: BrokerProcess) -> Restarted:
    topic = "restarted"
    with WireClient(mortal.port) as client:
        topic_id = create_topic(client, topic)
        append(client, topic, batch(3), batch(2, codec=Codec.ZSTD))
        before = Restarted(
            broker=mortal,
            topic=topic,
            topic_id=topic_id,
            epoch=describe_topic(client, topic).partitions[0].leader_epoch,
            cluster_id=cluster_id_of(mortal),
            producer_ids=[new_producer_id(client) for _ in range(3)],
            bytes_before=fetched_bytes(fetch(client, topic)),
        )
    kill_and_start(mortal)
    return before


def cluster_id_of(broker: BrokerProcess) -> str:
    for line in (broker.data / "meta.properties").read_text().splitlines():
        if line.startswith("cluster.id="):
            return line.partition("=")[2]
    raise AssertionError("no cluster.id")


@pytest.fixture
def client(restarted: Restarted) -> Iterator[WireClient]:
    with WireClient(restarted.broker.port) as connected:
        yield connected


def test_the_leader_epoch_is_higher_after_a_restart(
    client: WireClient, restarted: Restarted
) -> None:
    epoch = describe_topic(client, restarted.topic).partitions[0].leader_epoch
    assert epoch > restarted.epoch


def test_a_client_with_the_epoch_of_before_is_fenced(
    client: WireClient, restarted: Restarted
) -> None:
    topic, old = restarted.topic, restarted.epoch
    new = describe_topic(client, topic).partitions[0].leader_epoch
    assert fetch(client, topic, current_leader_epoch=old).error_code == FENCED_LEADER_EPOCH
    assert fetch(client, topic, current_leader_epoch=new).error_code == 0
    listed = offset_at(client, topic, EARLIEST, current_leader_epoch=old)
    assert listed.error_code == FENCED_LEADER_EPOCH
    answer = epoch_end(client, topic, old, current_leader_epoch=old)
    assert answer[0] == FENCED_LEADER_EPOCH


def epoch_end(
    client: WireClient, topic: str, epoch: int, *, current_leader_epoch: int = -1
) -> tuple[int, int, int]:
    """Error code, epoch and end offset, as a client asks that validates its position."""
    wanted = OffsetForLeaderPartition(
        partition=0, current_leader_epoch=current_leader_epoch, leader_epoch=epoch
    )
    request = OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[OffsetForLeaderTopic(topic=topic, partitions=[wanted])]
    )
    response = client.ask(request, OffsetForLeaderEpochResponse, 4)
    ((found,),) = (answered.partitions for answered in response.topics)
    return found.error_code, found.leader_epoch, found.end_offset


def test_the_epoch_of_before_ended_where_the_new_one_begins(
    client: WireClient, restarted: Restarted
) -> None:
    topic, old = restarted.topic, restarted.epoch
    new = describe_topic(client, topic).partitions[0].leader_epoch
    end = end_offset(client, topic)
    assert epoch_end(client, topic, new) == (0, new, end)
    append(client, topic, batch())
    code, epoch, ended_at = epoch_end(client, topic, old)
    assert (code, epoch, ended_at) == (0, old, 5)
    assert epoch_end(client, topic, new) == (0, new, end_offset(client, topic))


def test_a_reader_of_records_that_were_never_here_is_told_where_the_logs_part(
    client: WireClient, restarted: Restarted
) -> None:
    """KIP-595: it says which epoch it read last, and that epoch ended before its offset."""
    append(client, restarted.topic, batch(5))
    offset = end_offset(client, restarted.topic) - 1
    for last_fetched_epoch, diverges in ((restarted.epoch, True), (-1, False)):
        wanted = fetch_topic(restarted.topic, {0: offset}, last_fetched_epoch=last_fetched_epoch)
        request = fetch_request(wanted, max_wait_ms=60_000, min_bytes=10**6 * diverges)
        response = client.ask(request, FetchResponse, 12)
        ((answer,),) = (answered.partitions for answered in response.topics)
        assert answer.error_code == 0
        assert bool(records_in(answer)) != diverges
        if diverges:
            assert answer.diverging_epoch is not None
            assert answer.diverging_epoch.epoch == restarted.epoch
            assert answer.diverging_epoch.end_offset == 5
        else:
            assert answer.diverging_epoch is None


def test_topic_ids_and_the_cluster_id_stay(client: WireClient, restarted: Restarted) -> None:
    assert describe_topic(client, restarted.topic).topic_id == restarted.topic_id
    assert cluster_id_of(restarted.broker) == restarted.cluster_id


def test_the_same_bytes_are_fetched_after_a_restart(
    client: WireClient, restarted: Restarted
) -> None:
    answer = fetch(client, restarted.topic, partition_max_bytes=len(restarted.bytes_before))
    assert fetched_bytes(answer) == restarted.bytes_before


def test_producer_ids_are_not_given_twice(client: WireClient, restarted: Restarted) -> None:
    after = [new_producer_id(client) for _ in range(3)]
    assert len({*restarted.producer_ids, *after}) == 6


def test_deleted_records_stay_deleted(mortal: BrokerProcess, topic_name: str) -> None:
    """The answer to DeleteRecords comes when the new log start is durable."""
    with WireClient(mortal.port) as client:
        create_topic(client, topic_name)
        append(client, topic_name, batch(10))
        assert delete_records(client, topic_name, 4).low_watermark == 4
    kill_and_start(mortal)
    with WireClient(mortal.port) as client:
        assert offset_at(client, topic_name, EARLIEST).offset == 4
        assert [record.offset for record in read_all(client, topic_name)] == list(range(4, 10))


def test_a_deleted_topic_stays_deleted_and_its_successor_is_another(
    mortal: BrokerProcess, topic_name: str
) -> None:
    gone = f"{topic_name}-gone"
    with WireClient(mortal.port) as client:
        create_topic(client, gone, 2)
        first_id = create_topic(client, topic_name, 2)
        append(client, topic_name, batch(10), partition=1)
        delete_topic(client, gone)
        delete_topic(client, topic_name)
        second_id = create_topic(client, topic_name, 2)
        append(client, topic_name, batch(1, value=b"new"), partition=1)
    kill_and_start(mortal)
    with WireClient(mortal.port) as client:
        assert describe_topic(client, gone).error_code == UNKNOWN_TOPIC_OR_PARTITION
        assert describe_topic(client, topic_name).topic_id == second_id != first_id
        assert fetch(client, first_id, partition=1).error_code == UNKNOWN_TOPIC_ID
        assert [r.value for r in read_all(client, topic_name, partition=1)] == [b"new"]


def test_a_topic_whose_creation_was_cut_off_is_there_whole_or_not_at_all(
    mortal: BrokerProcess, topic_name: str
) -> None:
    """Killed with some of 200 folders made: what the metadata log has is finished at the start."""
    partition_count = 200
    request = CreateTopicsRequest(topics=[new_topic(topic_name, partition_count)])

    def folder_count() -> int:
        # One that was not whole yet is set aside under another name, and made anew.
        found = mortal.data.glob(f"{topic_name}-*")
        return sum(1 for path in found if path.name.rpartition("-")[2].isdigit())

    with WireClient(mortal.port) as client:
        client.send(request, 7)
        eventually(folder_count, interval_s=0.001)
        mortal.kill()
    cut_off = folder_count() < partition_count
    mortal.start()
    with WireClient(mortal.port) as client:
        described = describe_topic(client, topic_name)
        assert (described.error_code, len(described.partitions)) == (0, partition_count)
        assert folder_count() == partition_count
        for partition in range(partition_count):
            assert append(client, topic_name, batch(), partition=partition) == 0
    assert cut_off, "the kill came too late to show anything"


def test_a_producer_is_known_after_a_crash(mortal: BrokerProcess, topic_name: str) -> None:
    """Rebuilt from the log: all five last batches, the sequence, the epoch."""
    with WireClient(mortal.port) as client:
        create_topic(client, topic_name)
        producer_id = new_producer_id(client)

        def send(client: WireClient, sequence: int, epoch: int = 1) -> tuple[int, int]:
            encoded = batch(
                2, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
            )
            answer = produce(client, topic_name, encoded)
            return answer.error_code, answer.base_offset

        sent = [send(client, sequence) for sequence in range(0, 14, 2)]
        assert sent == [(0, offset) for offset in range(0, 14, 2)]
    kill_and_start(mortal)
    with WireClient(mortal.port) as client:
        assert [send(client, sequence) for sequence in range(4, 14, 2)] == sent[2:]
        assert send(client, 16)[0] == OUT_OF_ORDER_SEQUENCE_NUMBER
        assert send(client, 0, epoch=0)[0] == INVALID_PRODUCER_EPOCH
        assert end_offset(client, topic_name) == 14
        assert send(client, 14) == (0, 14)


# --- damage ----------------------------------------------------------------------------------


def half_a_batch(base_offset: int) -> bytes:
    whole = stamped(base_offset)
    return whole[: len(whole) // 2]


def stamped(base_offset: int) -> bytes:
    """A batch as the broker stores it."""
    return struct.pack(">qii", base_offset, len(batch(2)) - 12, 0)[:12] + batch(2)[12:]


def with_a_flipped_bit(base_offset: int) -> bytes:
    damaged = bytearray(stamped(base_offset))
    damaged[-1] ^= 1
    return bytes(damaged)


GARBAGE: dict[str, Callable[[int], bytes]] = {
    "random bytes": lambda _: random.Random(7).randbytes(5000),
    "zeros": lambda _: bytes(70_000),
    "half a batch": half_a_batch,
    "a header only": lambda end: stamped(end)[:61],
    "eleven bytes": lambda end: stamped(end)[:11],
    "a batch with a flipped bit": with_a_flipped_bit,
    "a batch of another place": lambda end: stamped(end + 1000),
    "a batch that goes back": lambda _: stamped(0),
}


def test_garbage_at_the_tail_of_a_segment_is_cut(mortal: BrokerProcess, topic_name: str) -> None:
    """One topic for each kind of garbage; all the records before it stay."""
    topics = {what: f"{topic_name}-{number}" for number, what in enumerate(GARBAGE)}
    sizes: dict[str, int] = {}
    with WireClient(mortal.port) as client:
        for topic in topics.values():
            create_topic(client, topic)
            append(client, topic, *[batch(2)] * 5)
    mortal.kill()
    for what, topic in topics.items():
        segment = last_segment(mortal, topic)
        sizes[topic] = segment.stat().st_size
        with open(segment, "ab") as file:
            file.write(GARBAGE[what](10))
    mortal.start()
    with WireClient(mortal.port) as client:
        for what, topic in topics.items():
            assert last_segment(mortal, topic).stat().st_size == sizes[topic], what
            assert [record.offset for record in read_all(client, topic)] == list(range(10)), what
            assert append(client, topic, batch(2)) == 10, what
            assert len(read_all(client, topic)) == 12, what
    assert "log repaired" in mortal.log_text()


def test_a_torn_last_batch_is_cut_and_what_lies_before_it_stays(
    mortal: BrokerProcess, topic_name: str
) -> None:
    """As after a power cut: the file ends in the middle of the last batch."""
    with WireClient(mortal.port) as client:
        create_topic(client, topic_name)
        append(client, topic_name, *[batch(3)] * 3)
    mortal.kill()
    segment = last_segment(mortal, topic_name)
    with open(segment, "r+b") as file:
        file.truncate(segment.stat().st_size - 10)
    mortal.start()
    with WireClient(mortal.port) as client:
        assert [record.offset for record in read_all(client, topic_name)] == list(range(6))
        assert append(client, topic_name, batch()) == 6


def written_segments(client: WireClient, topic: str) -> list[Record]:
    """Fills four segments; what was written."""
    create_topic(client, topic, 1, {**SMALL_SEGMENTS, "index.interval.bytes": "4096"})
    for number in range(40):
        append(
            client,
            topic,
            batch(10, value=b"x" * 9000, first_timestamp_ms=FIRST_TIMESTAMP_MS + 10 * number),
        )
    return read_all(client, topic)


def remove(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def garble(path: Path) -> None:
    path.write_bytes(random.Random(11).randbytes(path.stat().st_size))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


@pytest.mark.parametrize("stop", [BrokerProcess.kill, BrokerProcess.stop])
def test_indexes_that_are_gone_or_damaged_are_rebuilt(
    mortal: BrokerProcess, topic_name: str, stop: Callable[[BrokerProcess], object]
) -> None:
    """After a clean stop as well, when nobody expects it."""
    damages: dict[str, Callable[[Path], None]] = {
        "removed": remove,
        "emptied": empty,
        "garbled": garble,
        "cut": cut,
    }
    topics = {what: f"{topic_name}-{what}" for what in damages}
    with WireClient(mortal.port) as client:
        written = {what: written_segments(client, topic) for what, topic in topics.items()}
    stop(mortal)
    for what, topic in topics.items():
        indexes = [
            path
            for path in partition_folder(mortal, topic).iterdir()
            if path.suffix in {".index", ".timeindex"} and path.stat().st_size > 5
        ]
        assert len(indexes) >= 6
        for path in indexes:
            damages[what](path)
    mortal.start()
    with WireClient(mortal.port) as client:
        for what, topic in topics.items():
            for offset in (0, 7, 123, 124, 125, 255, 399):
                (first, *_) = records_in(fetch(client, topic, offset))
                assert first.offset == offset - offset % 10, (what, offset)
                found = offset_at(client, topic, FIRST_TIMESTAMP_MS + offset)
                assert (found.offset, found.timestamp) == (
                    offset,
                    FIRST_TIMESTAMP_MS + offset,
                ), what
            assert read_all(client, topic) == written[what]
            segments = sorted(partition_folder(mortal, topic).glob("*.log"))
            assert len(segments) >= 4
            for segment in segments[:-1]:
                assert segment.with_suffix(".index").stat().st_size > 0, (what, segment)
                assert segment.with_suffix(".timeindex").stat().st_size > 0, (what, segment)


def test_a_missing_segment_in_the_middle_ends_the_log_there_and_is_said(
    mortal: BrokerProcess, topic_name: str
) -> None:
    """A log is a prefix of what was appended, never one with a hole."""
    with WireClient(mortal.port) as client:
        written_segments(client, topic_name)
    mortal.kill()
    segments = sorted(partition_folder(mortal, topic_name).glob("*.log"))
    segments[1].unlink()
    mortal.start()
    with WireClient(mortal.port) as client:
        found = [record.offset for record in read_all(client, topic_name)]
        assert found == list(range(int(segments[1].stem)))
        assert append(client, topic_name, batch()) == len(found)
    assert "log repaired" in mortal.log_text()
