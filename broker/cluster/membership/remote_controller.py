"""What this broker itself asks of the active controller: topics of its coordinators, producer ids.

The twin of `ActiveController`, for a controller elsewhere. Requests of clients do not come this
way: they are forwarded as they are (`handlers/forwarding/`).

An answer returns when its change has reached this broker, so that whoever asked finds it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final, TypeVar, cast

from strandline.broker.cluster.membership.channel import ControllerChannel
from strandline.broker.cluster.metadata.controller_messages import (
    AllocateProducerIds,
    ControllerRequest,
    CreateTopics,
    Intent,
    NewTopic,
    RaiseLeaderEpochs,
    ResultT,
    TopicResult,
)
from strandline.broker.cluster.metadata.view import MetadataView
from strandline.broker.peers.errors import PeerError
from strandline.broker.protocol.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from strandline.broker.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.protocol.schema.schema import Request, Response
from strandline.storage.errors import StorageError

ResponseT = TypeVar("ResponseT", bound=Response)

# How long an answer waits for its change to come by the feed.
ARRIVAL_S_MAX: Final = 15.0
# A client's other requests wait behind the one that needs this, also those to partitions that are
# led here: without a controller it is told to try again.
ANSWER_S_MAX: Final = 2.0


class ControllerAway(StorageError):
    """No controller answers, or it refuses: what was asked may have been done or not."""

    kafka_code = ErrorCode.REQUEST_TIMED_OUT


class NoProducerIds(ControllerAway):
    """There is no block of ids yet."""

    # Not REQUEST_TIMED_OUT: older clients take that for the end of the producer.
    kafka_code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


class RemoteController:
    """The controller, as `Controller`."""

    def __init__(
        self,
        channel: ControllerChannel,
        view: MetadataView,
        *,
        node_id: int,
        broker_epoch: Callable[[], int],
        request_ms_max: int,
        until: Callable[[Callable[[], bool]], Awaitable[None]],
    ) -> None:
        """`until` returns when something is so in the view."""
        self._until = until
        self._channel = channel
        self._view = view
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._request_ms_max = request_ms_max

    def __repr__(self) -> str:
        return f"<RemoteController of broker {self._node_id}>"

    async def ask(self, request: ControllerRequest[ResultT]) -> Sequence[ResultT]:
        """As Controller. Raises ControllerAway."""
        match request:
            case CreateTopics():
                return cast("Sequence[ResultT]", await self._create_topics(request))
            case AllocateProducerIds():
                return cast("Sequence[ResultT]", [await self._allocate_ids()])
            case RaiseLeaderEpochs():
                # The epochs are the controller's. Whoever waits for a folder tries again.
                await self._view.take_over(self._view.image)
                return ()
            case _:
                raise AssertionError(f"{request} is not asked of a controller elsewhere")

    async def _allocate_ids(self) -> range:
        try:
            answer = await self._ask(
                AllocateProducerIdsRequest(
                    broker_id=self._node_id, broker_epoch=self._broker_epoch()
                ),
                AllocateProducerIdsResponse,
                lambda found: found.error_code,
            )
        except ControllerAway as error:
            raise NoProducerIds(str(error)) from error
        if answer.error_code:
            raise NoProducerIds(f"no producer ids: {ErrorCode(answer.error_code).name}")
        first = answer.producer_id_start
        return range(first, first + answer.producer_id_len)

    async def _create_topics(self, request: CreateTopics) -> list[TopicResult]:
        answer = await self._ask(
            CreateTopicsRequest(
                topics=[_creatable(topic) for topic in request.topics],
                timeout_ms=self._request_ms_max,
                validate_only=request.intent is Intent.VALIDATE,
            ),
            CreateTopicsResponse,
            lambda found: next((one.error_code for one in found.topics), 0),
        )
        results = [_result(one) for one in answer.topics]
        await self.arrived(one.name for one in results if _exists(one))
        return results

    async def _ask(
        self,
        request: Request,
        answer: type[ResponseT],
        code_of: Callable[[ResponseT], int],
    ) -> ResponseT:
        try:
            return await self._channel.ask(request, answer, code_of=code_of, within_s=ANSWER_S_MAX)
        except PeerError as error:
            raise ControllerAway(str(error)) from error

    async def arrived(self, names: Iterable[str]) -> None:
        """Returns when the image of this broker has these topics, or after a while."""
        wanted = set(names)
        with suppress(TimeoutError):
            async with asyncio.timeout(ARRIVAL_S_MAX):
                await self._until(lambda: wanted <= self._view.image.topics.keys())


def _exists(result: TopicResult) -> bool:
    return result.error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)


def _creatable(topic: NewTopic) -> CreatableTopic:
    return CreatableTopic(
        name=topic.name,
        num_partitions=topic.partition_count,
        replication_factor=topic.replication_factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=one.partition, broker_ids=one.replicas)
            for one in topic.assignments
        ],
        configs=[
            CreatableTopicConfig(name=name, value=value) for name, value in topic.properties.items()
        ],
    )


def _result(found: CreatableTopicResult) -> TopicResult:
    return TopicResult(
        name=found.name,
        topic_id=found.topic_id,
        error_code=ErrorCode(found.error_code),
        error_message=found.error_message,
        partition_count=found.num_partitions,
        replication_factor=found.replication_factor,
    )
