"""Which rows of a table stay: all of them, those of the topic's retention, or those of a time.

    keep        all rows, also those that the archive has no more
    follow      those from the archive's first offset of each partition on
    30d         those with a timestamp of the last 30 days

What was dropped is a property of the table, set in the commit that drops it, so that `table check`
does not miss it:

    strandline.dropped = {"version": 1, "before_ms": 0, "starts": {"<topic id>": {"0": 1234}}}

Pure.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from strandline.spark_lake.table.upkeep.maintained import LiveFile
from strandline.storage.errors import CorruptFile, UnsupportedFormat
from strandline.storage.model import Offset, TimestampMs

DROPPED_PROPERTY = "strandline.dropped"
VERSIONS = range(1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What a table drops: rows older than `age_ms`, or, without one, what its topic dropped."""

    age_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The rows that stay: not before `before_ms`, and not before the start of their partition."""

    # Column names by part.
    names: Mapping[str, str]
    before_ms: TimestampMs = 0
    starts: Mapping[UUID, Mapping[int, Offset]] = field(default_factory=dict)

    def joined(self, earlier: Kept) -> Kept:
        """What stays after both."""
        starts = {one: dict(found) for one, found in earlier.starts.items()}
        for topic_id, found in self.starts.items():
            known = starts.setdefault(topic_id, {})
            for partition, offset in found.items():
                known[partition] = max(offset, known.get(partition, 0))
        return Kept(
            names=self.names, before_ms=max(self.before_ms, earlier.before_ms), starts=starts
        )

    @property
    def properties(self) -> dict[str, str]:
        starts = {
            str(topic_id): {str(partition): at for partition, at in sorted(found.items())}
            for topic_id, found in self.starts.items()
        }
        document = {"version": VERSIONS[-1], "before_ms": self.before_ms, "starts": starts}
        return {DROPPED_PROPERTY: json.dumps(document, separators=(",", ":"))}

    @classmethod
    def decode(cls, text: str | None, names: Mapping[str, str], *, source: str) -> Kept:
        """Raises CorruptFile, UnsupportedFormat."""
        if text is None:
            return cls(names=names)
        try:
            document = json.loads(text)
            if document["version"] not in VERSIONS:
                raise UnsupportedFormat.of_version(
                    f"property {DROPPED_PROPERTY} of {source}", document["version"], VERSIONS
                )
            return cls(
                names=names,
                before_ms=int(document["before_ms"]),
                starts={
                    UUID(topic_id): {int(number): int(at) for number, at in found.items()}
                    for topic_id, found in document["starts"].items()
                },
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CorruptFile(
                f"property {DROPPED_PROPERTY} of {source} is damaged ({error!r}): set it back to"
                " its value in an earlier metadata file of the table"
            ) from error

    @property
    def columns(self) -> list[str]:
        """What `mask` looks at."""
        parts = ["topic_id", "partition", "offset"] + ["timestamp"] * bool(self.before_ms)
        return [self.names[part] for part in parts]

    def may_drop_of(self, file: LiveFile) -> bool:
        """Whether the file may have a row that goes, as far as its bounds tell.

        Files with deletes of others are left.
        """
        if file.has_deletes:
            return False
        first_ms = _milliseconds(self._bound(file, "timestamp", 0))
        if self.before_ms and (first_ms is None or first_ms < self.before_ms):
            return True
        first = self._bound(file, "offset", 0)
        least, most = (self._bound(file, "partition", side) for side in (0, 1))
        last_start = max(
            (
                at
                for one in self.starts.values()
                for partition, at in one.items()
                if least is None or most is None or least <= partition <= most
            ),
            default=0,
        )
        return last_start > 0 and (first is None or first < last_start)

    def drops_all_of(self, file: LiveFile) -> bool:
        """Whether no row of the file stays, as far as its bounds tell."""
        last_ms = _milliseconds(self._bound(file, "timestamp", 1))
        if self.before_ms and last_ms is not None and last_ms < self.before_ms:
            return True
        topic_id, last = self._bound(file, "topic_id", 0), self._bound(file, "offset", 1)
        first_number, last_number = (self._bound(file, "partition", side) for side in (0, 1))
        if None in (topic_id, last, first_number) or first_number != last_number:
            return False
        # Bounds of text may be cut short; then this is nobody's id.
        found = {str(one): starts for one, starts in self.starts.items()}.get(topic_id, {})
        same = topic_id == self._bound(file, "topic_id", 1)
        return bool(same and last < found.get(first_number, 0))

    def mask(self, batch: Any) -> Any:
        """Which rows stay."""
        kept = pa.array([True] * batch.num_rows, pa.bool_())
        if self.before_ms:
            moment = dt.datetime.fromtimestamp(self.before_ms / 1000, dt.UTC)
            column = batch.column(self.names["timestamp"])
            kept = pc.fill_null(pc.greater_equal(column, pa.scalar(moment, column.type)), True)
        for topic_id, starts in self.starts.items():
            kept = pc.and_not(kept, rows_before(batch, self.names, topic_id, starts))
        return kept

    def rows(self, batch: Any) -> Any:
        return batch.filter(self.mask(batch))

    def _bound(self, file: LiveFile, part: str, side: int) -> Any:
        name = self.names.get(part)
        found = None if name is None else file.bounds.get(name)
        return None if found is None else found[side]


def rows_before(
    rows: Any, names: Mapping[str, str], topic_id: UUID, starts: Mapping[int, Offset]
) -> Any:
    """A mask of the rows of a topic id before the start of their partition."""
    numbers = rows.column(names["partition"])
    places = pc.index_in(numbers, value_set=pa.array(list(starts), numbers.type))
    start = pc.fill_null(pa.array(list(starts.values()), pa.int64()).take(places), 0)
    return pc.and_(
        pc.equal(rows.column(names["topic_id"]), str(topic_id)),
        pc.less(rows.column(names["offset"]), start),
    )


def _milliseconds(bound: Any) -> int | None:
    """Bounds of timestamps are microseconds in Iceberg."""
    return None if bound is None else int(bound) // 1000
