"""Commit of one round, whatever happens to the answer.

    commit -> landed
           -> conflict, or lost answer: load the table and compare
                its commits have ours                      -> landed
                it has the rows that it had                -> commit the same files again
                it has more rows, of another writer        -> lost: our files are dropped
           -> the round is a day old                       -> lost, and never committed

A repeated commit cannot land twice: each asks for the snapshot that it was made for. A lost
commit's files are deleted only if the table shows every commit since then, and ours is not among
them; else `table maintain` deletes them, which looks at what the table names. It does so after two
days at least: a round that is old, on a machine that slept, may have no files any more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from enum import Enum

from strandline.spark_lake.table.errors import (
    CommitConflict,
    CommitUnknown,
    FilesOutdated,
    TableRefused,
    TableUnavailable,
)
from strandline.spark_lake.table.offsets import TableOffsets
from strandline.spark_lake.table.store import TableStore, WrittenFile
from strandline.storage.backoff import Backoff

log = logging.getLogger(__name__)

# Of one round. Others that rewrite files or expire snapshots conflict now and then, not always.
ATTEMPTS_MAX = 20
BACKOFF = Backoff(first_s=0.05, max_s=5.0, jitter=0.3)


# Of the files of a round when they are committed.
ROUND_AGE_MS_MAX = 24 * 3_600_000


class CommitOutcome(Enum):
    """What became of a commit."""

    LANDED = "landed"
    # Another writer has committed these offsets, the table's layout has changed, or the files are
    # too old.
    LOST = "lost"


def commit_files(
    store: TableStore,
    files: Sequence[WrittenFile],
    *,
    base: TableOffsets,
    claimed: TableOffsets,
    wait: Callable[[float], None],
    discard: Callable[[Sequence[WrittenFile]], None],
    is_too_old: Callable[[], bool] = lambda: False,
) -> CommitOutcome:
    """Commits files once. `base` is what the loaded table had, `claimed` what it has afterwards.

    `discard` deletes files that were lost, and what belongs to them. `is_too_old` tells of their
    age, before each attempt.

    Raises TableUnavailable if the outcome stays unknown; the next run finds out.
    """
    for attempt in range(ATTEMPTS_MAX):
        if is_too_old():
            # Later they may be in the table yet, by an attempt that had no answer.
            if attempt == 0:
                discard(files)
            return CommitOutcome.LOST
        try:
            store.commit(files, claimed)
        except (CommitConflict, CommitUnknown) as error:
            log.info("table commit is not confirmed", extra={"reason": str(error)})
        except FilesOutdated as error:
            log.info("table has another layout", extra={"reason": str(error)})
            discard(files)
            return CommitOutcome.LOST
        else:
            return CommitOutcome.LANDED
        wait(BACKOFF.wait_s(attempt + 1))
        now = load_existing(store)
        if claimed.commits[0] in now.commits:
            return CommitOutcome.LANDED
        if not now.has_same_rows(base):
            if now.shows_all_since(base):
                discard(files)
            return CommitOutcome.LOST
    raise TableUnavailable(
        f"table {store.name}: {ATTEMPTS_MAX} commits in a row were refused or not answered, while"
        " no other writer added rows; what was written stays for `table maintain`, run again later"
    )


def load_existing(store: TableStore) -> TableOffsets:
    """What the table has. Raises TableRefused if there is none any more."""
    offsets = store.load()
    if offsets is None:
        raise TableRefused(f"table {store.name} was dropped meanwhile: run again to make it anew")
    return offsets
