"""DescribeLogDirs and AlterReplicaLogDirs: contents of the log folders, and moves between them.

DescribeLogDirs      0-5   2 flexible; 3 a top-level error; 4 size of the volume; 5 cordoned folders
                           (none are)
AlterReplicaLogDirs  0-2   2 flexible; answers when the move is recorded; until it is complete,
                           DescribeLogDirs lists the copy as a future replica

Sizes are those of the local tier, without the archive. From version 2 on, a tagged field of ours
has the size in the remote tier. For an offline folder only its error is returned.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from strandline.broker.cluster.replicas.partition import Partition
from strandline.broker.cluster.replicas.replica_moves import LogDirNotFound, ReplicaMoves
from strandline.broker.handlers.services.limits import refuse_flood
from strandline.broker.handlers.services.services import RequestContext, Services
from strandline.broker.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from strandline.broker.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.errors import DiskError
from strandline.storage.local.log_dirs.log_dirs import LogDirs
from strandline.storage.model import TopicPartition

UNKNOWN_BYTES = -1


class LogDirHandler:
    """Handlers that describe log folders and request moves."""

    def __init__(self, services: Services, log_dirs: LogDirs, moves: ReplicaMoves) -> None:
        self._replicas = services.replicas
        self._log_dirs = log_dirs
        self._moves = moves

    async def alter_replica_log_dirs(
        self, request: AlterReplicaLogDirsRequest, _context: RequestContext
    ) -> AlterReplicaLogDirsResponse:
        refuse_flood(sum(len(topic.partitions) for d in request.dirs for topic in d.topics))
        codes: dict[str, dict[int, int]] = {}
        for wanted in request.dirs:
            for topic in wanted.topics:
                for partition in topic.partitions:
                    code = self._request(topic.name, partition, wanted.path)
                    codes.setdefault(topic.name, {})[partition] = code
        failed = {path.absolute() for path in await self._moves.note()}
        for wanted in request.dirs:
            for topic in wanted.topics if Path(wanted.path) in failed else ():
                codes[topic.name] |= dict.fromkeys(topic.partitions, ErrorCode.KAFKA_STORAGE_ERROR)
        return AlterReplicaLogDirsResponse(
            results=[
                AlterReplicaLogDirTopicResult(
                    topic_name=name,
                    partitions=[
                        AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code)
                        for index, code in partitions.items()
                    ],
                )
                for name, partitions in codes.items()
            ]
        )

    def _request(self, topic: str, partition: int, path: str) -> int:
        """Requests one move; returns the error code of the partition."""
        served = self._replicas.partition(topic, partition)
        if served is None:
            code = self._replicas.refusal_of_missing(topic, partition).code
            # A plan may name a replica that is still to come: Kafka's tool asks again.
            is_to_come = code is ErrorCode.NOT_LEADER_OR_FOLLOWER
            return ErrorCode.REPLICA_NOT_AVAILABLE if is_to_come else code
        if served.is_offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if not path.startswith("/") or "\0" in path:
            return ErrorCode.LOG_DIR_NOT_FOUND
        try:
            self._moves.request(served, Path(path))
        except LogDirNotFound as error:
            return error.kafka_code
        except DiskError:
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NONE

    async def describe_log_dirs(
        self, request: DescribeLogDirsRequest, _context: RequestContext
    ) -> DescribeLogDirsResponse:
        wanted: dict[str, set[int]] | None = None
        if request.topics is not None:
            refuse_flood(len(request.topics))
            refuse_flood(sum(len(topic.partitions) for topic in request.topics))
            wanted = {}
            for topic in request.topics:
                wanted.setdefault(topic.topic, set()).update(topic.partitions)
        online = [d.path for d in self._log_dirs.directories if d.failure is None]
        # Off the loop: a volume that hangs must delay this client alone.
        usages = await asyncio.gather(*(asyncio.to_thread(_usage, path) for path in online))
        by_folder = self._by_folder(wanted)
        return DescribeLogDirsResponse(
            results=[
                DescribeLogDirsResult(
                    log_dir=str(path.absolute()),
                    topics=_topics(by_folder.get(path, ()), self._futures_in(path, by_folder)),
                    total_bytes=total_bytes,
                    usable_bytes=usable_bytes,
                )
                for path, (total_bytes, usable_bytes) in zip(online, usages, strict=True)
            ]
            + [
                DescribeLogDirsResult(
                    log_dir=str(path.absolute()), error_code=ErrorCode.KAFKA_STORAGE_ERROR
                )
                for path in self._log_dirs.failures
            ]
        )

    def _futures_in(
        self, path: Path, by_folder: Mapping[Path, Sequence[Partition]]
    ) -> dict[TopicPartition, DescribeLogDirsPartition]:
        """Returns the replicas moving to this folder: the running copy, and pending ones."""
        move, waiting = self._moves.current(), self._moves.waiting()
        futures = {}
        for served in (served for some in by_folder.values() for served in some):
            key = served.topic_partition
            if move is not None and (key, path) == (
                move.source.topic_partition,
                move.target.parent,
            ):
                try:
                    size_bytes, offset_lag = move.size_bytes, move.offset_lag
                except DiskError:
                    continue  # The move has failed, and its copy is being removed.
            elif waiting.get(key) == path:
                size_bytes, offset_lag = 0, served.log.end_offset
            else:
                continue
            futures[key] = DescribeLogDirsPartition(
                partition_index=key.partition,
                partition_size=size_bytes,
                offset_lag=offset_lag,
                is_future_key=True,
            )
        return futures

    def _by_folder(self, wanted: Mapping[str, set[int]] | None) -> dict[Path, list[Partition]]:
        by_folder: dict[Path, list[Partition]] = {}
        for served in self._replicas.partitions():
            key = served.topic_partition
            if wanted is None or key.partition in wanted.get(key.topic, ()):
                by_folder.setdefault(served.log.local.directory.parent, []).append(served)
        return by_folder


def _topics(
    partitions: Sequence[Partition], futures: Mapping[TopicPartition, DescribeLogDirsPartition]
) -> list[DescribeLogDirsTopic]:
    by_topic: dict[str, list[DescribeLogDirsPartition]] = {}
    for key, future in futures.items():
        by_topic.setdefault(key.topic, []).append(future)
    for served in partitions:
        key = served.topic_partition
        by_topic.setdefault(key.topic, []).append(
            DescribeLogDirsPartition(
                partition_index=key.partition,
                partition_size=served.log.local.size_bytes,
                # How far it ends below the high watermark (Kafka's getLogEndOffsetLag).
                offset_lag=0,
                remote_size=_remote_bytes(served),
            )
        )
    return [DescribeLogDirsTopic(name=name, partitions=rows) for name, rows in by_topic.items()]


def _remote_bytes(served: Partition) -> int:
    remote = served.log.remote
    if remote is None or not remote.known:
        return UNKNOWN_BYTES
    return 0 if remote.manifest is None else remote.manifest.size_bytes


def _usage(path: Path) -> tuple[int, int]:
    """Returns the total and the usable bytes of the volume; blocks."""
    try:
        volume = os.statvfs(path)
    except OSError:
        return UNKNOWN_BYTES, UNKNOWN_BYTES
    return volume.f_blocks * volume.f_frsize, volume.f_bavail * volume.f_frsize
