"""AlterReplicaLogDirs: moves partitions of this broker to other log folders (KIP-113).

v2  flexible
"""

from __future__ import annotations

from collections.abc import Sequence

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Request, Response, Struct


class AlterReplicaLogDirTopic(Struct):
    name: str = wire.string()
    partitions: Sequence[int] = wire.array(wire.int32)


class AlterReplicaLogDir(Struct):
    """The partitions that move to the log folder `path`."""

    path: str = wire.string()
    topics: Sequence[AlterReplicaLogDirTopic] = wire.array(AlterReplicaLogDirTopic)


class AlterReplicaLogDirsRequest(Request, api=ApiKey.ALTER_REPLICA_LOG_DIRS):
    dirs: Sequence[AlterReplicaLogDir] = wire.array(AlterReplicaLogDir)


class AlterReplicaLogDirPartitionResult(Struct):
    partition_index: int = wire.int32()
    error_code: int = wire.int16(default=0)


class AlterReplicaLogDirTopicResult(Struct):
    topic_name: str = wire.string()
    partitions: Sequence[AlterReplicaLogDirPartitionResult] = wire.array(
        AlterReplicaLogDirPartitionResult
    )


class AlterReplicaLogDirsResponse(Response, api=ApiKey.ALTER_REPLICA_LOG_DIRS):
    throttle_time_ms: int = wire.int32(default=0)
    results: Sequence[AlterReplicaLogDirTopicResult] = wire.array(AlterReplicaLogDirTopicResult)
