"""kill -9 and start again: everything acknowledged is there, once, and clients notice the restart.

Each test kills a broker once, may damage what it left, and looks at what comes back.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

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
from tests.support.broker import BrokerProcess, eventually
from tests.support.wire import WireClient
from tests.system.calls import (
    EARLIEST,
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
from tests.system.restarting import (
    SMALL_SEGMENTS,
    kill_and_start,
)

pytestmark = [pytest.mark.slow, pytest.mark.crash]

UNKNOWN_TOPIC_OR_PARTITION = 3
OUT_OF_ORDER_SEQUENCE_NUMBER = 45
INVALID_PRODUCER_EPOCH = 47
FENCED_LEADER_EPOCH = 74
UNKNOWN_TOPIC_ID = 100


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

    def folder_count(topic: str) -> int:
        # One that was not whole yet is set aside under another name, and made anew.
        found = mortal.data.glob(f"{topic}-*")
        return sum(1 for path in found if path.name.rpartition("-")[2].isdigit())

    # Where this process had no turn for a while, the kill comes too late to show anything.
    for attempt in range(10):
        topic = f"{topic_name}.{attempt}"
        request = CreateTopicsRequest(topics=[new_topic(topic, partition_count)])
        with WireClient(mortal.port) as client:
            client.send(request, 7)
            eventually(partial(folder_count, topic), interval_s=0.001)
            mortal.kill()
        cut_off = folder_count(topic) < partition_count
        mortal.start()
        if cut_off:
            break
    assert cut_off
    with WireClient(mortal.port) as client:
        described = describe_topic(client, topic)
        assert (described.error_code, len(described.partitions)) == (0, partition_count)
        assert folder_count(topic) == partition_count
        for partition in range(partition_count):
            assert append(client, topic, batch(), partition=partition) == 0


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
