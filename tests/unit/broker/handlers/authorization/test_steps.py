"""Steps keep from a handler what its client may not ask for, whether it waits or not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from operator import attrgetter

import pytest

from strandline.broker.handlers.authorization import refusals
from strandline.broker.handlers.authorization.steps import (
    after,
    each,
    guarded_by,
    needs,
    needs_cluster,
    or_of_cluster,
    whole,
)
from strandline.broker.handlers.services.services import RequestContext
from strandline.broker.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from strandline.broker.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.protocol.schema.schema import Response
from strandline.broker.security.acl import CLUSTER_NAME, Acl, AclOperation, ResourceKind
from tests.unit.broker.authorization.ruled import ALICE, HOST, authorizer_of, rule

ALTER, READ = AclOperation.ALTER, AclOperation.READ
BEAT = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")


def context(*rules: Acl) -> RequestContext:
    access = authorizer_of(rules).access(ALICE, HOST)
    return RequestContext(api_version=1, client_id="", access=access)


def asked(*names: str) -> CreatePartitionsRequest:
    topics = [CreatePartitionsTopic(name=name, count=2) for name in names]
    return CreatePartitionsRequest(topics=topics, timeout_ms=0)


def grown(request: CreatePartitionsRequest, _context: RequestContext) -> CreatePartitionsResponse:
    rows = [CreatePartitionsTopicResult(name=topic.name) for topic in request.topics]
    return CreatePartitionsResponse(results=rows)


async def grown_later(
    request: CreatePartitionsRequest, context: RequestContext
) -> CreatePartitionsResponse:
    await asyncio.sleep(0)
    return grown(request, context)


def settled(answer: Response | Coroutine[object, None, Response]) -> Response:
    async def main(coming: Awaitable[Response]) -> Response:
        return await coming

    return answer if isinstance(answer, Response) else asyncio.run(main(answer))


GROW = each(
    "topics",
    needs(ALTER, ResourceKind.TOPIC, attrgetter("name")),
    refusals.named(CreatePartitionsTopicResult, "name"),
    "results",
    once=attrgetter("name"),
)


@pytest.mark.parametrize("handler", [grown, grown_later])
def test_a_handler_sees_what_is_allowed_and_the_rest_comes_last(
    handler: Callable[..., Response | Coroutine[object, None, Response]],
) -> None:
    guarded = guarded_by(handler, [GROW])
    answer = settled(guarded(asked("a", "b", "c"), context(rule(ALTER, "b"))))
    assert isinstance(answer, CreatePartitionsResponse)
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert [(row.name, row.error_code) for row in answer.results] == [
        ("b", 0),
        ("a", code),
        ("c", code),
    ]
    assert answer.results[1].error_message == code.message


def test_what_is_named_twice_is_left_to_the_handler() -> None:
    answer = settled(guarded_by(grown, [GROW])(asked("a", "a", "b"), context()))
    assert isinstance(answer, CreatePartitionsResponse)
    assert [(row.name, bool(row.error_code)) for row in answer.results] == [
        ("a", False),
        ("a", False),
        ("b", True),
    ]


def test_a_request_with_all_rights_reaches_the_handler_as_it_is() -> None:
    seen: list[object] = []

    def handler(request: CreatePartitionsRequest, given: RequestContext) -> Response:
        seen.append(request)
        return grown(request, given)

    request = asked("a", "b")
    guarded_by(handler, [GROW])(request, context(rule(ALTER, "*")))
    assert seen[0] is request


def test_the_first_need_that_is_not_met_refuses_the_whole_request() -> None:
    steps = [
        whole(
            refusals.top_level(HeartbeatResponse),
            needs(READ, ResourceKind.GROUP, attrgetter("group_id")),
            needs_cluster(ALTER),
        )
    ]
    reached: list[object] = []

    def handler(request: HeartbeatRequest, _context: RequestContext) -> HeartbeatResponse:
        reached.append(request)
        return HeartbeatResponse()

    guarded = guarded_by(handler, steps)
    group = rule(READ, "g", kind=ResourceKind.GROUP)
    cluster = rule(ALTER, CLUSTER_NAME, kind=ResourceKind.CLUSTER)
    for rules, code in (
        ((), ErrorCode.GROUP_AUTHORIZATION_FAILED),
        ((cluster,), ErrorCode.GROUP_AUTHORIZATION_FAILED),
        ((group,), ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
    ):
        answer = guarded(BEAT, context(*rules))
        assert isinstance(answer, HeartbeatResponse)
        assert answer.error_code == code
    assert reached == []
    assert guarded(BEAT, context(group, cluster)) == HeartbeatResponse()


def test_a_right_to_the_cluster_is_enough_where_a_need_says_so() -> None:
    need = or_of_cluster(
        AclOperation.CREATE,
        needs(AclOperation.CREATE, ResourceKind.TOPIC, attrgetter("name")),
    )
    topic = CreatePartitionsTopic(name="a", count=2)
    cluster = rule(AclOperation.CREATE, CLUSTER_NAME, kind=ResourceKind.CLUSTER)
    assert need(topic, context()) is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert need(topic, context(cluster)) is ErrorCode.NONE
    assert need(topic, context(rule(AclOperation.CREATE, "a"))) is ErrorCode.NONE


@pytest.mark.parametrize("handler", [grown, grown_later])
def test_a_mask_may_wait(
    handler: Callable[..., Response | Coroutine[object, None, Response]],
) -> None:
    async def later(
        response: CreatePartitionsResponse, _request: object, _context: object
    ) -> CreatePartitionsResponse:
        await asyncio.sleep(0)
        return response.replaced(results=response.results[:1])

    answer = settled(guarded_by(handler, [after(later)])(asked("a", "b"), context()))
    assert isinstance(answer, CreatePartitionsResponse)
    assert [row.name for row in answer.results] == ["a"]
