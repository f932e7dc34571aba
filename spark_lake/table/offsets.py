"""What a table has of its topic: the next offset of each partition, by topic id.

    strandline.offsets = {"version": 1, "topic": "orders",
                          "next": {"<topic id>": {"0": 1234, "1": 987}},
                          "commits": ["<id of the newest commit>", ...],
                          "mode": "append",
                          "rejected": {"number": 3, "files": ["s3://..."]}}

It is a property of the table, and changes in the commit that adds the files of these offsets.
Snapshot summaries would be lost when somebody expires the snapshot. `commits` are the newest
COMMITS_KEPT ids: a writer whose answer was lost finds there whether its commit is in the table.
`rejected` is of the second table, for values that do not parse (`rejected.py`).

When a table gets new fields, another property keeps the offsets that it had then. Schemas of
formats do not name offsets, and their history expires:

    strandline.widened = {"version": 1, "steps": [{"fields": [["extra"], ["nested", "b"]],
                                                   "next": {"<topic id>": {"0": 1000, "1": 900}}}]}

Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from uuid import UUID

from strandline.storage.errors import CorruptFile, UnsupportedFormat
from strandline.storage.model import Offset

OFFSETS_PROPERTY = "strandline.offsets"
WIDENED_PROPERTY = "strandline.widened"
VERSIONS = range(1, 2)
# More commits than other writers can make while one waits for its answer.
COMMITS_KEPT = 32


class Mode(Enum):
    """What a record does to the table."""

    # It becomes a row.
    APPEND = "append"
    # It replaces the row of its key; null deletes it.
    UPSERT = "upsert"
    # The same by Debezium's envelope: `after` is the row, `op` d deletes.
    DEBEZIUM = "debezium"


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedFiles:
    """The files of the second table that belong to a commit of the first."""

    # Of the newest files: in the first table those that it names, in the second those it took.
    number: int = 0
    paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOffsets:
    """The next offset of each partition that a table has, and the ids of its newest commits."""

    topic: str
    next_offsets: Mapping[UUID, Mapping[int, Offset]] = field(default_factory=dict)
    # The newest one first.
    commits: tuple[str, ...] = ()
    mode: Mode = Mode.APPEND
    rejected: RejectedFiles = field(default_factory=RejectedFiles)

    def of(self, topic_id: UUID) -> Mapping[int, Offset]:
        """The next offsets of one topic id; a partition that is missing has no rows yet."""
        return self.next_offsets.get(topic_id, {})

    def advanced(
        self,
        topic_id: UUID,
        ends: Mapping[int, Offset],
        *,
        commit_id: str,
        rejected: Sequence[str] = (),
    ) -> TableOffsets:
        """The offsets after a commit of the rows before `ends`; `rejected` are paths of files."""
        of_topic = {**self.of(topic_id), **ends}
        return replace(
            self,
            next_offsets={**self.next_offsets, topic_id: of_topic},
            commits=(commit_id, *self.commits)[:COMMITS_KEPT],
            rejected=RejectedFiles(
                number=self.rejected.number + bool(rejected), paths=tuple(rejected)
            ),
        )

    def has_same_rows(self, other: TableOffsets) -> bool:
        return (
            self.next_offsets == other.next_offsets
            and self.rejected.number == other.rejected.number
        )

    def shows_all_since(self, base: TableOffsets) -> bool:
        """Whether `commits` has each commit that was made after `base`."""
        if not base.commits:
            return len(self.commits) < COMMITS_KEPT
        return base.commits[0] in self.commits

    def encode(self) -> str:
        return json.dumps(
            {
                "version": VERSIONS[-1],
                "topic": self.topic,
                "next": _encoded(self.next_offsets),
                "commits": list(self.commits),
                "mode": self.mode.value,
                "rejected": {
                    "number": self.rejected.number,
                    "files": list(self.rejected.paths),
                },
            },
            separators=(",", ":"),
        )

    @classmethod
    def decode(cls, text: str, *, source: str) -> TableOffsets:
        """Raises CorruptFile, or UnsupportedFormat for a version of a later release."""
        try:
            document = json.loads(text)
            version = document["version"]
            if version not in VERSIONS:
                raise UnsupportedFormat.of_version(
                    f"property {OFFSETS_PROPERTY} of {source}", version, VERSIONS
                )
            return cls(
                topic=str(document["topic"]),
                next_offsets=_decoded(document["next"]),
                commits=tuple(map(str, document["commits"])),
                mode=Mode(document.get("mode", Mode.APPEND.value)),
                rejected=_rejected(document.get("rejected", {"number": 0, "files": []})),
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CorruptFile(
                f"property {OFFSETS_PROPERTY} of {source} is damaged ({error!r}): set it back to"
                " its value in an earlier metadata file of the table, or make the table anew"
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Widening:
    """Fields that were new when a table had these offsets: rows before them have nulls there."""

    # Names from the column down; `element` is in a list, `value` in a map.
    fields: Sequence[tuple[str, ...]]
    next_offsets: Mapping[UUID, Mapping[int, Offset]]


def decode_widenings(text: str | None, *, source: str) -> list[Widening]:
    """Raises CorruptFile, UnsupportedFormat."""
    if text is None:
        return []
    try:
        document = json.loads(text)
        if document["version"] not in VERSIONS:
            raise UnsupportedFormat.of_version(
                f"property {WIDENED_PROPERTY} of {source}", document["version"], VERSIONS
            )
        return [
            Widening(
                fields=[tuple(map(str, path)) for path in step["fields"]],
                next_offsets=_decoded(step["next"]),
            )
            for step in document["steps"]
        ]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptFile(
            f"property {WIDENED_PROPERTY} of {source} is damaged ({error!r}): set it back to its"
            " value in an earlier metadata file of the table"
        ) from error


def widened(
    text: str | None, fields: Sequence[tuple[str, ...]], has: TableOffsets, *, source: str
) -> str:
    """The property with another step: the table gets `fields` now. Raises as the decoder."""
    steps = decode_widenings(text, source=source)
    step = Widening(fields=fields, next_offsets=has.next_offsets)
    # It is there if the last attempt set the property and added no fields.
    if fields and step not in steps:
        steps.append(step)
    document = {
        "version": VERSIONS[-1],
        "steps": [
            {"fields": [list(path) for path in one.fields], "next": _encoded(one.next_offsets)}
            for one in steps
        ],
    }
    return json.dumps(document, separators=(",", ":"))


def _encoded(next_offsets: Mapping[UUID, Mapping[int, Offset]]) -> dict[str, dict[str, Offset]]:
    return {
        str(topic_id): {str(partition): at for partition, at in sorted(ends.items())}
        for topic_id, ends in next_offsets.items()
    }


def _decoded(document: Mapping[str, Mapping[str, object]]) -> dict[UUID, dict[int, Offset]]:
    return {
        UUID(topic_id): {int(number): _offset(at) for number, at in ends.items()}
        for topic_id, ends in document.items()
    }


def _rejected(document: dict[str, object]) -> RejectedFiles:
    paths = document["files"]
    if not isinstance(paths, list):
        raise TypeError(f"{paths!r} is no list of files")
    return RejectedFiles(number=_offset(document["number"]), paths=tuple(map(str, paths)))


def _offset(at: object) -> Offset:
    if not isinstance(at, int) or isinstance(at, bool) or at < 0:
        raise ValueError(f"{at!r} is no offset")
    return at
