"""Moves to another log folder: which replicas, and what DescribeLogDirs says of them meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from strandline.broker.cluster.replicas.partition import LeaderRefusal
from strandline.broker.cluster.replicas.replica_moves import ReplicaMoves
from strandline.broker.handlers.admin.log_dirs import LogDirHandler
from strandline.broker.handlers.services.services import RequestContext, Services
from strandline.broker.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from strandline.broker.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.config.log_config import LogConfig
from strandline.storage.local.log_dirs.log_dirs import LogDirs
from strandline.storage.local.log_dirs.move import LogMove
from strandline.storage.model import TopicPartition
from tests.support.manual_clock import ManualClock
from tests.unit.storage.local.builders import PARTITION, TOPIC_ID, fill


def test_the_copy_in_the_making_is_a_future_replica_with_its_lag(tmp_path: Path) -> None:
    paths = [tmp_path / "one", tmp_path / "two"]
    clock = ManualClock()
    log_dirs = LogDirs.open(paths, node_id=1, cluster_id=None, clock=clock)
    source = log_dirs.create_log(PARTITION, TOPIC_ID, LogConfig())
    other = next(path for path in paths if path != source.directory.parent)
    fill(source, 3)
    source.roll()
    fill(source, 2)
    move = LogMove(source, other / str(PARTITION), clock=clock)
    move.prepare()
    source.roll()
    move.copy_closed(source.segments[:-1])
    copied_bytes = source.size_bytes
    fill(source, 2)

    served = SimpleNamespace(
        topic_partition=PARTITION,
        log=SimpleNamespace(local=source, remote=None, end_offset=source.end_offset),
        high_watermark=source.end_offset,
    )
    services = SimpleNamespace(replicas=SimpleNamespace(partitions=lambda: [served]))
    current: list[LogMove | None] = [move]
    waiting: dict[TopicPartition, Path] = {}
    moves = SimpleNamespace(current=lambda: current[0], waiting=lambda: waiting)
    handler = LogDirHandler(cast(Services, services), log_dirs, cast(ReplicaMoves, moves))
    context = RequestContext(api_version=4, client_id="")

    def futures(topics: list[DescribableLogDirTopic] | None) -> list[tuple[str, int, int]]:
        request = DescribeLogDirsRequest(topics=topics)
        answer = asyncio.run(handler.describe_log_dirs(request, context))
        return [
            (result.log_dir, partition.partition_size, partition.offset_lag)
            for result in answer.results
            for topic in result.topics
            for partition in topic.partitions
            if partition.is_future_key
        ]

    expected = [(str(other), copied_bytes, 20)]
    assert futures(None) == expected
    assert futures([DescribableLogDirTopic(topic=PARTITION.topic, partitions=[0])]) == expected
    assert futures([DescribableLogDirTopic(topic=PARTITION.topic, partitions=[1])]) == []
    move.open_copy(source.active_segment.base_offset)
    move.abandon()
    # Its copy is gone, and it is not yet over.
    assert futures(None) == []
    current[0] = None
    assert futures(None) == []
    waiting[PARTITION] = other
    assert futures(None) == [(str(other), 0, source.end_offset)]
    log_dirs.close()


def test_a_replica_that_follows_moves_too_and_one_that_is_to_come_is_asked_for_again(
    tmp_path: Path,
) -> None:
    """Kafka's kafka-reassign-partitions asks before the replica is there, and until it is."""
    follows = SimpleNamespace(topic_partition=PARTITION, is_leader=False, is_offline=False)
    refusals = {1: ErrorCode.NOT_LEADER_OR_FOLLOWER, 2: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    replicas = SimpleNamespace(
        partition=lambda _topic, index: follows if index == 0 else None,
        refusal_of_missing=lambda _topic, index: LeaderRefusal(refusals[index]),
    )
    asked: list[tuple[object, Path]] = []

    async def note() -> frozenset[Path]:
        return frozenset()

    moves = SimpleNamespace(request=lambda served, path: asked.append((served, path)), note=note)
    handler = LogDirHandler(
        cast(Services, SimpleNamespace(replicas=replicas)),
        cast(LogDirs, None),
        cast(ReplicaMoves, moves),
    )
    topic = AlterReplicaLogDirTopic(name=PARTITION.topic, partitions=[0, 1, 2])
    request = AlterReplicaLogDirsRequest(
        dirs=[AlterReplicaLogDir(path=str(tmp_path), topics=[topic])]
    )
    context = RequestContext(api_version=2, client_id="")
    answer = asyncio.run(handler.alter_replica_log_dirs(request, context))
    assert [one.error_code for one in answer.results[0].partitions] == [
        ErrorCode.NONE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert asked == [(follows, tmp_path)]
