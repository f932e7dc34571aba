"""Sessions of followers: a fetch looks at what there may be news of, and at nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, cast

from strandline.broker.cluster.metadata.records import topic_records
from strandline.broker.handlers.fetch.replica_sessions import SESSIONS_MAX, ReplicaSessions
from strandline.broker.network.responses import Answer, DeferredAnswer
from strandline.broker.protocol.codec.codec import decode
from strandline.broker.protocol.header import RequestHeader, body_of_response
from strandline.broker.protocol.messages.fetch import (
    FetchPartition,
    FetchReplicaState,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.files import FileRange
from tests.unit.broker.cluster.controlled import A, registered
from tests.unit.broker.replication.rig import Control, Node, cluster
from tests.unit.storage.local.builders import batch

VERSION, FOLLOWER, PARTITIONS = 17, 2, 5
HEADER = RequestHeader(ApiKey.FETCH, VERSION, 1, "follower", 0)
Named = tuple[int, int, int]


class Follower:
    """Sends fetches of broker 2 to broker 1, as its only follower."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.session_id = self.epoch = 0

    def ask(
        self,
        *named: Named,
        wait_ms: int = 0,
        forgotten: Sequence[int] = (),
        **more: Any,
    ) -> Answer:
        """Asks for partitions from an offset on, whose last epoch is given."""
        wanted = [
            FetchPartition(
                partition=index,
                current_leader_epoch=0,
                fetch_offset=offset,
                last_fetched_epoch=epoch,
                log_start_offset=0,
                partition_max_bytes=1 << 20,
            )
            for index, offset, epoch in named
        ]
        request = FetchRequest(
            replica_state=FetchReplicaState(replica_id=FOLLOWER, replica_epoch=0),
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=10 << 20,
            session_id=self.session_id,
            session_epoch=self.epoch,
            topics=[FetchTopic(topic_id=A, partitions=wanted)] if wanted else (),
            forgotten_topics=[ForgottenTopic(topic_id=A, partitions=forgotten)]
            if forgotten
            else (),
        ).replaced(**more)
        return self.node.fetches.handle(request, HEADER, None)

    def told(self, answer: Answer) -> dict[int, tuple[int, int, int]]:
        """Returns code, high watermark and bytes of the partitions that an answer names."""
        parts = cast("list[Any]", answer)
        whole = b"".join(x.read() if isinstance(x, FileRange) else bytes(x) for x in parts)
        body = body_of_response(ApiKey.FETCH, VERSION, memoryview(whole)[4:])
        response = decode(FetchResponse, VERSION, body)
        assert response.error_code == 0, ErrorCode(response.error_code).name
        self.session_id, self.epoch = response.session_id, self.epoch + 1
        return {
            one.index: (one.error_code, one.high_watermark, one.records_bytes)
            for topic in response.topics
            for one in topic.partitions
        }

    def begin(self) -> None:
        """A full fetch from the beginning of all partitions."""
        found = self.told(self.ask(*((index, 0, -1) for index in range(PARTITIONS))))
        assert found == dict.fromkeys(range(PARTITIONS), (0, 0, 0))

    @property
    def dirty(self) -> list[int]:
        session = self.node.fetches._sessions._sessions[self.session_id]
        return sorted(one.key[1] for one in session.dirty)


def play(path: Path, scenario: Callable[[Control, Follower], Awaitable[None]]) -> None:
    async def run() -> None:
        async with cluster(path, 1) as control:
            control.image = control.image.apply_entry([registered(FOLLOWER)])
            await control.apply(*topic_records("t", A, [(1, FOLLOWER)] * PARTITIONS, {}))
            await scenario(control, Follower(control.nodes[1]))

    asyncio.run(run())


def append(follower: Follower, index: int) -> int:
    partition = follower.node.replicas.partition("t", index)
    assert partition is not None
    return partition.append(memoryview(bytearray(batch(3)))).size_bytes


def test_an_incremental_fetch_looks_at_what_was_appended_alone(tmp_path: Path) -> None:
    async def scenario(_: Control, follower: Follower) -> None:
        follower.begin()
        assert follower.dirty == []
        size_bytes = append(follower, 3)
        assert follower.dirty == [3]
        assert follower.told(follower.ask()) == {3: (0, 0, size_bytes)}
        # Until it says that it has it, it may need it once more.
        assert follower.dirty == [3]
        assert follower.told(follower.ask((3, 3, 0))) == {3: (0, 3, 0)}
        assert follower.dirty == []

    play(tmp_path, scenario)


def test_a_parked_fetch_takes_the_appends_of_the_next_turn_along(tmp_path: Path) -> None:
    async def scenario(_: Control, follower: Follower) -> None:
        follower.begin()
        parked = follower.ask(wait_ms=60_000)
        assert isinstance(parked, DeferredAnswer)
        answers: list[Any] = []
        parked.attach(answers.append, answers.append)
        sizes = [append(follower, 1)]
        await asyncio.sleep(0)
        sizes.append(append(follower, 4))
        assert answers == []
        await asyncio.sleep(0)
        (answer,) = answers
        assert follower.told(answer) == {1: (0, 0, sizes[0]), 4: (0, 0, sizes[1])}
        assert follower.node.fetches.parked_count == 0

    play(tmp_path, scenario)


def test_a_follower_that_has_gone_leaves_nothing_parked(tmp_path: Path) -> None:
    async def scenario(_: Control, follower: Follower) -> None:
        follower.begin()
        parked = follower.ask(wait_ms=60_000)
        assert isinstance(parked, DeferredAnswer)
        parked.cancel()
        assert follower.node.fetches.parked_count == 0
        append(follower, 1)
        await asyncio.sleep(0)

    play(tmp_path, scenario)


def test_what_moved_without_an_append_is_told_by_a_later_fetch(tmp_path: Path) -> None:
    async def scenario(_: Control, follower: Follower) -> None:
        follower.begin()
        append(follower, 2)
        follower.told(follower.ask())
        assert follower.told(follower.ask((2, 3, 0))) == {2: (0, 3, 0)}
        partition = follower.node.replicas.partition("t", 2)
        assert partition is not None
        partition.log.delete_records(1)
        session = follower.node.fetches._sessions._sessions[follower.session_id]
        session.swept_ms = 0.0
        assert follower.told(follower.ask()) == {2: (0, 3, 0)}

    play(tmp_path, scenario)


def test_a_partition_that_is_not_led_any_more_is_told_until_it_is_left_out(
    tmp_path: Path,
) -> None:
    async def scenario(control: Control, follower: Follower) -> None:
        follower.begin()
        parked = follower.ask(wait_ms=60_000)
        assert isinstance(parked, DeferredAnswer)
        answers: list[Any] = []
        parked.attach(answers.append, answers.append)
        await control.elect(FOLLOWER)
        while not answers:
            await asyncio.sleep(0)
        fenced = (ErrorCode.FENCED_LEADER_EPOCH, -1, 0)
        assert follower.told(answers[0]) == {0: fenced}
        assert follower.told(follower.ask()) == {0: fenced}
        follower.told(follower.ask(forgotten=[0]))
        assert follower.dirty == []

    play(tmp_path, scenario)


def test_a_broker_that_is_no_replica_is_refused(tmp_path: Path) -> None:
    async def scenario(_: Control, follower: Follower) -> None:
        stranger = FetchReplicaState(replica_id=7, replica_epoch=0)
        answer = follower.ask((0, 0, -1), replica_state=stranger)
        assert follower.told(answer) == {0: (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, 0)}

    play(tmp_path, scenario)


def test_sessions_are_continued_by_their_broker_alone_and_the_oldest_give_way() -> None:
    sessions = ReplicaSessions()
    first = sessions.of(0, 0, broker_id=2, user="a")
    assert not isinstance(first, ErrorCode)
    number = first.session_id
    for user, broker_id in (("b", 2), ("a", 3)):
        refused = sessions.of(number, 1, broker_id=broker_id, user=user)
        assert refused is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    wrong = sessions.of(number, 5, broker_id=2, user="a")
    assert wrong is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert sessions.of(number, 1, broker_id=2, user="a") is first
    for _ in range(SESSIONS_MAX):
        sessions.of(0, 0, broker_id=2, user="a")
    assert len(sessions) == SESSIONS_MAX
    gone = sessions.of(number, 2, broker_id=2, user="a")
    assert gone is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
