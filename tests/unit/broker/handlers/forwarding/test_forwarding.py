"""Requests that the controller decides reach it as the client's, and come back in its version."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest

from strandline.broker.cluster.membership.channel import ControllerChannel
from strandline.broker.cluster.membership.envelope import Forwarder
from strandline.broker.cluster.membership.quorum import Quorum
from strandline.broker.handlers.dispatch.api_versions import RANGES_OF_BROKERS
from strandline.broker.handlers.dispatch.dispatch import Handler
from strandline.broker.handlers.forwarding.forwarding import forwarding_handlers
from strandline.broker.handlers.forwarding.versions import ranges_with
from strandline.broker.handlers.services.services import RequestContext
from strandline.broker.peers.peer import connect_by
from strandline.broker.peers.security import PeerSecurity
from strandline.broker.protocol.codec.codec import decode_request, encode, join
from strandline.broker.protocol.formats.principal_data import read_principal
from strandline.broker.protocol.header import decode_request_header, frame_response
from strandline.broker.protocol.messages.api_versions import ApiVersionRange
from strandline.broker.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from strandline.broker.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse
from strandline.broker.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResult,
)
from strandline.broker.protocol.schema.api import SPECS, ApiKey
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.security.identity import ClientIdentity
from strandline.storage.clock import SystemClock
from tests.support.fake_controller import Answer, FakeController

CLOCK = SystemClock()
CREATE = CreateTopicsRequest(
    topics=[CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in "ab"]
)
ALICE = ClientIdentity(user="alice", address="10.0.0.7")


def context(version: int) -> RequestContext:
    return RequestContext(api_version=version, client_id="console", caller=ALICE)


def local(request: Any, _: RequestContext) -> IncrementalAlterConfigsResponse:
    """What this broker answers for its loggers."""
    rows = [
        IncrementalAlterConfigsResult(
            resource_type=one.resource_type, resource_name=one.resource_name, error_message="here"
        )
        for one in request.resources
    ]
    return IncrementalAlterConfigsResponse(responses=rows)


async def at_once(_: Iterable[str]) -> None:
    """All topics are known."""


def forwarding(
    envelope: Answer | None,
    work: Callable[[dict[ApiKey, Handler], FakeController], Awaitable[None]],
    *,
    request_s_max: float = 30.0,
    arrived: Callable[[Iterable[str]], Awaitable[None]] = at_once,
) -> None:
    async def run() -> None:
        answers = {} if envelope is None else {ApiKey.ENVELOPE: envelope}
        async with FakeController(answers) as controller:
            quorum = Quorum([controller.address])
            if envelope is not None:
                quorum.note(1, 5, controller.address)
            connect = connect_by(PeerSecurity(listener="C"), client_id="b", clock=CLOCK)
            channel = ControllerChannel(quorum, connect, CLOCK, request_s_max=request_s_max)
            locally = dict.fromkeys((ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS), local)
            forwarder = Forwarder(channel, CLOCK, arrived=arrived)
            handlers = forwarding_handlers(forwarder, locally)
            try:
                await work(handlers, controller)
            finally:
                channel.close()

    asyncio.run(run())


def opened(envelope: EnvelopeRequest) -> tuple[Any, Any]:
    """Header and request of an envelope."""
    frame = memoryview(envelope.request_data)
    header = decode_request_header(frame)
    kind = CreateTopicsRequest
    if header.api_key is ApiKey.INCREMENTAL_ALTER_CONFIGS:
        return header, decode_request(
            IncrementalAlterConfigsRequest, header.api_version, frame[header.body_position :]
        )
    return header, decode_request(kind, header.api_version, frame[header.body_position :])


def sealed(header: Any, response: Any) -> EnvelopeResponse:
    body = encode(response, header.api_version)
    parts = frame_response(header.api_key, header.api_version, header.correlation_id, body)
    return EnvelopeResponse(response_data=join(parts)[4:])


@pytest.mark.parametrize("version", [2, 4, 7])
def test_the_controller_sees_the_client_and_its_version(version: int) -> None:
    def create(envelope: EnvelopeRequest) -> EnvelopeResponse:
        header, request = opened(envelope)
        rows = [CreatableTopicResult(name=one.name, error_code=36) for one in request.topics]
        return sealed(header, CreateTopicsResponse(topics=rows))

    async def ask(handlers: dict[ApiKey, Handler], controller: FakeController) -> None:
        answer: Any = await handlers[ApiKey.CREATE_TOPICS](CREATE, context(version))  # type: ignore[misc]
        assert [(one.name, one.error_code) for one in answer.topics] == [("a", 36), ("b", 36)]
        (envelope,) = controller.of(EnvelopeRequest)
        header, _ = opened(envelope)
        assert (header.api_version, header.client_id) == (version, "console")
        principal = read_principal(memoryview(envelope.request_principal))
        assert (principal.principal_type, principal.name) == ("User", "alice")
        assert envelope.client_host_address == bytes((10, 0, 0, 7))

    forwarding(create, ask)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.UNSUPPORTED_VERSION),
    ],
)
def test_an_envelope_that_is_refused_is_no_answer_of_the_request(
    said: ErrorCode, told: ErrorCode
) -> None:
    async def ask(handlers: dict[ApiKey, Handler], _: FakeController) -> None:
        answer: Any = await handlers[ApiKey.CREATE_TOPICS](CREATE, context(7))  # type: ignore[misc]
        assert {one.error_code for one in answer.topics} == {told}

    forwarding(lambda _: EnvelopeResponse(error_code=said), ask)


def test_without_a_controller_every_topic_times_out() -> None:
    async def ask(handlers: dict[ApiKey, Handler], _: FakeController) -> None:
        answer: Any = await handlers[ApiKey.CREATE_TOPICS](CREATE, context(7))  # type: ignore[misc]
        assert [(one.name, one.error_code) for one in answer.topics] == [
            (name, ErrorCode.REQUEST_TIMED_OUT) for name in "ab"
        ]

    forwarding(None, ask, request_s_max=0.05)


def test_levels_of_loggers_stay_here_and_the_rest_is_forwarded() -> None:
    def alter(envelope: EnvelopeRequest) -> EnvelopeResponse:
        header, request = opened(envelope)
        rows = [
            IncrementalAlterConfigsResult(
                resource_type=one.resource_type,
                resource_name=one.resource_name,
                error_message="there",
            )
            for one in request.resources
        ]
        return sealed(header, IncrementalAlterConfigsResponse(responses=rows))

    resources = [
        IncrementalAlterConfigsResource(resource_type=kind, resource_name="9", configs=[])
        for kind in (ConfigResourceType.BROKER_LOGGER, ConfigResourceType.TOPIC)
    ]

    async def ask(handlers: dict[ApiKey, Handler], controller: FakeController) -> None:
        handler = handlers[ApiKey.INCREMENTAL_ALTER_CONFIGS]
        request = IncrementalAlterConfigsRequest(resources=resources)
        answer: Any = await handler(request, context(1))  # type: ignore[misc]
        assert {(one.resource_type, one.error_message) for one in answer.responses} == {
            (ConfigResourceType.BROKER_LOGGER, "here"),
            (ConfigResourceType.TOPIC, "there"),
        }
        alone = IncrementalAlterConfigsRequest(resources=resources[:1])
        handler(alone, context(1))
        assert len(controller.of(EnvelopeRequest)) == 1

    forwarding(alter, ask)


def test_what_is_forwarded_is_what_brokers_serve() -> None:
    async def look(handlers: dict[ApiKey, Handler], _: FakeController) -> None:
        assert handlers.keys() <= SPECS.keys()
        assert {ApiKey.CREATE_ACLS, ApiKey.DESCRIBE_QUORUM, ApiKey.ELECT_LEADERS} <= handlers.keys()
        assert ApiKey.DESCRIBE_CONFIGS not in handlers

    forwarding(None, look)


def taking(controller: FakeController, key: ApiKey, lowest: int, highest: int) -> None:
    """The controller takes these versions of that API."""
    controller.ranges = [
        ApiVersionRange(api_key=key, min_version=lowest, max_version=highest)
        if one.api_key == key
        else one
        for one in controller.ranges
    ]


def created_from(seen: list[int]) -> Answer:
    """Creates all, and notes in which version it was asked."""

    def answer(envelope: EnvelopeRequest) -> EnvelopeResponse:
        header, _ = opened(envelope)
        seen.append(header.api_version)
        found = CreateTopicsResponse(topics=[CreatableTopicResult(name="a", num_partitions=3)])
        return sealed(header, found)

    return answer


def test_a_client_that_is_older_than_the_controllers_is_served() -> None:
    """Kafka 4 has no CreateTopics v0 (KIP-896)."""
    seen: list[int] = []

    async def work(handlers: dict[ApiKey, Handler], controller: FakeController) -> None:
        taking(controller, ApiKey.CREATE_TOPICS, 2, 7)
        create: Any = handlers[ApiKey.CREATE_TOPICS]
        # What a controller takes is known from the first connection.
        await create(CREATE, context(7))
        for version in (0, 2, 5):
            answer = await create(CREATE, context(version))
            assert [one.name for one in answer.topics] == ["a"]
        assert seen == [7, 2, 2, 5]

    forwarding(created_from(seen), work)


def test_a_version_that_the_controllers_do_not_take_is_refused_and_not_advertised() -> None:
    async def work(handlers: dict[ApiKey, Handler], controller: FakeController) -> None:
        taking(controller, ApiKey.CREATE_TOPICS, 2, 6)
        create: Any = handlers[ApiKey.CREATE_TOPICS]
        await create(CREATE, context(6))
        answer = await create(CREATE, context(7))
        assert {one.error_code for one in answer.topics} == {ErrorCode.UNSUPPORTED_VERSION}
        assert len(controller.requests) == 1

    forwarding(created_from([]), work)


class KnownVersions:
    """As a Forwarder: what the controllers take."""

    def __init__(self, highest: dict[ApiKey, int]) -> None:
        self._highest = highest

    def highest(self, key: ApiKey) -> int | None:
        return self._highest.get(key)


def test_a_broker_advertises_of_forwarded_requests_what_its_controllers_take() -> None:
    """AlterPartitionReassignments 1 came with Kafka 4.1."""
    known = KnownVersions(
        {
            ApiKey.ALTER_PARTITION_REASSIGNMENTS: 0,
            ApiKey.METADATA: 1,  # which is not forwarded
            ApiKey.ELECT_LEADERS: -1,
        }
    )
    found = {one.api_key: one.max_version for one in ranges_with(known)}  # type: ignore[arg-type]
    everything = {one.api_key: one.max_version for one in RANGES_OF_BROKERS}
    del everything[ApiKey.ELECT_LEADERS]
    assert found == {**everything, ApiKey.ALTER_PARTITION_REASSIGNMENTS: 0}


@pytest.mark.parametrize("is_tried_only", [False, True])
def test_topics_are_known_here_when_their_creation_is_answered(is_tried_only: bool) -> None:
    awaited: list[list[str]] = []

    async def arrived(names: Iterable[str]) -> None:
        awaited.append(list(names))

    async def work(handlers: dict[ApiKey, Handler], _: FakeController) -> None:
        create: Any = handlers[ApiKey.CREATE_TOPICS]
        answer = await create(CREATE.replaced(validate_only=is_tried_only), context(7))
        assert [one.name for one in answer.topics] == ["a"]
        assert awaited == ([] if is_tried_only else [["a"]])

    forwarding(created_from([]), work, arrived=arrived)
