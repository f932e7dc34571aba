"""The broker that leads, as its followers ask it (Kafka's RemoteLeaderEndPoint)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from strandline.broker.peers.address import Address
from strandline.broker.peers.errors import PeerError
from strandline.broker.peers.peer import Peer
from strandline.broker.protocol.messages.fetch import (
    FetchPartition,
    FetchReplicaState,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)
from strandline.broker.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.protocol.schema.schema import Request, Response
from strandline.broker.replication.config import ReplicaFetchConfig
from strandline.broker.replication.fetch_session import FollowerSession, Key
from strandline.broker.replication.followed import FetchedFrom, Followed
from strandline.storage.model import Offset, TopicId

ResponseT = TypeVar("ResponseT", bound=Response)

LATEST: Final = -1
EARLIEST: Final = -2


class OffsetsRefused(PeerError):
    """The leader did not tell where its log begins and ends."""


class LeaderEndpoint:
    """One connection to one leader, with a fetch session."""

    def __init__(
        self,
        leader_id: int,
        *,
        node_id: int,
        broker_epoch: Callable[[], int],
        address_of: Callable[[int], Address],
        peer_of: Callable[[int], Peer],
        config: ReplicaFetchConfig,
    ) -> None:
        """`address_of` and `peer_of` raise PeerUnreachable for a broker that is not registered."""
        self.leader_id = leader_id
        self.session = FollowerSession()
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._address_of = address_of
        self._peer_of = peer_of
        self._config = config
        self._peer: Peer | None = None

    def __repr__(self) -> str:
        return f"<LeaderEndpoint of broker {self.leader_id} {self.session!r}>"

    def look_up(self) -> None:
        """Takes up another address of the leader, with another session. Raises PeerUnreachable."""
        address = self._address_of(self.leader_id)
        if self._peer is None or self._peer.address != address:
            self.close()
            self._peer = self._peer_of(self.leader_id)

    async def fetch(
        self, wanted: Mapping[Key, FetchedFrom], gone: Iterable[Key], *, within_s: float
    ) -> FetchResponse:
        """Fetches; `wanted` and `gone` as FollowerSession.update. Raises PeerError.

        The leader waits for records for replica.fetch.wait.max.ms, and at most `within_s`.

        `look_up` comes first: it may end the session.
        """
        session, config = self.session, self._config
        named, forgotten = session.update(wanted, gone)
        request = FetchRequest(
            replica_id=self._node_id,
            replica_state=FetchReplicaState(
                replica_id=self._node_id, replica_epoch=self._broker_epoch()
            ),
            max_wait_ms=int(min(config.wait_ms_max, 1000 * within_s)),
            min_bytes=config.bytes_min,
            max_bytes=config.answer_bytes_max,
            session_id=session.session_id,
            session_epoch=session.epoch,
            topics=_topics(named, config.partition_bytes_max),
            forgotten_topics=_forgotten(forgotten),
        )
        return await self._ask(request, FetchResponse)

    async def offset(self, followed: Followed, timestamp: int) -> Offset:
        """Returns where the leader's log begins, or ends. Raises PeerError."""
        key = followed.partition.topic_partition
        request = ListOffsetsRequest(
            replica_id=self._node_id,
            topics=[
                ListOffsetsTopic(
                    name=key.topic,
                    partitions=[
                        ListOffsetsPartition(
                            partition_index=key.partition,
                            current_leader_epoch=followed.leader_epoch,
                            timestamp=timestamp,
                        )
                    ],
                )
            ],
        )
        answer = await self._ask(request, ListOffsetsResponse)
        for topic in answer.topics:
            for one in topic.partitions:
                if not one.error_code:
                    return one.offset
                raise OffsetsRefused(f"{key}: {ErrorCode(one.error_code).name}")
        raise OffsetsRefused(f"{key}: an answer without it")

    def close(self) -> None:
        self.session.reset(keeps_id=False)
        if self._peer is not None:
            self._peer.close()
            self._peer = None

    async def _ask(self, request: Request, answer: type[ResponseT]) -> ResponseT:
        assert self._peer is not None, self
        timeout_s = self._config.answer_ms_max / 1000
        return await self._peer.call(request, answer, timeout_s=timeout_s)


def _topics(named: Mapping[Key, FetchedFrom], bytes_max: int) -> Sequence[FetchTopic]:
    topics: dict[TopicId, list[FetchPartition]] = {}
    names: dict[TopicId, str] = {}
    for (topic_id, index), one in named.items():
        names[topic_id] = one.followed.partition.topic_partition.topic
        topics.setdefault(topic_id, []).append(
            FetchPartition(
                partition=index,
                current_leader_epoch=one.followed.leader_epoch,
                fetch_offset=one.offset,
                last_fetched_epoch=one.last_epoch,
                log_start_offset=one.log_start_offset,
                partition_max_bytes=bytes_max,
            )
        )
    return [
        FetchTopic(name=names[topic_id], topic_id=topic_id, partitions=partitions)
        for topic_id, partitions in topics.items()
    ]


def _forgotten(keys: Iterable[Key]) -> Sequence[ForgottenTopic]:
    topics: dict[uuid.UUID, list[int]] = {}
    for topic_id, index in keys:
        topics.setdefault(topic_id, []).append(index)
    return [ForgottenTopic(topic_id=one, partitions=indexes) for one, indexes in topics.items()]
