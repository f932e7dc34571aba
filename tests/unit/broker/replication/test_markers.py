"""The end of a transaction counts in a partition once all in sync have its marker."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

from strandline.broker.coordination.transactions.markers import (
    CommittedOffsets,
    EndMarker,
    LocalMarkers,
)
from strandline.broker.coordination.transactions.transaction import (
    ProducerIdentity,
    TransactionVersion,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.model import TopicPartition
from strandline.storage.records.batch.marker import MarkerType
from tests.unit.broker.replication.rig import Node, cluster, until

WHERE = TopicPartition("t", 0)
MARKER = EndMarker(
    producer=ProducerIdentity(7, 0),
    end=MarkerType.COMMIT,
    coordinator_epoch=1,
    version=TransactionVersion.V0,
)


def markers_of(node: Node) -> LocalMarkers:
    return LocalMarkers(
        node.replicas,
        cast(CommittedOffsets, None),
        node.dirs._clock,
        spawn=lambda work: node.tasks.append(asyncio.ensure_future(work)),
    )


def test_a_marker_counts_when_followers_have_it(tmp_path: Path) -> None:
    async def mark() -> None:
        async with cluster(tmp_path) as control:
            await control.create(1, 2)
            leader, follower = control.nodes[1], control.nodes[2]
            follower.is_cut = True
            told: list[ErrorCode] = []
            assert markers_of(leader).write(MARKER, WHERE, told.append) is None
            await asyncio.sleep(0.05)
            assert told == []
            follower.is_cut = False
            await until(lambda: told == [ErrorCode.NONE])
            assert follower.end == leader.end == 1

    asyncio.run(mark())


def test_a_marker_of_a_leader_that_leads_no_more_does_not_count(tmp_path: Path) -> None:
    async def mark() -> None:
        async with cluster(tmp_path) as control:
            await control.create(1, 2)
            leader, follower = control.nodes[1], control.nodes[2]
            follower.is_cut = True
            told: list[ErrorCode] = []
            assert markers_of(leader).write(MARKER, WHERE, told.append) is None
            await control.elect(2, isr=(2,))
            await until(lambda: told == [ErrorCode.NOT_LEADER_OR_FOLLOWER])
            code = markers_of(leader).write(MARKER, WHERE, told.append)
            assert code is ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert follower.end == 0

    asyncio.run(mark())


def test_no_marker_is_written_with_too_few_in_sync(tmp_path: Path) -> None:
    async def mark() -> None:
        async with cluster(tmp_path) as control:
            control.nodes[2].is_cut = True
            await control.create(1, 2, isr=(1,), min_insync_replicas="2")
            code = markers_of(control.nodes[1]).write(MARKER, WHERE)
            assert code is ErrorCode.NOT_ENOUGH_REPLICAS
            assert control.nodes[1].end == 0

    asyncio.run(mark())


def test_without_followers_a_marker_counts_at_once(tmp_path: Path) -> None:
    async def mark() -> None:
        async with cluster(tmp_path) as control:
            await control.create(1)
            assert markers_of(control.nodes[1]).write(MARKER, WHERE) is ErrorCode.NONE

    asyncio.run(mark())


def test_a_marker_counts_when_it_is_on_the_device_that_is_to_have_it(tmp_path: Path) -> None:
    """Nobody writes it again that power takes, once its transaction is complete."""

    async def mark() -> None:
        async with cluster(tmp_path) as control:
            await control.create(1, flush_messages="1")
            leader = control.nodes[1]
            told: list[tuple[ErrorCode, int]] = []

            def note(code: ErrorCode) -> None:
                told.append((code, leader.partition.log.local.recovery_point))

            assert markers_of(leader).write(MARKER, WHERE, note) is None
            assert told == []
            await until(lambda: told == [(ErrorCode.NONE, 1)])

    asyncio.run(mark())


def test_a_marker_that_is_synced_counts_when_followers_have_it_too(tmp_path: Path) -> None:
    async def mark() -> None:
        async with cluster(tmp_path) as control:
            await control.create(1, 2, flush_messages="1")
            leader, follower = control.nodes[1], control.nodes[2]
            follower.is_cut = True
            told: list[ErrorCode] = []
            assert markers_of(leader).write(MARKER, WHERE, told.append) is None
            await until(lambda: leader.partition.log.local.recovery_point == 1)
            await asyncio.sleep(0.05)
            assert told == []
            follower.is_cut = False
            await until(lambda: told == [ErrorCode.NONE])
            assert follower.partition.log.local.recovery_point == 1

    asyncio.run(mark())
