"""DescribeLogDirs: the folders of a broker, and the size of each partition in them.

v2  flexible    v3  top-level error    v4  size of the volume    v5  cordoned folders
"""

from __future__ import annotations

from collections.abc import Sequence

from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import OWN_TAG_MIN, Request, Response, Struct


class DescribableLogDirTopic(Struct):
    topic: str = wire.string()
    partitions: Sequence[int] = wire.array(wire.int32)


class DescribeLogDirsRequest(Request, api=ApiKey.DESCRIBE_LOG_DIRS):
    """The partitions to describe; `topics` None requests all of them."""

    topics: Sequence[DescribableLogDirTopic] | None = wire.array(
        DescribableLogDirTopic, nullable="0+"
    )


class DescribeLogDirsPartition(Struct):
    """One replica; with `is_future_key` a copy that is still moving to this folder.

    `remote_size` is ours: bytes in the remote tier, -1 if there is none or it is unknown.
    """

    partition_index: int = wire.int32()
    partition_size: int = wire.int64()
    offset_lag: int = wire.int64()
    is_future_key: bool = wire.boolean(default=False)
    remote_size: int = wire.int64("2+", tag=OWN_TAG_MIN, default=-1)


class DescribeLogDirsTopic(Struct):
    name: str = wire.string()
    partitions: Sequence[DescribeLogDirsPartition] = wire.array(DescribeLogDirsPartition)


class DescribeLogDirsResult(Struct):
    """One log folder with its replicas; sizes are in bytes, -1 is unknown."""

    error_code: int = wire.int16(default=0)
    log_dir: str = wire.string()
    topics: Sequence[DescribeLogDirsTopic] = wire.array(DescribeLogDirsTopic, default=())
    total_bytes: int = wire.int64("4+", default=-1)
    usable_bytes: int = wire.int64("4+", default=-1)
    is_cordoned: bool = wire.boolean("5+", default=False)


class DescribeLogDirsResponse(Response, api=ApiKey.DESCRIBE_LOG_DIRS):
    throttle_time_ms: int = wire.int32(default=0)
    error_code: int = wire.int16("3+", default=0)
    results: Sequence[DescribeLogDirsResult] = wire.array(DescribeLogDirsResult)
