"""The log folders and the work behind the scenes: recovery, retention, compaction."""

from __future__ import annotations

from collections.abc import Iterator

from strandline.broker.config.definition import LOG, MIB, BrokerConfigDef, key
from strandline.storage.config.log_config import LONG_MAX, ConfigType


def log_keys() -> Iterator[BrokerConfigDef]:
    # Not Kafka's /tmp/kafka-logs: /tmp is emptied when the machine starts.
    yield key(
        LOG,
        "log.dir",
        ConfigType.STRING,
        "strandline-data",
        "Folder of the logs if log.dirs is unset, relative to the working directory.",
    )
    yield key(
        LOG,
        "log.dirs",
        ConfigType.LIST,
        None,
        "Folders of the logs, comma separated; a new partition goes where there are fewest.",
    )
    yield key(
        LOG,
        "num.recovery.threads.per.data.dir",
        ConfigType.INT,
        2,
        "Logs of one folder that are opened at the same time at start-up, or recovered.",
        minimum=1,
        maximum=256,
    )
    yield key(
        LOG,
        "log.retention.check.interval.ms",
        ConfigType.LONG,
        300_000,
        "Ms between two looks for segments to delete.",
        minimum=1,
    )
    yield key(
        LOG,
        "log.initial.task.delay.ms",
        ConfigType.LONG,
        30_000,
        "Ms after the start before background work on logs begins.",
        minimum=0,
    )
    yield from _cleaner_keys()


def _cleaner_keys() -> Iterator[BrokerConfigDef]:
    yield key(
        LOG,
        "log.cleaner.enable",
        ConfigType.BOOLEAN,
        True,
        "Compact the topics with cleanup.policy=compact, __consumer_offsets among them. Without it"
        " they only grow.",
    )
    yield key(
        LOG,
        "log.cleaner.threads",
        ConfigType.INT,
        1,
        "Logs compacted at the same time, each in a process of its own.",
        minimum=0,
        maximum=1000,
    )
    yield key(
        LOG,
        "log.cleaner.io.max.bytes.per.second",
        ConfigType.DOUBLE,
        "1.7976931348623157E308",
        "Most bytes per second that all compaction reads and writes together.",
        minimum=1,
        dynamic=True,
    )
    yield key(
        LOG,
        "log.cleaner.dedupe.buffer.size",
        ConfigType.LONG,
        128 * MIB,
        "Memory for keys during compaction over all threads, in bytes: 24 a key. What does not fit"
        " is done in further passes. At least 1 MiB a thread.",
        minimum=MIB,
        dynamic=True,
    )
    yield key(
        LOG,
        "log.cleaner.io.buffer.size",
        ConfigType.INT,
        512 * 1024,
        "Memory to read and write with during compaction over all threads, in bytes; it grows for"
        " larger batches.",
        minimum=0,
        dynamic=True,
    )
    yield key(
        LOG,
        "log.cleaner.io.buffer.load.factor",
        ConfigType.DOUBLE,
        "0.9",
        "How full the memory for keys may become, 0 to 1; the fuller, the slower a look-up.",
        minimum=0.01,
        maximum=0.99,
        dynamic=True,
    )
    yield key(
        LOG,
        "log.cleaner.backoff.ms",
        ConfigType.LONG,
        15_000,
        "Ms between two looks for a log to compact, when there was none.",
        minimum=0,
        dynamic=True,
    )
    for side in ("leader", "follower"):
        yield key(
            LOG,
            f"{side}.replication.throttled.rate",
            ConfigType.LONG,
            LONG_MAX,
            "Set, and taken back, by kafka-reassign-partitions --throttle. One broker replicates"
            " nothing, so there is nothing to hold back.",
            minimum=0,
            dynamic=True,
        )
