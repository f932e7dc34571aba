"""What must be true of a compacted partition, as a plain model: what was sent with which key.

    key        "<number>"; few, so that most records are superfluous soon
    value      as of the other topics; a tombstone has none

A record may be missing, once a newer one of its key is there. So a reader who comes from the log
start to its end has seen

    what was sent      every offset shows the key and the value that were acknowledged there
    in order           offsets ascend; gaps are what compaction left
    the latest         of every key the last one that was acknowledged before it began, or a newer
    a tombstone        or not, if its time is over; but never, in a reading that took less than
                       delete.retention.ms, an older value of its key without it

A producer says before it sends to a key (`sending`), and what became of it afterwards: a record on
its way may have displaced what was acknowledged. A lost disk takes the last values of the keys
whose newer records it took (docs/decisions/0018): the model forgets those keys.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from tests.system.soak.model import PartitionModel, Pass, text_of

DELETE_RETENTION_MS = 6_000


@dataclass(frozen=True, slots=True)
class Sent:
    """A record: `code` is None for a tombstone."""

    key: bytes
    code: int | None

    def __str__(self) -> str:
        what = "a tombstone" if self.code is None else text_of(self.code)
        return f"{what} of key {self.key.decode()}"


@dataclass(frozen=True, slots=True)
class Latest:
    """The last acknowledged record of a key; `sent_s` is before the broker could have it."""

    offset: int
    is_tombstone: bool
    sent_s: float


@dataclass(slots=True)
class TableModel(PartitionModel):
    """A partition of a compacted topic. Thread-safe."""

    tombstones_gone: int = 0
    _sent: dict[int, Sent] = field(default_factory=dict)
    _latest: dict[bytes, Latest] = field(default_factory=dict)
    _pending: Counter[bytes] = field(default_factory=Counter)

    @property
    def live_keys(self) -> int:
        """How many keys the model knows the last record of."""
        return len(self._latest)

    # --- writing -----------------------------------------------------------------------------

    def sending(self, key: bytes) -> None:
        """From now on the broker may have a newer record of this key."""
        with self._lock:
            self._pending[key] += 1

    def acknowledge_row(self, offset: int, row: Sent, *, sent_s: float) -> None:
        """What `sending` announced at `sent_s` lies there."""
        with self._lock:
            self._note(offset, row, "was acknowledged")
            self.acknowledged_count += 1
            self._acknowledged_end = max(self._acknowledged_end, offset + 1)
            before = self._latest.get(row.key)
            if before is None or offset > before.offset:
                self._latest[row.key] = Latest(offset, row.code is None, sent_s)
            self._pending[row.key] -= 1

    # --- reading -----------------------------------------------------------------------------

    def begin_pass(self, start: int, *, generation: int, who: str) -> TablePass:
        """Call it before asking where the log ends; `start` may be set later."""
        return TablePass(self, start, generation=generation, who=who)

    def see(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        """A reader got this."""
        code = None if value is None else self.code_of(offset, value)
        if key is None:
            self.violations.add(f"{self.name} has a record without a key at {offset}")
        elif value is None or code is not None:
            with self._lock:
                self._note(offset, Sent(key, code), "was read")

    def latest(self) -> dict[bytes, Latest]:
        """Of every key the last acknowledged record, as of now."""
        with self._lock:
            return dict(self._latest)

    def may_be_displaced(self, key: bytes, end_offset: int) -> bool:
        """Whether the key may have a newer record at or behind `end_offset`."""
        with self._lock:
            latest = self._latest.get(key)
            return latest is None or latest.offset >= end_offset or self._pending[key] > 0

    def _note(self, offset: int, row: Sent, how: str) -> None:
        before = self._sent.setdefault(offset, row)
        if before != row:
            self.violations.add(f"{self.name} offset {offset}: {row} {how}, {before} before")

    # --- what takes records away -------------------------------------------------------------

    def cut(self, log_start: int, end_offset: int) -> int:
        with self._lock:
            gone = [offset for offset in self._sent if offset >= end_offset]
            # What these had displaced is gone as well, if the cleaner was quick.
            for key in {self._sent.pop(offset).key for offset in gone}:
                self._latest.pop(key, None)
            return PartitionModel.cut(self, log_start, end_offset)

    def begin_anew(self) -> None:
        with self._lock:
            self._sent.clear()
            self._latest.clear()
            PartitionModel.begin_anew(self)


class TablePass(Pass):
    """One reading of a compacted partition; `finish` is told how far it was complete."""

    partition: TableModel

    def __init__(self, partition: TableModel, start: int, *, generation: int, who: str) -> None:
        super().__init__(partition, start, generation=generation, who=who)
        self._began_s = time.monotonic()
        self._wanted = partition.latest()
        self._seen: dict[bytes, int] = {}

    def accept(self, offset: int, value: bytes | None, key: bytes | None = None) -> None:
        if self.is_outdated:
            return
        if offset < self.next_offset:
            self.partition.violations.add(
                f"{self._who}: double in {self.partition.name}: {offset} after"
                f" {self.next_offset - 1}"
            )
        self.next_offset = offset + 1
        self.count += 1
        self.partition.see(offset, key, value)
        if key is not None:
            self._seen[key] = offset

    def finish(self, end_offset: int, *, is_live: bool = True) -> None:
        """Everything below `end_offset` was read; not `is_live`: of a copy that may lag behind."""
        now_s = time.monotonic()
        for key, latest in self._wanted.items():
            if self.is_outdated:
                return
            seen = self._seen.get(key, -1)
            if seen >= latest.offset or latest.offset >= end_offset:
                continue
            is_quick = is_live and now_s - self._began_s < DELETE_RETENTION_MS / 1000
            is_young = now_s < latest.sent_s + DELETE_RETENTION_MS / 1000
            if not latest.is_tombstone or is_young or (seen >= 0 and is_quick):
                self._check_displaced(key, latest, end_offset)
            else:
                self.partition.tombstones_gone += 1

    def _check_displaced(self, key: bytes, latest: Latest, end_offset: int) -> None:
        if self.partition.may_be_displaced(key, end_offset) or self.is_outdated:
            return
        what = "tombstone" if latest.is_tombstone else "last value"
        self.partition.violations.add(
            f"{self._who}: {self.partition.name}: key {key.decode()} has lost its {what} at"
            f" {latest.offset}; {self._seen.get(key, 'nothing')} was read of it, to {end_offset}"
        )
