"""The remote tier: where it lies, how it is copied to, read from and tidied up."""

from __future__ import annotations

from collections.abc import Iterator

from strandline.broker.config.definition import HOUR_MS, MIB, TIER, BrokerConfigDef, key
from strandline.storage.config.log_config import LONG_MAX, ConfigType


def tier_keys() -> Iterator[BrokerConfigDef]:
    """The keys in the order of docs/configuration.md."""
    yield from _store_keys()
    yield from _pool_keys()
    yield from _quota_keys()
    yield from _retry_keys()
    yield from _wait_keys()
    yield from _chunk_keys()
    yield from _upkeep_keys()
    yield from _replica_keys()


def _store_keys() -> Iterator[BrokerConfigDef]:
    yield key(
        TIER,
        "remote.log.storage.system.enable",
        ConfigType.BOOLEAN,
        False,
        "Turn the remote tier on; topics still ask for it with remote.storage.enable. Needs"
        " strandline.remote.url.",
    )
    yield key(
        TIER,
        "strandline.remote.url",
        ConfigType.STRING,
        None,
        "Where the remote tier lies: s3://bucket/prefix or file:///folder. Credentials come by the"
        " usual AWS chain.",
    )
    yield key(
        TIER,
        "strandline.remote.s3.endpoint.url",
        ConfigType.STRING,
        None,
        "Address of an S3-compatible server, such as http://127.0.0.1:4566; unset: AWS.",
    )
    yield key(
        TIER,
        "strandline.remote.s3.region",
        ConfigType.STRING,
        None,
        "Region of the bucket; unset: AWS_REGION and the like, else us-east-1.",
    )


def _pool_keys() -> Iterator[BrokerConfigDef]:
    yield key(
        TIER,
        "remote.log.manager.task.interval.ms",
        ConfigType.LONG,
        30_000,
        "Ms between two looks for segments to copy; a closing segment wakes the copier at once.",
        minimum=1,
    )
    yield key(
        TIER,
        "remote.log.manager.copier.thread.pool.size",
        ConfigType.INT,
        10,
        "Segments copied at the same time. May be altered to between half and twice its value.",
        minimum=1,
        maximum=1000,
        dynamic=True,
    )
    yield key(
        TIER,
        "remote.log.manager.expiration.thread.pool.size",
        ConfigType.INT,
        10,
        "Deletes in the archive at the same time, for as many partitions. May be altered to"
        " between half and twice its value.",
        minimum=1,
        maximum=1000,
        dynamic=True,
    )
    yield key(
        TIER,
        "remote.log.reader.threads",
        ConfigType.INT,
        10,
        "Requests to the object store at the same time on behalf of readers, at most: a near store"
        " is asked for fewer chunks ahead. May be altered to between half and twice its value.",
        minimum=1,
        maximum=1000,
        dynamic=True,
    )
    yield key(
        TIER,
        "remote.log.index.file.cache.total.size.bytes",
        ConfigType.LONG,
        1024 * MIB,
        "Memory for indexes of remote segments, of which at most 4,096 are kept; the least recently"
        " used is dropped first.",
        minimum=1,
        dynamic=True,
    )
    yield key(
        TIER,
        "remote.log.reader.max.pending.tasks",
        ConfigType.INT,
        100,
        "Remote reads waiting for a thread; further fetches get an empty answer.",
        minimum=1,
    )


def _quota_keys() -> Iterator[BrokerConfigDef]:
    for way, what in (("copy", "sent to"), ("fetch", "read from")):
        yield key(
            TIER,
            f"remote.log.manager.{way}.max.bytes.per.second",
            ConfigType.LONG,
            LONG_MAX,
            f"Bytes per second {what} the remote tier by this broker, over the quota's windows.",
            minimum=1,
            dynamic=True,
        )
        yield key(
            TIER,
            f"remote.log.manager.{way}.quota.window.num",
            ConfigType.INT,
            11,
            f"Windows that the rate of the {way} quota is measured over.",
            minimum=1,
        )
        yield key(
            TIER,
            f"remote.log.manager.{way}.quota.window.size.seconds",
            ConfigType.INT,
            1,
            f"Seconds that a window of the {way} quota lasts.",
            minimum=1,
        )


def _retry_keys() -> Iterator[BrokerConfigDef]:
    yield key(
        TIER,
        "remote.log.manager.task.retry.backoff.ms",
        ConfigType.LONG,
        500,
        "Ms before the first repetition of what failed; each further wait is twice as long.",
        minimum=1,
    )
    yield key(
        TIER,
        "remote.log.manager.task.retry.backoff.max.ms",
        ConfigType.LONG,
        30_000,
        "Longest such wait, in ms.",
        minimum=1,
    )
    yield key(
        TIER,
        "remote.log.manager.task.retry.jitter",
        ConfigType.DOUBLE,
        0.2,
        "Part of such a wait that is left to chance, so that partitions spread.",
        minimum=0,
        maximum=0.5,
    )


def _wait_keys() -> Iterator[BrokerConfigDef]:
    yield key(
        TIER,
        "remote.fetch.max.wait.ms",
        ConfigType.INT,
        500,
        "Longest wait of a fetch for the remote tier, in ms; the download goes on.",
        minimum=1,
        dynamic=True,
    )
    yield key(
        TIER,
        "strandline.remote.fetch.yield.ms",
        ConfigType.DOUBLE,
        0.25,
        "Cold reads make way for live traffic. While records are produced, they are slowed down"
        " until 99 of 100 requests wait for their turn no longer than this, or than 1.3 times what"
        " they wait without cold reads, in ms. Without live traffic they go at full speed. 0: they"
        " never make way.",
        minimum=0,
        dynamic=True,
    )
    yield key(
        TIER,
        "strandline.remote.fetch.yield.floor.bytes.per.second",
        ConfigType.LONG,
        16 * MIB,
        "Bytes per second that all cold reads together get at least, however busy the broker is, so"
        " that each of them advances. A machine without a free core has the floor below.",
        minimum=64 * 1024,
        dynamic=True,
    )
    yield key(
        TIER,
        "strandline.remote.fetch.yield.full.floor.bytes.per.second",
        ConfigType.LONG,
        4 * MIB,
        "The same on a machine without a free core: where the broker waits for a core longer than"
        " strandline.remote.fetch.yield.ms, and longer than 1.3 times what it waits without cold"
        " reads. It is never above the other floor.",
        minimum=64 * 1024,
        dynamic=True,
    )
    yield key(
        TIER,
        "remote.list.offsets.request.timeout.ms",
        ConfigType.LONG,
        30_000,
        "Longest wait of ListOffsets for the remote tier, in ms.",
        minimum=1,
        dynamic=True,
    )


def _chunk_keys() -> Iterator[BrokerConfigDef]:
    yield key(
        TIER,
        "strandline.remote.chunk.bytes",
        ConfigType.INT,
        8 * MIB,
        "Bytes of a segment that are fetched at a time, rounded up to about a mebibyte.",
        minimum=64 * 1024,
        maximum=256 * MIB,
    )
    yield key(
        TIER,
        "strandline.remote.cache.memory.bytes",
        ConfigType.LONG,
        128 * MIB,
        "Memory for chunks of remote segments.",
        minimum=0,
    )
    yield key(
        TIER,
        "strandline.remote.cache.disk.bytes",
        ConfigType.LONG,
        0,
        "Disk space for chunks of remote segments, at most 16,384 of them; they outlive a restart."
        " 0: none.",
        minimum=0,
    )
    yield key(
        TIER,
        "strandline.remote.cache.directory",
        ConfigType.STRING,
        None,
        "Folder of the chunks on disk; unset: remote-cache in the first log folder.",
    )


def _upkeep_keys() -> Iterator[BrokerConfigDef]:
    yield key(
        TIER,
        "strandline.remote.delete.grace.ms",
        ConfigType.LONG,
        HOUR_MS,
        "Ms between taking a segment out of the manifest and deleting its objects, so that readers"
        " who planned with the older manifest still find them.",
        minimum=0,
    )
    yield key(
        TIER,
        "strandline.remote.groups.upload.ms",
        ConfigType.LONG,
        60_000,
        "Ms between two writes of changed group offsets to the bucket, from where a restore takes"
        " them.",
        minimum=1,
    )
    yield key(
        TIER,
        "strandline.remote.check.interval.ms",
        ConfigType.LONG,
        600_000,
        "Ms between two looks whether cluster.json, the metadata and the groups' offsets still lie"
        " in the bucket: three requests. What was deleted is written again.",
        minimum=10,
    )
    yield key(
        TIER,
        "strandline.remote.orphan.grace.ms",
        ConfigType.LONG,
        24 * HOUR_MS,
        "Objects that no manifest names are deleted when they are older than this many ms, and than"
        " two copies and the delete grace may take.",
        minimum=1,
    )
    yield key(
        TIER,
        "strandline.remote.orphan.check.interval.ms",
        ConfigType.LONG,
        24 * HOUR_MS,
        "Ms between two looks for objects that no manifest names; each lists the whole archive.",
        minimum=1,
    )
    yield key(
        TIER,
        "strandline.remote.merge.target.bytes",
        ConfigType.LONG,
        64 * MIB,
        "Adjacent small segments are merged in the remote tier into objects of up to this size; 0:"
        " never. One is held on the local disk while it is made.",
        minimum=0,
        maximum=1024 * MIB,
    )
    yield key(
        TIER,
        "strandline.remote.copy.timeout.ms",
        ConfigType.LONG,
        900_000,
        "A copy of one segment that takes longer is given up and tried again, in ms.",
        minimum=1,
    )


def _replica_keys() -> Iterator[BrokerConfigDef]:
    yield key(
        TIER,
        "strandline.remote.replica.poll.ms",
        ConfigType.LONG,
        10_000,
        "Ms between two looks of a read-only replica at the archive that it serves.",
        minimum=10,
    )
    yield key(
        TIER,
        "strandline.remote.replica.full.poll.ms",
        ConfigType.LONG,
        600_000,
        "Ms after which a read-only replica asks for every manifest, whatever the list of changes"
        " says that the archive's broker writes.",
        minimum=10,
    )
    yield key(
        TIER,
        "strandline.remote.changes.interval.ms",
        ConfigType.LONG,
        5_000,
        "Ms between two writes of the list of changes, which tells read-only replicas what to ask"
        " for: one request each, while something changes. -1: none is written.",
        minimum=-1,
    )
