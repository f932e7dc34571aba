"""Named points where tests make the process die, to stop after each step.

    STRANDLINE_CRASH_AT=copy.after-log strandline serve ...

At the named point the process ends with `os._exit(137)`: no handler runs, no buffer is flushed, as
if it had been killed. Inside one test process `simulated_crash` raises `SimulatedCrash` instead;
it is a BaseException, so that no code which handles errors can handle a crash.

A point is crossed once per step and costs one comparison.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from strandline.storage.errors import InvalidConfig

ENVIRONMENT_VARIABLE = "STRANDLINE_CRASH_AT"
EXIT_STATUS_KILLED = 137

COPY_AFTER_REWRITE = "copy.after-rewrite"
COPY_AFTER_LOG = "copy.after-log"
COPY_AFTER_META = "copy.after-meta"
COPY_BEFORE_COMMIT = "copy.before-commit"
COPY_AFTER_COMMIT = "copy.after-commit"
DELETE_BEFORE_LOCAL = "delete.before-local"
DELETE_AFTER_LOG_START = "delete.after-log-start"
DELETE_AFTER_MARK = "delete.after-mark"
DELETE_AFTER_OBJECTS = "delete.after-objects"
CLEAN_AFTER_WRITE = "clean.after-write"
CLEAN_AFTER_INDEXES = "clean.after-indexes"
CLEAN_AFTER_COMMIT = "clean.after-commit"
CLEAN_AFTER_DISCARD = "clean.after-discard"
CLEAN_AFTER_RENAME = "clean.after-rename"
CLEAN_BEFORE_CHECKPOINT = "clean.before-checkpoint"
CLEAN_AFTER_CHECKPOINT = "clean.after-checkpoint"
TAIL_AFTER_PART = "tail.after-part"
TAIL_AFTER_COMMIT = "tail.after-commit"
MERGE_AFTER_LOG = "merge.after-log"
MERGE_AFTER_META = "merge.after-meta"
MERGE_BEFORE_COMMIT = "merge.before-commit"
MERGE_AFTER_COMMIT = "merge.after-commit"
COMPACT_AFTER_LOG = "compact.after-log"
COMPACT_AFTER_META = "compact.after-meta"
COMPACT_BEFORE_COMMIT = "compact.before-commit"
COMPACT_AFTER_COMMIT = "compact.after-commit"
COMPACT_AFTER_MARK = "compact.after-mark"
PURGE_AFTER_TOMBSTONE = "purge.after-tombstone"
PURGE_AFTER_SOME = "purge.after-some"
PURGE_BEFORE_TOPIC = "purge.before-topic"
REPAIR_AFTER_META = "repair.after-meta"
REPAIR_AFTER_COMMIT = "repair.after-commit"
RESTORE_AFTER_MARK = "restore.after-mark"
RESTORE_AFTER_METADATA = "restore.after-metadata"
RESTORE_AFTER_PARTITION = "restore.after-partition"
RESTORE_AFTER_GROUPS = "restore.after-groups"
RESTORE_BEFORE_UNMARK = "restore.before-unmark"
METADATA_AFTER_ENTRY = "metadata.after-entry"
METADATA_AFTER_SNAPSHOT = "metadata.after-snapshot"
METADATA_AFTER_BOUNDARY = "metadata.after-boundary"
MOVE_AFTER_MARK = "move.after-mark"
MOVE_AFTER_COPY = "move.after-copy"
MOVE_BEFORE_SWAP = "move.before-swap"
MOVE_AFTER_SWAP = "move.after-swap"
MOVE_AFTER_SYNC = "move.after-sync"
GIVE_BACK_AFTER_NOTE = "give-back.after-note"
GIVE_BACK_AFTER_CUT = "give-back.after-cut"
GIVE_BACK_AFTER_RESTART = "give-back.after-restart"
GIVE_BACK_AFTER_TARGET = "give-back.after-target"
GIVE_BACK_AFTER_PIECE = "give-back.after-piece"
GIVE_BACK_AFTER_APPEND = "give-back.after-append"
TRANSACTION_AFTER_PREPARE = "transaction.after-prepare"
TRANSACTION_AFTER_MARKER = "transaction.after-marker"
TRANSACTION_AFTER_COMPLETE = "transaction.after-complete"
TRANSACTION_AFTER_LOST_END = "transaction.after-lost-end"
TRANSACTION_AFTER_RETIRE = "transaction.after-retire"
TABLE_AFTER_CREATE = "table.after-create"
TABLE_AFTER_FILE = "table.after-file"
TABLE_BEFORE_COMMIT = "table.before-commit"
TABLE_AFTER_COMMIT = "table.after-commit"
TABLE_AFTER_REJECTED = "table.after-rejected"
UPKEEP_BEFORE_COMMIT = "upkeep.before-commit"
UPKEEP_AFTER_COMMIT = "upkeep.after-commit"
UPKEEP_AFTER_EXPIRE = "upkeep.after-expire"
UPKEEP_AFTER_ORPHANS = "upkeep.after-orphans"
SEVERAL_AFTER_MARK = "several.after-mark"
SEVERAL_AFTER_METADATA = "several.after-metadata"
SEVERAL_AFTER_DECISION = "several.after-decision"
SEVERAL_AFTER_ENTRY = "several.after-entry"
SEVERAL_AFTER_FOLDER = "several.after-folder"
SEVERAL_BEFORE_UNMARK = "several.before-unmark"
ONE_AFTER_MARK = "one.after-mark"
ONE_AFTER_DECISION = "one.after-decision"
ONE_AFTER_METADATA = "one.after-metadata"
ONE_AFTER_ENTRY = "one.after-entry"
ONE_AFTER_FOLDER = "one.after-folder"
ONE_BEFORE_UNMARK = "one.before-unmark"
MEMBER_BEFORE_REGISTRATION = "member.before-registration"
MEMBER_AFTER_REGISTRATION = "member.after-registration"
MEMBER_AFTER_LOGS = "member.after-logs"
MEMBER_AFTER_NOTE = "member.after-note"
STOP_AFTER_MARK = "stop.after-mark"
STOP_AFTER_GROUPS = "stop.after-groups"

# Every point above, so that a new one is named once.
CRASH_POINTS: tuple[str, ...] = tuple(
    point for name, point in vars().items() if "_AFTER_" in name or "_BEFORE_" in name
)


class SimulatedCrash(BaseException):
    """Stands for the death of the process inside a test."""


_exit_at = os.environ.get(ENVIRONMENT_VARIABLE, "")
_raise_at = ""


def check_environment() -> None:
    """Raises InvalidConfig if the environment names a point that does not exist."""
    if _exit_at and _exit_at not in CRASH_POINTS:
        raise InvalidConfig(
            f"{ENVIRONMENT_VARIABLE}={_exit_at!r}: expected one of {', '.join(CRASH_POINTS)}"
        )


def crash_point(name: str) -> None:
    """Ends the process here if STRANDLINE_CRASH_AT names this point."""
    assert name in CRASH_POINTS, name
    if name == _exit_at:
        os._exit(EXIT_STATUS_KILLED)
    if name == _raise_at:
        raise SimulatedCrash(name)


@contextmanager
def simulated_crash(name: str) -> Iterator[None]:
    """Inside the block, crossing `name` raises SimulatedCrash."""
    global _raise_at  # noqa: PLW0603 (one process, one place where it dies)
    assert name in CRASH_POINTS, name
    _raise_at = name
    try:
        yield
    finally:
        _raise_at = ""
