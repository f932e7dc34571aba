"""Incremental fetch sessions (KIP-227): only what is new comes, and nothing is forgotten."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

import pytest

from strandline.broker.protocol.messages.fetch import (
    FetchResponse,
    FetchResponsePartition,
    ForgottenTopic,
)
from tests.support.broker import BrokerProcess
from tests.support.wire import WireClient
from tests.system.calls import (
    MakeTopic,
    append,
    batch,
    create_topic,
    delete_records,
    delete_topic,
    describe_topic,
    fetch_request,
    fetch_topic,
    records_in,
)

pytestmark = pytest.mark.slow

OFFSET_OUT_OF_RANGE = 1
UNKNOWN_TOPIC_OR_PARTITION = 3
FETCH_SESSION_ID_NOT_FOUND = 70
INVALID_FETCH_SESSION_EPOCH = 71
UNKNOWN_TOPIC_ID = 100
INCONSISTENT_TOPIC_ID = 103
FETCH_SESSION_TOPIC_ID_ERROR = 106

NO_SESSION = 0
FULL_EPOCH = 0
FINAL_EPOCH = -1
LONG_MS = 60_000
INCREMENTAL_VERSIONS = [7, 11, 12, 13, 18]


class Session:
    """A consumer's side of one fetch session."""

    def __init__(
        self,
        client: WireClient,
        topic: str,
        version: int,
        *,
        topic_id: str | uuid.UUID | None = None,
    ) -> None:
        self.client = client
        self.version = version
        self.topic: str | uuid.UUID = topic_id or topic
        if version >= 13 and topic_id is None:
            self.topic = describe_topic(client, topic).topic_id
        self.session_id = NO_SESSION
        self.epoch = FULL_EPOCH

    def ask(
        self,
        offsets: Mapping[int, int] | None = None,
        *,
        forget: Sequence[int] = (),
        epoch: int | None = None,
        session_id: int | None = None,
        max_wait_ms: int = 0,
        max_bytes: int = 50_000_000,
    ) -> FetchResponse:
        """One fetch with the next epoch of the session, or with the given one."""
        by_id = isinstance(self.topic, uuid.UUID)
        forgotten = ForgottenTopic(
            name="" if by_id else str(self.topic),
            topic_id=self.topic if isinstance(self.topic, uuid.UUID) else None,
            partitions=forget,
        )
        request = fetch_request(
            *([fetch_topic(self.topic, offsets)] if offsets else []),
            session_id=self.session_id if session_id is None else session_id,
            session_epoch=self.epoch if epoch is None else epoch,
            forgotten=[forgotten] if forget else [],
            max_wait_ms=max_wait_ms,
            max_bytes=max_bytes,
        )
        return self.client.ask(request, FetchResponse, self.version)

    def answers(
        self,
        offsets: Mapping[int, int] | None = None,
        *,
        forget: Sequence[int] = (),
        max_wait_ms: int = 0,
        max_bytes: int = 50_000_000,
    ) -> dict[int, FetchResponsePartition]:
        """The partitions of the next answer, which must be none of an error."""
        response = self.ask(offsets, forget=forget, max_wait_ms=max_wait_ms, max_bytes=max_bytes)
        assert response.error_code == 0, response
        if self.session_id:
            assert response.session_id == self.session_id
        self.session_id = response.session_id
        self.epoch += 1
        return {
            partition.index: partition
            for topic in response.topics
            for partition in topic.partitions
        }


@pytest.mark.parametrize("version", INCREMENTAL_VERSIONS)
def test_a_session_answers_with_what_is_new_and_nothing_else(
    client: WireClient, make_topic: MakeTopic, version: int
) -> None:
    topic = make_topic(4)
    append(client, topic, batch(2), partition=0)
    session = Session(client, topic, version)

    # A full fetch begins the session; every partition is answered, also empty ones.
    full = session.answers({0: 0, 1: 0, 2: 0})
    assert session.session_id != NO_SESSION
    assert {index: len(records_in(answer)) for index, answer in full.items()} == {0: 2, 1: 0, 2: 0}

    # What the client has read it says by moving its offset; then there is nothing new.
    assert session.answers({0: 2}) == {}
    assert session.answers() == {}

    # Records come for the partition that has some, and again until the offset is moved.
    append(client, topic, batch(3), partition=1)
    for _ in range(2):
        news = session.answers()
        assert {index: len(records_in(answer)) for index, answer in news.items()} == {1: 3}
    assert session.answers({1: 3}) == {}

    # A partition is added, and one is forgotten.
    append(client, topic, batch(1), partition=3)
    news = session.answers({3: 0}, forget=[2])
    assert sorted(news) == [3]
    append(client, topic, batch(1), partition=2)
    assert session.answers({3: 1}) == {}

    # A log start that moved is news without records.
    delete_records(client, topic, 1)
    news = session.answers()
    assert {index: answer.log_start_offset for index, answer in news.items()} == {0: 1}
    assert records_in(news[0]) == []
    assert session.answers() == {}


@pytest.mark.parametrize("version", INCREMENTAL_VERSIONS)
def test_an_error_is_repeated_until_it_is_gone_and_then_the_partition_is_told_once(
    client: WireClient, make_topic: MakeTopic, version: int
) -> None:
    topic = make_topic(2)
    append(client, topic, batch(2), partition=0)
    session = Session(client, topic, version)
    session.answers({0: 9, 1: 0})
    for _ in range(2):
        assert {i: a.error_code for i, a in session.answers().items()} == {0: OFFSET_OUT_OF_RANGE}
    assert {i: a.error_code for i, a in session.answers({0: 2}).items()} == {0: 0}
    assert session.answers() == {}


def test_a_partition_that_comes_into_being_is_served_by_the_session_that_wanted_it(
    client: WireClient, topic_name: str
) -> None:
    session = Session(client, topic_name, 12)
    assert session.answers({0: 0})[0].error_code == UNKNOWN_TOPIC_OR_PARTITION
    create_topic(client, topic_name)
    append(client, topic_name, batch(2))
    news = session.answers()
    assert (news[0].error_code, len(records_in(news[0]))) == (0, 2)


@pytest.mark.parametrize("version", [12, 13, 18])
def test_a_session_tells_that_its_topic_was_deleted(
    client: WireClient, topic: str, version: int
) -> None:
    """By the name that the id had, as in Kafka; without a session there is only the id."""
    session = Session(client, topic, version)
    session.answers({0: 0})
    delete_topic(client, topic)
    assert session.answers()[0].error_code == UNKNOWN_TOPIC_OR_PARTITION
    if version >= 13:
        anew = Session(client, topic, version, topic_id=session.topic)
        assert anew.answers({0: 0})[0].error_code == UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("version", [13, 18])
def test_a_session_tells_that_its_topic_is_another_one_now(
    client: WireClient, topic: str, version: int
) -> None:
    session = Session(client, topic, version)
    session.answers({0: 0})
    delete_topic(client, topic)
    create_topic(client, topic)
    for _ in range(2):
        assert session.answers()[0].error_code == INCONSISTENT_TOPIC_ID
    anew = Session(client, topic, version, topic_id=session.topic)
    assert anew.answers({0: 0})[0].error_code == UNKNOWN_TOPIC_ID
    # It was never called anything while this session was there.
    assert anew.answers()[0].error_code == UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("version", INCREMENTAL_VERSIONS)
def test_a_wrong_epoch_is_refused_and_the_session_stays(
    client: WireClient, topic: str, version: int
) -> None:
    session = Session(client, topic, version)
    session.answers({0: 0})
    session.answers()
    for wrong in (1, 3, 2**31 - 1, -2):
        response = session.ask(epoch=wrong)
        assert (response.error_code, list(response.topics)) == (INVALID_FETCH_SESSION_EPOCH, [])
    append(client, topic, batch(2))
    assert len(records_in(session.answers()[0])) == 2


@pytest.mark.parametrize("version", INCREMENTAL_VERSIONS)
def test_an_unknown_session_is_refused(client: WireClient, topic: str, version: int) -> None:
    session = Session(client, topic, version)
    for unknown in (12345, 0, -1):
        response = session.ask({0: 0}, session_id=unknown, epoch=1)
        assert (response.error_code, response.session_id) == (FETCH_SESSION_ID_NOT_FOUND, 0)


def test_a_final_epoch_answers_in_full_and_ends_the_session(client: WireClient, topic: str) -> None:
    append(client, topic, batch(2))
    session = Session(client, topic, 12)
    session.answers({0: 2})
    last = session.ask({0: 0}, epoch=FINAL_EPOCH)
    assert (last.error_code, last.session_id) == (0, NO_SESSION)
    assert len(records_in(last.topics[0].partitions[0])) == 2
    assert session.ask().error_code == FETCH_SESSION_ID_NOT_FOUND


def test_a_full_fetch_with_a_session_replaces_it(client: WireClient, topic: str) -> None:
    session = Session(client, topic, 12)
    session.answers({0: 0})
    old = session.session_id
    response = session.ask({0: 0}, epoch=FULL_EPOCH)
    assert response.session_id not in (NO_SESSION, old)
    assert session.ask().error_code == FETCH_SESSION_ID_NOT_FOUND


def test_a_session_that_forgets_all_it_had_ends(client: WireClient, topic: str) -> None:
    session = Session(client, topic, 12)
    session.answers({0: 0})
    first_id = session.session_id
    answer = session.ask(forget=[0])
    assert (answer.error_code, answer.session_id, list(answer.topics)) == (0, NO_SESSION, [])
    assert session.ask(session_id=first_id, epoch=2).error_code == FETCH_SESSION_ID_NOT_FOUND


def test_what_is_wanted_and_forgotten_in_one_request_is_forgotten(
    client: WireClient, make_topic: MakeTopic
) -> None:
    session = Session(client, make_topic(2), 12)
    session.answers({0: 0, 1: 0})
    session.answers({1: 0}, forget=[1])
    append(client, str(session.topic), batch(), partition=1)
    append(client, str(session.topic), batch(), partition=0)
    assert list(session.answers()) == [0]


def test_a_session_by_name_cannot_go_on_by_id(client: WireClient, topic: str) -> None:
    session = Session(client, topic, 12)
    session.answers({0: 0})
    session.version = 13
    assert session.ask().error_code == FETCH_SESSION_TOPIC_ID_ERROR


def test_a_session_outlives_its_connection(
    broker: BrokerProcess, client: WireClient, topic: str
) -> None:
    """As in Kafka: the session belongs to the id, and clients reconnect."""
    session = Session(client, topic, 12)
    session.answers({0: 0})
    append(client, topic, batch(2))
    with WireClient(broker.port) as another:
        session.client = another
        assert len(records_in(session.answers()[0])) == 2


def test_a_long_poll_in_a_session_wakes_with_the_partition_that_got_records(
    broker: BrokerProcess, client: WireClient, make_topic: MakeTopic
) -> None:
    topic = make_topic(3)
    with WireClient(broker.port) as consumer:
        session = Session(consumer, topic, 12)
        session.answers({0: 0, 1: 0, 2: 0})
        request = fetch_request(session_id=session.session_id, session_epoch=1, max_wait_ms=LONG_MS)
        sent = consumer.send(request, 12)
        append(client, topic, batch(), partition=1)
        response = consumer.receive(FetchResponse, 12, sent)
    assert [p.index for t in response.topics for p in t.partitions] == [1]


def test_partitions_that_were_served_go_to_the_end_so_that_nobody_starves(
    client: WireClient, make_topic: MakeTopic
) -> None:
    """Each answer has room for one batch; three partitions with plenty of them take turns."""
    topic = make_topic(3)
    for partition in range(3):
        append(client, topic, *[batch()] * 9, partition=partition)
    session = Session(client, topic, 12)
    offsets = dict.fromkeys(range(3), 0)
    session.answers(offsets, max_bytes=1)
    offsets[0] = 1
    served: list[int] = []
    changed = {0: 1}
    for _ in range(8):
        news = session.answers(changed, max_bytes=1)
        (index,) = (index for index, answer in news.items() if records_in(answer))
        offsets[index] += 1
        changed = {index: offsets[index]}
        served.append(index)
    assert {index: served.count(index) for index in range(3)} == {0: 2, 1: 3, 2: 3}


def test_without_room_for_a_session_every_fetch_is_full(
    strict_client: WireClient, topic_name: str
) -> None:
    create_topic(strict_client, topic_name, 1)
    sessions = [Session(strict_client, topic_name, 12) for _ in range(3)]
    for session in sessions:
        assert session.answers({0: 0})[0].error_code == 0
    assert [session.session_id == NO_SESSION for session in sessions] == [False, False, True]
    # The client that got none sends full fetches and is served as well.
    append(strict_client, topic_name, batch(2))
    sessions[2].epoch = FULL_EPOCH
    assert len(records_in(sessions[2].answers({0: 0})[0])) == 2
    # A session that ends makes room.
    sessions[0].ask(epoch=FINAL_EPOCH)
    sessions[2].epoch = FULL_EPOCH
    sessions[2].answers({0: 0})
    assert sessions[2].session_id != NO_SESSION
