"""Maintenance of a table, while syncs go on.

    1 retention         files without a row that stays are dropped; those with some that go and
                        some that stay are rewritten, in the table's order
    2 small files       rewritten into larger ones, by partition of the table
    3 snapshots         older than `expire_age_ms` are expired
    4 orphans           files that no snapshot names, older than `orphan_age_ms`, are deleted

1 and 2 work in rounds of ROUND_BYTES_MAX: files are written under new names, and one commit takes
the old ones out and the new ones in. It asks for the snapshot that was loaded; after a conflict
with a sync, which only adds files, the same files are committed again. The offsets of the table
are a property, which no such commit touches.

4 lists the files first and loads the table afterwards: what a commit names meanwhile is found
named. Files of a sync or of another maintenance that runs are younger than the bound: neither
commits files of an older round (`commit.ROUND_AGE_MS_MAX`).

After a death at any step the next maintenance goes on; new files without a commit are orphans.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow.compute as pc

from strandline.spark_lake.table.buffers import FileBuffers
from strandline.spark_lake.table.commit import ATTEMPTS_MAX, BACKOFF, ROUND_AGE_MS_MAX
from strandline.spark_lake.table.errors import (
    CommitConflict,
    CommitUnknown,
    FilesOutdated,
    TableUnavailable,
)
from strandline.spark_lake.table.store import WrittenFile
from strandline.spark_lake.table.upkeep.maintained import (
    CheckedTable,
    LiveFile,
    MaintainedTable,
    load_made,
)
from strandline.spark_lake.table.upkeep.retention import Kept
from strandline.storage.crash_points import (
    UPKEEP_AFTER_COMMIT,
    UPKEEP_AFTER_EXPIRE,
    UPKEEP_AFTER_ORPHANS,
    UPKEEP_BEFORE_COMMIT,
    crash_point,
)

log = logging.getLogger(__name__)

DAY_MS = 24 * 3_600_000
# Iceberg's own defaults.
EXPIRE_AGE_MS = 5 * DAY_MS
ORPHAN_AGE_MS = 3 * DAY_MS
# Parquet files of this size read as well as larger ones.
SMALL_BYTES = 16 * 1024 * 1024
# Fewer small files in a partition are left until there are more.
SMALL_FILES_MIN = 5
# Parquet bytes that one commit replaces; a death costs the work of one round.
ROUND_BYTES_MAX = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintainSettings:
    """What is small, and what is old."""

    file_bytes: int
    small_bytes: int = SMALL_BYTES
    small_files_min: int = SMALL_FILES_MIN
    expire_age_ms: int = EXPIRE_AGE_MS
    orphan_age_ms: int = ORPHAN_AGE_MS


@dataclass(slots=True, kw_only=True)
class MaintainReport:
    """What maintenance did."""

    table: str
    dropped_files: int = 0
    dropped_rows: int = 0
    rewritten_files: int = 0
    new_files: int = 0
    # Rounds whose files another writer had changed meanwhile, or that took a day.
    lost_rounds: int = 0
    expired_snapshots: int = 0
    orphans: int = 0
    orphan_bytes: int = 0
    kept_young: int = 0
    # Of the second table, if there is one.
    rejected: MaintainReport | None = None


class TableUpkeep(CheckedTable, Protocol):
    """A table that can be checked and maintained."""

    def maintain(self, kept: Kept | None, settings: MaintainSettings) -> MaintainReport:
        """`kept` None keeps every row. Raises TableRefused, TableUnavailable."""
        ...


class Maintenance:
    """One run over one table whose format leaves rewriting and deleting to us."""

    def __init__(
        self,
        table: MaintainedTable,
        settings: MaintainSettings,
        *,
        now_ms: Callable[[], int],
        wait: Callable[[float], None],
    ) -> None:
        self._table = table
        self._settings = settings
        self._now_ms = now_ms
        self._wait = wait
        self._report = MaintainReport(table=table.name)

    def run(self, kept: Kept | None) -> MaintainReport:
        """`kept` None keeps every row. Raises TableRefused, TableUnavailable."""
        self._load()
        if kept is not None:
            for files in _rounds([f for f in self._table.live_files() if self._drops_of(f, kept)]):
                self._replace(files, kept)
        for files in self._small():
            self._replace(files, None)
        self._expire()
        self._delete_orphans()
        return self._report

    def _drops_of(self, file: LiveFile, kept: Kept) -> bool:
        """Whether the file has a row that goes. Bounds of several partitions do not tell."""
        if not kept.may_drop_of(file):
            return False
        if kept.drops_all_of(file):
            return True
        batches = self._table.read(file, kept.columns)
        return any(not pc.all(kept.mask(one)).as_py() for one in batches)

    def _small(self) -> Iterator[list[LiveFile]]:
        groups: dict[object, list[LiveFile]] = {}
        for file in self._table.live_files():
            if file.size_bytes < self._settings.small_bytes and not file.has_deletes:
                groups.setdefault(file.key, []).append(file)
        many = [g for g in groups.values() if len(g) >= max(2, self._settings.small_files_min)]
        # Whole groups: half of one would be small again.
        yield from _rounds_of_groups(many)

    def _replace(self, old: Sequence[LiveFile], kept: Kept | None) -> None:
        attempt, begun_ms = uuid.uuid4().hex, self._now_ms()
        new = self._written(old, kept, attempt)
        crash_point(UPKEEP_BEFORE_COMMIT)
        properties = {} if kept is None else kept.properties
        if not self._committed(old, new, properties, begun_ms=begun_ms):
            self._report.lost_rounds += 1
            return
        crash_point(UPKEEP_AFTER_COMMIT)
        rows = sum(one.record_count for one in old) - sum(one.record_count for one in new)
        self._report.dropped_rows += rows
        self._report.new_files += len(new)
        if kept is None:
            self._report.rewritten_files += len(old)
        else:
            self._report.dropped_files += len(old)

    def _written(
        self, old: Sequence[LiveFile], kept: Kept | None, attempt: str
    ) -> list[WrittenFile]:
        buffers = FileBuffers(self._table.writer(attempt), file_bytes=self._settings.file_bytes)
        new: list[WrittenFile] = []
        try:
            for file in old:
                if kept is not None and kept.drops_all_of(file):
                    continue
                for batch in self._table.read(file):
                    rows = batch if kept is None else kept.rows(batch)
                    if rows.num_rows:
                        new.extend(buffers.add(rows))
            new.extend(buffers.finish())
        except Exception:
            self._table.discard(new)
            raise
        return new

    def _committed(
        self,
        old: Sequence[LiveFile],
        new: Sequence[WrittenFile],
        properties: Mapping[str, str],
        *,
        begun_ms: int,
    ) -> bool:
        """Whether it landed; if not, others have taken old files out or deleted rows of them, or
        the round is a day old."""
        old_paths = {one.path for one in old}
        new_paths = {one.path for one in new}
        for attempt in range(ATTEMPTS_MAX):
            if self._now_ms() - begun_ms > ROUND_AGE_MS_MAX:
                # Later they may be in the table yet, by an attempt that had no answer.
                if attempt == 0:
                    self._table.discard(new)
                return False
            try:
                self._table.replace(old, new, properties)
                self._load()
                return True
            except (CommitConflict, CommitUnknown, FilesOutdated) as error:
                log.info("table replacement is not confirmed", extra={"reason": str(error)})
            self._wait(BACKOFF.wait_s(attempt + 1))
            self._load()
            live = self._table.live_files()
            named = {one.path for one in live}
            if not named & old_paths and new_paths <= named:
                return True
            if not old_paths <= {one.path for one in live if not one.has_deletes}:
                # An unknown commit may land yet only while all old files are as they were.
                self._table.discard([one for one in new if one.path not in named])
                return False
        raise TableUnavailable(
            f"table {self._table.name}: {ATTEMPTS_MAX} commits in a row were refused or not"
            " answered; run `table maintain` again later"
        )

    def _expire(self) -> None:
        before_ms = self._now_ms() - self._settings.expire_age_ms
        for attempt in range(ATTEMPTS_MAX):
            try:
                self._report.expired_snapshots += self._table.expire(before_ms)
                crash_point(UPKEEP_AFTER_EXPIRE)
                return
            except (CommitConflict, CommitUnknown):
                self._wait(BACKOFF.wait_s(attempt + 1))
                self._load()
        raise TableUnavailable(
            f"table {self._table.name}: other commits came first {ATTEMPTS_MAX} times, its"
            " snapshots are not expired; run `table maintain` again later"
        )

    def _delete_orphans(self) -> None:
        stored = self._table.stored_files()
        self._load()
        named = self._table.named_paths()
        before_ms = self._now_ms() - self._settings.orphan_age_ms
        unnamed = [one for one in stored if one.path not in named]
        old = [one for one in unnamed if one.modified_ms <= before_ms]
        self._report.orphans = self._table.delete([one.path for one in old])
        self._report.orphan_bytes = sum(one.size_bytes for one in old)
        self._report.kept_young = len(unnamed) - len(old)
        crash_point(UPKEEP_AFTER_ORPHANS)

    def _load(self) -> None:
        load_made(self._table)


def _rounds(files: Sequence[LiveFile]) -> Iterator[list[LiveFile]]:
    return _rounds_of_groups([[one] for one in files])


def _rounds_of_groups(groups: Sequence[list[LiveFile]]) -> Iterator[list[LiveFile]]:
    """Groups together until they have ROUND_BYTES_MAX; one group at least."""
    taken: list[LiveFile] = []
    size_bytes = 0
    for group in groups:
        group_bytes = sum(one.size_bytes for one in group)
        if taken and size_bytes + group_bytes > ROUND_BYTES_MAX:
            yield taken
            taken, size_bytes = [], 0
        taken = [*taken, *group]
        size_bytes += group_bytes
    if taken:
        yield taken
