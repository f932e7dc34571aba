"""Producer ids and idempotent produce: nothing twice, nothing missing, nobody mistaken."""

from __future__ import annotations

import pytest

from strandline.broker.protocol.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from tests.support.broker import BrokerProcess
from tests.support.wire import WireClient
from tests.system.calls import (
    MakeTopic,
    append,
    batch,
    end_offset,
    new_producer_id,
    produce,
    read_all,
)

pytestmark = pytest.mark.slow

INVALID_REQUEST = 42
OUT_OF_ORDER_SEQUENCE_NUMBER = 45
INVALID_PRODUCER_EPOCH = 47
SEQUENCE_MAX = 2**31 - 1
EPOCH_MAX = 2**15 - 1


def send(
    client: WireClient,
    topic: str,
    producer_id: int,
    sequence: int,
    *,
    count: int = 1,
    epoch: int = 0,
    partition: int = 0,
) -> tuple[int, int]:
    """Error code and base offset of one batch of a producer."""
    encoded = batch(
        count,
        value=b"%d:%d" % (epoch, sequence),
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )
    answer = produce(client, topic, encoded, partition=partition)
    return answer.error_code, answer.base_offset


# --- InitProducerId --------------------------------------------------------------------------


def test_every_producer_gets_an_id_of_its_own(broker: BrokerProcess) -> None:
    clients = [WireClient(broker.port) for _ in range(4)]
    sent = [
        (client, version, client.send(InitProducerIdRequest(transaction_timeout_ms=0), version))
        for client in clients
        for version in range(6)
    ]
    answers = [client.receive(InitProducerIdResponse, version, i) for client, version, i in sent]
    assert {(answer.error_code, answer.producer_epoch) for answer in answers} == {(0, 0)}
    assert len({answer.producer_id for answer in answers}) == len(answers)
    for client in clients:
        client.close()


def test_more_producers_than_a_block_of_ids_has_get_distinct_ids(broker: BrokerProcess) -> None:
    with WireClient(broker.port) as client:
        sent = [
            client.send(InitProducerIdRequest(transaction_timeout_ms=0), 4) for _ in range(1200)
        ]
        ids = [client.receive(InitProducerIdResponse, 4, i).producer_id for i in sent]
    assert len(set(ids)) == 1200
    assert min(ids) >= 0


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_producer_that_names_an_id_gets_another_one(client: WireClient, version: int) -> None:
    """Nobody can come between a producer and its sequence by naming its id, or get one twice."""
    producer_id = new_producer_id(client)
    given = {producer_id}
    for epoch in (0, 0, 41, EPOCH_MAX):
        request = InitProducerIdRequest(
            transaction_timeout_ms=0, producer_id=producer_id, producer_epoch=epoch
        )
        response = client.ask(request, InitProducerIdResponse, version)
        assert (response.error_code, response.producer_epoch) == (0, 0)
        assert response.producer_id not in given
        given.add(response.producer_id)


@pytest.mark.parametrize("version", [3, 4, 5])
def test_an_id_without_its_epoch_names_no_producer(client: WireClient, version: int) -> None:
    for producer_id, epoch in ((7, -1), (-1, 7)):
        request = InitProducerIdRequest(
            transaction_timeout_ms=0, producer_id=producer_id, producer_epoch=epoch
        )
        response = client.ask(request, InitProducerIdResponse, version)
        assert (response.error_code, response.producer_id) == (INVALID_REQUEST, -1)


# --- sequences -------------------------------------------------------------------------------


def test_a_repeated_batch_is_answered_with_the_offset_it_got(
    client: WireClient, topic: str
) -> None:
    """Five batches may be in flight, so any of the last five may come again."""
    producer_id = new_producer_id(client)
    first = [send(client, topic, producer_id, 3 * n, count=3) for n in range(5)]
    assert first == [(0, 0), (0, 3), (0, 6), (0, 9), (0, 12)]
    append(client, topic, batch())  # of somebody else, so that offsets and sequences differ
    again = [send(client, topic, producer_id, 3 * n, count=3) for n in range(5)]
    assert again == first
    assert end_offset(client, topic) == 16
    assert send(client, topic, producer_id, 15) == (0, 16)


def test_a_gap_in_the_sequence_is_refused(client: WireClient, topic: str) -> None:
    producer_id = new_producer_id(client)
    assert send(client, topic, producer_id, 0, count=3) == (0, 0)
    for wrong in (4, 100, SEQUENCE_MAX, 1, 2):
        assert send(client, topic, producer_id, wrong) == (OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    # A repeat must be the same batch, not one that overlaps it.
    assert send(client, topic, producer_id, 0, count=2)[0] == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(client, topic, producer_id, 0, count=4)[0] == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert end_offset(client, topic) == 3
    assert send(client, topic, producer_id, 3) == (0, 3)


def test_a_repeat_that_is_too_old_to_be_known_is_not_appended_again(
    client: WireClient, topic: str
) -> None:
    producer_id = new_producer_id(client)
    for sequence in range(7):
        assert send(client, topic, producer_id, sequence) == (0, sequence)
    assert send(client, topic, producer_id, 1)[0] == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert end_offset(client, topic) == 7


def test_sequences_wrap_around(client: WireClient, topic: str) -> None:
    producer_id = new_producer_id(client)
    assert send(client, topic, producer_id, SEQUENCE_MAX - 1, count=4) == (0, 0)
    assert send(client, topic, producer_id, SEQUENCE_MAX - 1, count=4) == (0, 0)
    assert send(client, topic, producer_id, 1)[0] == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(client, topic, producer_id, 2) == (0, 4)


def test_an_old_epoch_is_fenced_off_and_a_new_one_begins_at_0(
    client: WireClient, topic: str
) -> None:
    producer_id = new_producer_id(client)
    assert send(client, topic, producer_id, 0) == (0, 0)
    assert send(client, topic, producer_id, 1, epoch=2)[0] == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(client, topic, producer_id, 0, epoch=2) == (0, 1)
    for sequence in (0, 1):
        assert send(client, topic, producer_id, sequence)[0] == INVALID_PRODUCER_EPOCH
    assert send(client, topic, producer_id, 1, epoch=2) == (0, 2)
    assert end_offset(client, topic) == 3


def test_partitions_and_producers_are_independent(
    client: WireClient, make_topic: MakeTopic
) -> None:
    topic = make_topic(2)
    one, other = new_producer_id(client), new_producer_id(client)
    for sequence in range(3):
        for partition in range(2):
            assert send(client, topic, one, sequence, partition=partition)[0] == 0
        assert send(client, topic, other, sequence)[0] == 0
    assert end_offset(client, topic) == 6
    assert end_offset(client, topic, partition=1) == 3


def test_what_follows_a_lost_batch_is_refused_until_it_comes_again(
    client: WireClient, topic: str
) -> None:
    producer_id = new_producer_id(client)
    codes = [send(client, topic, producer_id, sequence)[0] for sequence in (0, 2, 3, 4)]
    assert codes == [0] + [OUT_OF_ORDER_SEQUENCE_NUMBER] * 3
    assert [send(client, topic, producer_id, s)[0] for s in (1, 2, 3, 4)] == [0] * 4
    values = [record.value for record in read_all(client, topic)]
    assert values == [b"0:%d" % sequence for sequence in range(5)]
