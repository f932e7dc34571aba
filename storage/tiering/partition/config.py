"""What the remote tier's work may take: times, sizes, threads."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path

from strandline.storage.tiering.audit.orphans import GRACE_MS_DEFAULT
from strandline.storage.tiering.policy.quota import QuotaLimits
from strandline.storage.tiering.policy.retry import RetryPolicy
from strandline.storage.tiering.rewrite.archive_compaction import KEY_BYTES_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class TieringConfig:
    """remote.log.manager.{task.interval.ms, copier.thread.pool.size, task.retry.*}, strandline.*.

    `delete_grace_ms`: how long readers with an older manifest may go on reading deleted objects.
    """

    task_interval_ms: int = 30_000
    workers: int = 10
    copy_timeout_ms: int = 600_000
    delete_grace_ms: int = 60_000
    # Objects that nothing refers to go when they are older than this; looked for every interval.
    orphan_grace_ms: int = GRACE_MS_DEFAULT
    orphan_interval_ms: int = 24 * 3600 * 1000
    # The archive is another broker's: its manifests are read again and again, and nothing written.
    follows: bool = False
    # Ms between two lists of what changed, at least; negative: none is written.
    changes_interval_ms: int = 5_000
    # How long start-up waits for the remote tier before the broker goes on without it.
    start_timeout_ms: int = 10_000
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    # Small segments in the bucket are merged up to this size; 0: never.
    merge_target_bytes: int = 0
    # Where segments lie while they are merged or compacted; emptied at the start. None: the
    # system's place for temporary files.
    scratch: Path | None = None
    # Memory for keys while the archive of a compacted topic is compacted, one at a time.
    compaction_key_bytes_max: int = KEY_BYTES_MAX
    copy_quota: QuotaLimits = field(default_factory=QuotaLimits)
    fetch_quota: QuotaLimits = field(default_factory=QuotaLimits)
    # Remote reads under way or waiting; further ones are refused for the moment.
    reads_max: int = 110


@dataclass(frozen=True, slots=True, kw_only=True)
class TieringExecutors:
    """Threads for blocking calls. `copies` has one per parallel copy; `metadata` a few.

    They are apart so that a manifest is never behind a long upload, nor behind deletes that are
    many; without `deletes`, `metadata` does those. `changes` writes what nobody waits for: one
    thread; without, `metadata` does that, too.
    """

    copies: Executor
    metadata: Executor
    deletes: Executor | None = None
    changes: Executor | None = None
