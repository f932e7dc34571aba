"""Rights hold however a request comes: repeated, in a session, parked, large; and end at once."""

from __future__ import annotations

import select
import uuid
from collections.abc import Iterator

import pytest

from strandline.broker.handlers.admin.acls import CREATED_AT_ONCE_MAX, NAMELESS_FILTERS_MAX
from strandline.broker.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from strandline.broker.protocol.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from strandline.broker.protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from strandline.broker.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsTopic,
)
from strandline.broker.protocol.messages.fetch import FetchResponse, FetchResponsePartition
from strandline.broker.protocol.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from strandline.broker.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from strandline.broker.protocol.messages.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)
from strandline.broker.security.acl import AclPermission, PatternType
from tests.support.broker import eventually
from tests.support.metrics import METRICS_ON, metric, samples
from tests.support.wire import WireClient
from tests.system.authorization.rights import right, rights
from tests.system.authorization.world import World, logged_in, ruled_broker
from tests.system.calls import (
    append,
    batch,
    create_topic,
    end_offset,
    fetch_request,
    fetch_topic,
    produce,
    produce_request,
)

pytestmark = pytest.mark.slow

DENIED = 29
ID_DENIED = 53
NO_SESSION = 70
LONG_MS = 60_000


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with ruled_broker(tmp_path_factory.mktemp("broker"), **METRICS_ON) as made:
        for topic in ("t", "u", "eu.a", "eu.b"):
            create_topic(made.admin, topic)
        yield made


@pytest.fixture
def nobody(world: World) -> Iterator[WireClient]:
    with WireClient(world.broker.port) as client:
        yield client


def only(response: FetchResponse) -> FetchResponsePartition:
    ((answer,),) = (topic.partitions for topic in response.topics)
    return answer


def assert_denied(answer: FetchResponsePartition) -> None:
    assert answer.error_code == DENIED
    assert not answer.records_bytes
    assert not answer.records
    assert (answer.high_watermark, answer.log_start_offset) == (-1, -1)


# --- fetches ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [12, 16])
def test_a_withdrawn_right_ends_a_fetch_session_with_the_next_request(
    world: World, nobody: WireClient, version: int
) -> None:
    world.allow_only(rights("TOPIC t READ"))
    topic: str | uuid.UUID = "t" if version < 13 else world.topic_id("t")
    start = end_offset(world.admin, "t")
    opened = nobody.ask(
        fetch_request(fetch_topic(topic, {0: start}), session_epoch=0), FetchResponse, version
    )
    assert only(opened).error_code == 0
    append(world.admin, "t", batch())

    def again(epoch: int) -> FetchResponse:
        asked = fetch_request(session_id=opened.session_id, session_epoch=epoch)
        return nobody.ask(asked, FetchResponse, version)

    assert only(again(1)).records
    world.allow_only([])
    assert_denied(only(again(2)))
    # It is told again each time, as each error of a session.
    assert_denied(only(again(3)))
    world.allow_only(rights("TOPIC t READ"))
    assert only(again(4)).records


def test_nobody_learns_from_a_guessed_session_what_another_user_reads(
    world: World, nobody: WireClient
) -> None:
    world.allow_only([])
    opened = world.admin.ask(
        fetch_request(fetch_topic("t", {0: 0}), session_epoch=0), FetchResponse, 12
    )
    guessed = fetch_request(session_id=opened.session_id, session_epoch=1)
    answer = nobody.ask(guessed, FetchResponse, 12)
    assert (answer.error_code, len(answer.topics)) == (NO_SESSION, 0)
    nobody.ask(fetch_request(session_id=opened.session_id, session_epoch=-1), FetchResponse, 12)
    assert world.admin.ask(guessed, FetchResponse, 12).error_code == 0


@pytest.mark.parametrize("version", [4, 12, 16])
def test_a_withdrawn_right_ends_fetches_that_repeat_the_same_bytes(
    world: World, nobody: WireClient, version: int
) -> None:
    world.allow_only(rights("TOPIC t READ"))
    offset = append(world.admin, "t", batch())
    topic: str | uuid.UUID = "t" if version < 13 else world.topic_id("t")
    asked = fetch_request(fetch_topic(topic, {0: offset}))
    for _ in range(4):
        assert only(nobody.ask(asked, FetchResponse, version)).records
    world.allow_only([])
    assert_denied(only(nobody.ask(asked, FetchResponse, version)))
    world.allow_only(rights("TOPIC t READ"))
    assert only(nobody.ask(asked, FetchResponse, version)).records


def test_a_fetch_that_waits_gets_nothing_after_its_right_is_withdrawn(
    world: World, nobody: WireClient
) -> None:
    world.allow_only(rights("TOPIC t READ"))
    asked = fetch_request(fetch_topic("t", {0: end_offset(world.admin, "t")}), max_wait_ms=LONG_MS)
    waiting = nobody.send(asked, 12)
    # It is parked before the rules change: the connections of both are served in order.
    assert not select.select([nobody], [], [], 0.3)[0]
    world.allow_only([])
    append(world.admin, "t", batch())
    assert_denied(only(nobody.receive(FetchResponse, 12, waiting)))


def test_a_fetch_without_a_right_does_not_wait(world: World, nobody: WireClient) -> None:
    world.allow_only(rights("TOPIC t READ"))
    parts = [fetch_topic("u", {0: 0}), fetch_topic("t", {0: end_offset(world.admin, "t")})]
    # Longer than the client waits.
    answer = nobody.ask(fetch_request(*parts, max_wait_ms=2 * LONG_MS), FetchResponse, 12)
    denied, served = (topic.partitions[0] for topic in answer.topics)
    assert_denied(denied)
    assert served.error_code == 0


def test_a_denied_name_looks_the_same_whether_it_exists(world: World, nobody: WireClient) -> None:
    world.allow_only([])
    names = ("t", "absent")
    fetched = nobody.ask(
        fetch_request(*(fetch_topic(name, {0: 0}) for name in names)), FetchResponse, 12
    )
    there, absent = (topic.partitions for topic in fetched.topics)
    assert there == absent
    asked = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names])
    shown, hidden = nobody.ask(asked, MetadataResponse, 13).topics
    assert shown == hidden.replaced(name="t")
    deleted = nobody.ask(
        DeleteTopicsRequest(topics=[DeleteTopicState(name=one) for one in names], timeout_ms=1000),
        DeleteTopicsResponse,
        6,
    )
    one, other = deleted.responses
    assert one.replaced(name="") == other.replaced(name="")
    assert one.error_code == DENIED
    # Whoever may describe it learns which of the two it is.
    world.allow_only(rights("TOPIC t DESCRIBE;TOPIC absent DESCRIBE"))
    again = nobody.ask(
        DeleteTopicsRequest(topics=[DeleteTopicState(name=one) for one in names], timeout_ms=1000),
        DeleteTopicsResponse,
        6,
    )
    assert {one.name: one.error_code for one in again.responses} == {"t": DENIED, "absent": 3}


# --- produce ---------------------------------------------------------------------------------


def test_of_a_produce_the_allowed_topics_are_written_and_no_others(
    world: World, nobody: WireClient
) -> None:
    world.allow_only(rights("TOPIC u WRITE"))
    before = [end_offset(world.admin, name) for name in "tu"]
    topics = [
        ProduceTopic(
            name=name,
            partitions=[ProducePartition(index=0, records=memoryview(bytearray(batch())))],
        )
        for name in ("t", "u", "absent")
    ]
    asked = ProduceRequest(acks=1, timeout_ms=1000, topics=topics)
    answer = nobody.ask(asked, ProduceResponse, 9)
    found = {topic.name: topic.partitions[0].error_code for topic in answer.topics}
    assert found == {"t": DENIED, "u": 0, "absent": DENIED}
    after = [end_offset(world.admin, name) for name in "tu"]
    assert after == [before[0], before[1] + 1]


def test_a_produce_without_answer_closes_the_connection_where_it_is_denied(
    world: World, nobody: WireClient
) -> None:
    world.allow_only([])
    before = end_offset(world.admin, "t")
    nobody.send(produce_request("t", batch(), acks=0), 9)
    assert nobody.closed_by_broker()
    assert end_offset(world.admin, "t") == before


def test_a_large_batch_is_not_prepared_for_who_may_not_write(
    world: World, nobody: WireClient
) -> None:
    """Large batches take another way through the broker."""
    world.allow_only([])
    large = batch(2000, value=b"v" * 200)
    assert produce(nobody, "t", large).error_code == DENIED
    world.allow_only(rights("TOPIC t WRITE"))
    assert produce(nobody, "t", large).error_code == 0


# --- large requests --------------------------------------------------------------------------


def described(client: WireClient, *names: str) -> dict[str | None, MetadataResponseTopic]:
    asked = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in names],
        allow_auto_topic_creation=False,
    )
    return {topic.name: topic for topic in client.ask(asked, MetadataResponse, 12).topics}


def test_a_request_that_is_decoded_in_a_thread_has_the_rights_of_its_client(
    world: World, nobody: WireClient
) -> None:
    world.allow_only(rights("TOPIC t DESCRIBE"))
    many = [f"{'n' * 200}-{number}" for number in range(500)]
    found = described(nobody, *many, "t", "u")
    assert found.pop("t").error_code == 0
    assert {topic.error_code for topic in found.values()} == {DENIED}
    assert len(found) == 501
    # A fetch of more than 64 KiB.
    wanted = [fetch_topic(name, {0: 0}) for name in (*many, "u")]
    answer = nobody.ask(fetch_request(*wanted), FetchResponse, 12)
    assert {topic.partitions[0].error_code for topic in answer.topics} == {DENIED}


# --- rules -----------------------------------------------------------------------------------


def test_a_denial_wins_over_everything_that_allows(world: World, nobody: WireClient) -> None:
    allowed = right("TOPIC * ALL")
    for denial in (
        right("TOPIC t DESCRIBE", permission=AclPermission.DENY),
        right("TOPIC * DESCRIBE", permission=AclPermission.DENY),
        right("TOPIC t ALL", permission=AclPermission.DENY, pattern=PatternType.PREFIXED),
        right("TOPIC t ALL", permission=AclPermission.DENY, principal="User:*"),
        right("TOPIC t ALL", permission=AclPermission.DENY, host="127.0.0.1"),
    ):
        world.allow_only([allowed])
        assert described(nobody, "t")["t"].error_code == 0
        world.allow([denial])
        assert described(nobody, "t")["t"].error_code == DENIED
        world.allow_only([], principal="User:*")
    # A denial of READ is none of DESCRIBE, which the other rule allows.
    world.allow_only([allowed, right("TOPIC t READ", permission=AclPermission.DENY)])
    assert described(nobody, "t")["t"].error_code == 0


def test_a_rule_of_another_host_prefix_or_user_is_no_right(
    world: World, nobody: WireClient
) -> None:
    for rule, name, code in (
        (right("TOPIC eu. READ", pattern=PatternType.PREFIXED), "eu.a", 0),
        (right("TOPIC eu. READ", pattern=PatternType.PREFIXED), "t", DENIED),
        (right("TOPIC eu. READ"), "eu.a", DENIED),
        (right("TOPIC t READ", host="127.0.0.1"), "t", 0),
        (right("TOPIC t READ", host="10.0.0.1"), "t", DENIED),
        (right("TOPIC t READ", principal="User:alice"), "t", DENIED),
        (right("TOPIC t READ", principal="Group:ANONYMOUS"), "t", DENIED),
        (right("GROUP t READ"), "t", DENIED),
    ):
        world.allow_only([rule])
        assert described(nobody, name)[name].error_code == code, rule
        world.allow_only([], principal=rule.principal)
    world.allow([right("TOPIC t READ", principal="User:*")])
    assert described(nobody, "t")["t"].error_code == 0
    world.allow_only([], principal="User:*")


def test_rights_are_those_of_the_user_and_not_of_the_connection(
    world: World, nobody: WireClient
) -> None:
    world.allow_only([])
    assert described(nobody, "t")["t"].error_code == DENIED
    with logged_in(world.super_port) as admin:
        assert described(admin, "t")["t"].error_code == 0


def test_more_rules_than_one_step_takes_are_made_by_one_request(
    world: World, nobody: WireClient
) -> None:
    world.allow_only([])
    world.allow([right(f"TOPIC many-{number} READ") for number in range(CREATED_AT_ONCE_MAX + 5)])
    names = [f"many-{number}" for number in (0, CREATED_AT_ONCE_MAX + 4, CREATED_AT_ONCE_MAX + 5)]
    assert [described(nobody, name)[name].error_code for name in names] == [3, 3, DENIED]
    world.allow_only([])


def test_filters_that_look_at_every_rule_are_few_in_one_request(world: World) -> None:
    nameless = DeleteAclsFilter(
        resource_type_filter=2,
        pattern_type_filter=PatternType.ANY,
        principal_filter="User:nobody",
        operation=1,
        permission_type=1,
    )
    named = nameless.replaced(resource_name_filter="x")
    filters = [nameless] * (NAMELESS_FILTERS_MAX + 1) + [named] * 30
    answer = world.admin.ask(DeleteAclsRequest(filters=filters), DeleteAclsResponse, 3)
    codes = [one.error_code for one in answer.filter_results]
    assert codes == [0] * NAMELESS_FILTERS_MAX + [42] + [0] * 30


# --- pages -----------------------------------------------------------------------------------


def test_pages_of_topics_have_no_gaps_where_topics_are_hidden(
    world: World, nobody: WireClient
) -> None:
    world.allow_only(rights("TOPIC eu.b DESCRIBE;TOPIC u DESCRIBE"))
    found, cursor = [], None
    for _ in range(2):
        asked = DescribeTopicPartitionsRequest(topics=[], response_partition_limit=1, cursor=cursor)
        page = nobody.ask(asked, DescribeTopicPartitionsResponse, 0)
        found += [topic.name for topic in page.topics]
        cursor = page.next_cursor
    assert (found, cursor) == (["eu.b", "u"], None)
    named = DescribeTopicPartitionsRequest(
        topics=[DescribeTopicPartitionsTopic(name=name) for name in ("eu.a", "eu.b", "t", "u")],
        cursor=Cursor(topic_name="t", partition_index=0),
    )
    answer = nobody.ask(named, DescribeTopicPartitionsResponse, 0)
    # Hidden ones come last.
    assert [(one.name, one.error_code) for one in answer.topics] == [("u", 0), ("t", DENIED)]


# --- groups ----------------------------------------------------------------------------------


def test_an_expression_matches_what_its_member_may_describe(
    world: World, nobody: WireClient
) -> None:
    group = right("GROUP expression READ")
    world.allow_only([group, right("TOPIC eu.a READ")])
    visible = world.topic_id("eu.a")
    member = str(uuid.uuid4())
    epoch, owned = 0, set[uuid.UUID]()

    def beat() -> set[uuid.UUID]:
        nonlocal epoch, owned
        answer = nobody.ask(
            ConsumerGroupHeartbeatRequest(
                group_id="expression",
                member_id=member,
                member_epoch=epoch,
                rebalance_timeout_ms=LONG_MS,
                subscribed_topic_regex=None if epoch else "eu\\..*",
                topic_partitions=None if epoch else [],
            ),
            ConsumerGroupHeartbeatResponse,
            1,
        )
        assert not answer.error_code, answer
        epoch = answer.member_epoch
        if answer.assignment is not None:
            owned = {one.topic_id for one in answer.assignment.topic_partitions}
        return owned

    assert eventually(lambda: beat() == {visible})
    assert beat() == {visible}


# --- lasting ---------------------------------------------------------------------------------


def test_rules_outlive_a_kill(tmp_path_factory: pytest.TempPathFactory) -> None:
    with ruled_broker(tmp_path_factory.mktemp("killed")) as world:
        create_topic(world.admin, "t")
        world.allow_only(rights("TOPIC t READ"))
        world.admin.close()
        world.broker.kill()
        world.broker.start()
        with WireClient(world.broker.port) as nobody:
            assert described(nobody, "t")["t"].error_code == 0
            assert produce(nobody, "t", batch()).error_code == DENIED
        world.admin = logged_in(world.super_port)
        world.allow_only([])
        with WireClient(world.broker.port) as nobody:
            assert described(nobody, "t")["t"].error_code == DENIED


def test_where_no_rule_is_everyone_may_if_the_setting_says_so(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    settings = {"allow.everyone.if.no.acl.found": "true"}
    with ruled_broker(tmp_path_factory.mktemp("open"), **settings) as world:
        for name in "tu":
            create_topic(world.admin, name)
        with WireClient(world.broker.port) as nobody:
            assert produce(nobody, "t", batch()).error_code == 0
            world.allow([right("TOPIC u READ", principal="User:alice")])
            assert produce(nobody, "u", batch()).error_code == DENIED
            assert produce(nobody, "t", batch()).error_code == 0


def test_a_denial_is_in_the_log_once_with_who_and_what(world: World, nobody: WireClient) -> None:
    denial = right("TRANSACTIONAL_ID quiet WRITE", permission=AclPermission.DENY)
    world.allow_only([denial])
    asked = InitProducerIdRequest(transactional_id="quiet", transaction_timeout_ms=1000)
    for _ in range(20):
        assert nobody.ask(asked, InitProducerIdResponse, 4).error_code == ID_DENIED
    lines = [line for line in world.broker.log_text().splitlines() if "_ID:quiet" in line]
    assert len(lines) == 1
    for word in ("User:ANONYMOUS", "127.0.0.1", "WRITE", "LITERAL:quiet"):
        assert word in lines[0]


def test_denials_and_rules_are_counted(world: World, nobody: WireClient) -> None:
    world.allow_only([right("TOPIC t READ")])

    def denied() -> float:
        name = "strandline_authorization_denied_total"
        found = samples(world.broker, name)
        return found.get((("operation", "DELETE"), ("resource", "TOPIC")), 0)

    before = denied()
    doomed = DeleteTopicsRequest(topic_names=["t", "none"], timeout_ms=1000)
    for _ in range(3):
        nobody.ask(doomed, DeleteTopicsResponse, 4)
    assert denied() == before + 6
    rules = metric(world.broker, "strandline_acls")
    world.allow([right("TOPIC u READ")])
    assert metric(world.broker, "strandline_acls") == rules + 1
