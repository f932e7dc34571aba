"""Kinds of damage to an archive, and their remedies for an operator.

A finding is about one object. The `.meta` of a segment can be rebuilt from its `.log`, except for
its aborted transactions, since the `.log` may have only parts of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from strandline.storage.model import Offset, TopicIdPartition
from strandline.storage.remote.manifest.entries import PageRef, SegmentEntry
from strandline.storage.remote.manifest.open_segment import TailPart


class Damage(Enum):
    """A kind of damage; the value is shown to operators."""

    MANIFEST = "the manifest cannot be read"
    OLDER = "later segments lie beyond the end of the archive"
    OTHER_RECORDS = "segments that it does not name hold other records under its offsets"
    PAGE = "a page of the manifest cannot be read"
    OVERLAP = "two segments hold the same offsets"
    EPOCH = "leader epochs go back"
    LOG_MISSING = "the segment is missing"
    LOG_CORRUPT = "the segment is damaged"
    META_MISSING = "the segment's .meta is missing"
    META_CORRUPT = "the segment's .meta is damaged"
    TAIL = "a piece of the open segment is missing or damaged"
    FACTS = "the manifest says something else than the segment"


# Damage to an object that can be rebuilt from the segment.
REPAIRABLE = frozenset({Damage.META_MISSING, Damage.META_CORRUPT})

_ADVICE = {
    Damage.MANIFEST: "bring back an older version of this object (bucket versioning)",
    Damage.OLDER: "if an older manifest was put over a newer one, bring back the newest version of"
    " this object; what copies that failed have left is archived again by itself",
    Damage.OTHER_RECORDS: "the archive continued from an older manifest. These objects stay until"
    " `strandline archive orphans --delete-all`, which deletes them for good; first read:"
    " strandline docs runbooks/older-manifest",
    Damage.PAGE: "bring back this object from a version of the bucket",
    Damage.OVERLAP: "two brokers have written here; keep the one with the higher epoch",
    Damage.EPOCH: "two brokers have written here; keep the one with the higher epoch",
    Damage.LOG_MISSING: "bring it back from a version of the bucket; records are lost without it",
    Damage.LOG_CORRUPT: "bring it back from a version of the bucket",
    Damage.META_MISSING: "--repair makes it again from the segment",
    Damage.META_CORRUPT: "--repair makes it again from the segment",
    Damage.TAIL: "nothing while the broker has its disk: the closed segment replaces it. Without:"
    " bring it back from a version of the bucket, or give its records up with --drop-pieces",
    Damage.FACTS: "bring back an older version of the manifest or of the segment",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One damage, and its remedy."""

    partition: TopicIdPartition
    damage: Damage
    key: str
    base_offset: Offset = -1
    end_offset: Offset = -1
    detail: str = ""
    repairable: bool = False

    @property
    def offsets(self) -> str:
        """The first and last damaged offset; empty if the finding is about no offsets."""
        last_offset = max(self.base_offset, self.end_offset - 1)
        return "" if self.base_offset < 0 else f"{self.base_offset} to {last_offset}"

    @property
    def advice(self) -> str:
        if self.damage in REPAIRABLE and not self.repairable:
            return "reads do without it; its transactions are not in the segment alone"
        return _ADVICE[self.damage]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReport:
    """The result of checking one partition."""

    partition: TopicIdPartition
    segment_count: int = 0
    size_bytes: int = 0
    findings: tuple[Finding, ...] = ()
    # Reasons why objects were not read, such as an archive class.
    unread: tuple[str, ...] = ()
    # Objects of which only the size was compared, since the store keeps no checksum of them.
    by_size_count: int = 0


def of_segment(
    partition: TopicIdPartition, entry: SegmentEntry, damage: Damage, detail: str = ""
) -> Finding:
    """Returns a finding about the segment's `.meta` or `.log`, whichever has the damage."""
    is_meta = damage in REPAIRABLE
    return Finding(
        partition=partition,
        damage=damage,
        key=entry.meta_key if is_meta else entry.log_key,
        base_offset=entry.base_offset,
        end_offset=entry.end_offset,
        detail=detail,
        repairable=is_meta and not entry.has_transactions,
    )


def of_part(
    partition: TopicIdPartition, part: PageRef | TailPart, damage: Damage, detail: str
) -> Finding:
    """Returns a finding about a page of the manifest or a piece of the open segment."""
    return Finding(
        partition=partition,
        damage=damage,
        key=part.key,
        base_offset=part.base_offset,
        end_offset=part.end_offset,
        detail=detail,
    )
