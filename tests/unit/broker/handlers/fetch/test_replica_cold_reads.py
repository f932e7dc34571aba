"""A follower without the archive gets all of the log from its leader, also what is archived."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from strandline.broker.handlers.fetch.replica_cold_reads import READS_MAX, read_for
from strandline.broker.handlers.fetch.replica_sessions import FollowedPartition, ReplicaSession
from strandline.storage.errors import TierUnavailable
from strandline.storage.model import Isolation, Offset
from strandline.storage.tiering.log.cold_read import RemoteRead
from strandline.storage.tiering.log.unified_log import UnifiedLog
from tests.unit.broker.replication.rig import Node, cluster, until


class Archive:
    """Answers with the batches of a log that were on its disk before it freed them."""

    def __init__(self, leader: Node) -> None:
        self.asked: list[Offset] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.failures = 0
        local = leader.partition.log.local
        local.roll()
        self._batches = {
            segment.base_offset: (segment.log_path.read_bytes(), segment.end_offset)
            for segment in local.segments[:-1]
        }
        local.delete_segments(local.segments[:-1])

    async def read_remote(
        self, offset: Offset, *, bytes_max: int, isolation: Isolation = Isolation.LOG_END
    ) -> RemoteRead:
        self.asked.append(offset)
        await self.may_answer.wait()
        if self.failures:
            self.failures -= 1
            raise TierUnavailable("segment", "get", "planted")
        content, next_offset = self._batches[offset]
        return RemoteRead(
            buffers=[memoryview(content)], size_bytes=len(content), next_offset=next_offset
        )


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Archive]:
    """The archive that logs read, once a test has put one in."""
    found: list[Archive] = []

    async def read_remote(_: UnifiedLog, *words: Offset, **more: int) -> RemoteRead:
        return await found[0].read_remote(*words, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(UnifiedLog, "read_remote", read_remote)
    return found


def test_a_follower_without_the_archive_gets_what_is_archived_and_then_what_is_local(
    tmp_path: Path, reads: list[Archive]
) -> None:
    """A read that fails is tried again."""

    async def replicate() -> None:
        async with cluster(tmp_path) as control:
            control.archiving.discard(2)
            await control.create(1, 2, isr=[1], remote_storage_enable="true")
            leader, follower = control.nodes[1], control.nodes[2]
            follower.is_cut = True
            for _ in range(3):
                leader.append(4)
                leader.partition.log.local.roll()
            whole = leader.content()
            reads.append(archive := Archive(leader))
            archive.failures = 1
            end = leader.append(2)
            follower.is_cut = False
            await until(lambda: follower.end == end)
            assert follower.content() == whole + leader.content()
            assert archive.asked == [0, 0, 4, 8]
            await until(lambda: control.image.topics["t"].partitions[0].isr == (1, 2))

    asyncio.run(replicate())


def test_a_session_has_few_reads_and_drops_those_that_nobody_waits_for(
    tmp_path: Path, reads: list[Archive]
) -> None:
    async def read() -> None:
        async with cluster(tmp_path, 1) as control:
            await control.create(1, remote_storage_enable="true")
            leader = control.nodes[1]
            leader.append(4)
            reads.append(archive := Archive(leader))
            archive.may_answer.clear()
            session = ReplicaSession(1, 2, "")
            news: list[object] = []
            session.on_news = news.append
            many = [FollowedPartition(("t", index)) for index in range(READS_MAX + 1)]
            for one in many:
                session.partitions[one.key] = one
                assert read_for(session, one, leader.partition, 1000) is None
            assert list(session.cold_reads) == many[:-1]
            # The follower was truncated: it wants another offset.
            many[0].fetch_offset = 4
            assert read_for(session, many[0], leader.partition, 1000) is None
            assert archive.asked == [0, 0, 0, 0, 4]
            session.forget([many[1].key])
            many[0].fetch_offset = 0
            assert read_for(session, many[0], leader.partition, 1000) is None
            archive.may_answer.set()
            await until(lambda: len(news) == READS_MAX - 1)
            assert {*session.dirty} == {many[0], many[2], many[3]}
            for one in (many[0], many[2], many[3]):
                found = read_for(session, one, leader.partition, 1000)
                assert found is not None
                assert found.next_offset == 4
            assert not session.cold_reads

    asyncio.run(read())
