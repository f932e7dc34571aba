"""Settings of tiering: times, sizes, threads, and the executors."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from strandline.storage.config.definition import HOUR_MS, INT, LONG, MIB, key, section
from strandline.storage.tiering.policy.quota import QuotaLimits
from strandline.storage.tiering.policy.retry import RetryPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class TieringConfig:
    """Settings of copies, deletions and merges."""

    task_interval_ms: int = key(
        "remote.log.manager.task.interval.ms",
        LONG,
        30_000,
        "Ms between two checks for segments to copy; a closing segment starts a check at once.",
        minimum=1,
    )
    workers: int = key(
        "remote.log.manager.copier.thread.pool.size",
        INT,
        10,
        "Segments copied at the same time. May be altered to between half and twice its value.",
        minimum=1,
        maximum=1000,
        dynamic=True,
    )
    expiration_threads: int = key(
        "remote.log.manager.expiration.thread.pool.size",
        INT,
        10,
        "Deletes in the archive at the same time, for as many partitions. May be altered to"
        " between half and twice its value.",
        minimum=1,
        maximum=1000,
        dynamic=True,
    )
    copy_quota: QuotaLimits = section(QuotaLimits, way="copy", what="sent to")
    fetch_quota: QuotaLimits = section(QuotaLimits, way="fetch", what="read from")
    retry: RetryPolicy = section(RetryPolicy)
    delete_grace_ms: int = key(
        "strandline.remote.delete.grace.ms",
        LONG,
        HOUR_MS,
        "Ms between taking a segment out of the manifest and deleting its objects, so that readers"
        " who planned with the older manifest still find them.",
        minimum=0,
    )
    orphan_grace_ms: int = key(
        "strandline.remote.orphan.grace.ms",
        LONG,
        24 * HOUR_MS,
        "Age in ms at which the broker deletes objects that no manifest names; they must also"
        " be older than two copies and the delete grace may take.",
        minimum=1,
    )
    orphan_interval_ms: int = key(
        "strandline.remote.orphan.check.interval.ms",
        LONG,
        24 * HOUR_MS,
        "Ms between two searches for objects that no manifest names; each lists the whole archive.",
        minimum=1,
    )
    merge_target_bytes: int = key(
        "strandline.remote.merge.target.bytes",
        LONG,
        64 * MIB,
        "Size up to which the broker merges adjacent small segments in the remote tier; 0:"
        " never. The local disk holds one merged segment during the merge.",
        minimum=0,
        maximum=1024 * MIB,
    )
    copy_timeout_ms: int = key(
        "strandline.remote.copy.timeout.ms",
        LONG,
        900_000,
        "Ms after which the broker aborts and retries the copy of one segment.",
        minimum=1,
    )
    changes_interval_ms: int = key(
        "strandline.remote.changes.interval.ms",
        LONG,
        5_000,
        "Ms between two writes of the list of changes, which names the changed manifests for"
        " read-only replicas: one request each, while something changes. -1: no list.",
        minimum=-1,
    )

    # Whether producers are refused once the archive turned out to be another broker's.
    refuses_if_lost: bool = False
    # How long start-up waits for the remote tier before the broker continues without it.
    start_timeout_ms: int = 10_000
    # Folder for segments that are being merged or compacted; emptied at the start. None: the
    # system's folder for temporary files.
    scratch: Path | None = None
    # Memory for keys while the archive of a compacted topic is compacted, one at a time.
    compaction_key_bytes_max: int = 128 * MIB
    # Remote reads running or waiting; further ones are refused with a retriable error.
    reads_max: int = 110


@dataclass(frozen=True, slots=True, kw_only=True)
class TieringExecutors:
    """Threads for blocking calls. `copies` has one per parallel copy; `metadata` a few.

    They are separate so that a manifest never waits for a long upload or for many deletes; without
    `deletes`, `metadata` runs those. `changes` runs background writes in one thread; without it,
    `metadata` runs those, too. `probes` asks whether the store answers, in one thread.
    """

    copies: Executor
    metadata: Executor
    deletes: Executor | None = None
    changes: Executor | None = None
    probes: Executor | None = None
