"""What must hold of what clients were told, and of all copies of a topic at the end.

Each check takes a topic's outcome and says what it found, in words. A check that finds nothing in a
broken history is worth nothing: `test_checks.py` breaks one for each.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from tests.system.cluster_faults.history import History

# Of one check in one topic; the next ones say the same.
FOUND_MAX = 10


class LogRecord(NamedTuple):
    epoch: int
    text: str


class BatchMark(NamedTuple):
    """A batch of a replica's log: the same bytes have the same checksum."""

    base_offset: int
    last_offset: int
    epoch: int
    crc: int


@dataclass(frozen=True)
class Replica:
    """What a folder has, from the offset on that names its first segment."""

    start_offset: int
    batches: list[BatchMark]


@dataclass(kw_only=True)
class Outcome:
    """Of a topic, when all is healed and nobody writes; mappings are by partition, by offset."""

    topic: str
    histories: list[History] = field(default_factory=list)
    # What a consumer finds, without and with the records of aborted transactions.
    records: dict[int, dict[int, LogRecord]] = field(default_factory=dict)
    committed: dict[int, dict[int, str]] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    # By node and partition; and one of them decoded, whichever reaches back furthest.
    replicas: dict[tuple[str, int], Replica] = field(default_factory=dict)
    decoded: dict[int, dict[int, LogRecord]] = field(default_factory=dict)
    # What a reader of the bucket finds; None without an archive.
    lake: dict[int, dict[int, str]] | None = None
    # Of the topic whose records transactions copied into this one.
    source: Outcome | None = None

    def events(self, *kinds: str) -> Iterator[tuple[History, int, int, str]]:
        """Of all clients: partition, offset and text."""
        for history in self.histories:
            for event in history.events:
                if event.kind in kinds:
                    yield history, event.partition, event.offset, event.text


Check = Callable[[Outcome], Iterator[str]]


def acknowledged_is_there(outcome: Outcome) -> Iterator[str]:
    """An acknowledged record is in the log, where its producer was told."""
    somewhere = {
        partition: {one.text for one in found.values()}
        for partition, found in outcome.records.items()
    }
    for history, partition, offset, text in outcome.events("acknowledged"):
        found = outcome.records.get(partition, {}).get(offset)
        if text not in somewhere.get(partition, ()):
            yield f"{history.name}: {partition}/{offset} {text} was acknowledged and is lost"
        elif offset >= 0 and (found is None or found.text != text):
            yield f"{history.name}: {partition}/{offset} is {found}, and {text} was acknowledged"


def idempotent_is_there_once_and_in_order(outcome: Outcome) -> Iterator[str]:
    """What an idempotent producer sends is in the log once at most, in the order of its numbers."""
    idempotent = tuple(f"{one.name}." for one in outcome.histories if one.is_idempotent)
    for partition, found in outcome.records.items():
        last: dict[str, int] = {}
        for offset in sorted(found):
            text = found[offset].text
            if not text.startswith(idempotent) or not idempotent:
                continue
            name, _, number = text.rpartition(":")
            before = last.get(name, -1)
            if int(number) <= before:
                yield f"{partition}/{offset} has {text} behind number {before}"
            last[name] = max(before, int(number))


def nothing_is_invented(outcome: Outcome) -> Iterator[str]:
    """Each record is of a producer of the run."""
    histories = (outcome.source or outcome).histories
    names = tuple(f"{one.name}." for one in histories if not one.group)
    for partition, found in outcome.records.items():
        for offset, record in found.items():
            if not record.text.startswith(names):
                yield f"{partition}/{offset} has {record.text!r}, which nobody sent"


def replicas_are_the_same(outcome: Outcome) -> Iterator[str]:
    """Every replica has the same bytes where it has any, to the same end; epochs never fall."""
    by_partition: dict[int, dict[str, Replica]] = defaultdict(dict)
    for (node, partition), replica in outcome.replicas.items():
        by_partition[partition][node] = replica
        for before, after in pairwise(replica.batches):
            if after.base_offset <= before.last_offset or after.epoch < before.epoch:
                yield f"{node}: partition {partition} has {after} behind {before}"
    for partition, nodes in by_partition.items():
        (first, ours), *others = nodes.items()
        for node, theirs in others:
            start = max(ours.start_offset, theirs.start_offset)
            for a, b in _beside(_from(ours, start), _from(theirs, start)):
                if a != b:
                    yield f"partition {partition}: {first} has {a}, and {node} {b}"
                    break


def _from(replica: Replica, start_offset: int) -> list[BatchMark]:
    return [one for one in replica.batches if one.base_offset >= start_offset]


def _beside(ours: list[BatchMark], other: list[BatchMark]) -> Iterator[tuple[object, object]]:
    for place in range(max(len(ours), len(other))):
        yield (
            ours[place] if place < len(ours) else None,
            other[place] if place < len(other) else None,
        )


def a_folder_has_what_consumers_read(outcome: Outcome) -> Iterator[str]:
    """The same offset and epoch is the same record in a folder, and through a broker."""
    for partition, decoded in outcome.decoded.items():
        read = outcome.records.get(partition, {})
        # Where all is in the archive alone, another check has it.
        start = min(decoded, default=outcome.ends.get(partition, 0))
        for offset in sorted(decoded.keys() | {one for one in read if one >= start}):
            if decoded.get(offset) != read.get(offset):
                yield (
                    f"{partition}/{offset}: the folder has {decoded.get(offset)}, a consumer reads"
                    f" {read.get(offset)}"
                )


def what_was_read_stays(outcome: Outcome) -> Iterator[str]:
    """A record that any consumer ever read is still there in the end."""
    for history, partition, offset, text in outcome.events("read"):
        found = outcome.records.get(partition, {}).get(offset)
        if found is None or found.text != text:
            yield f"{history.name} read {text} at {partition}/{offset}, where {found} is now"


def nothing_aborted_is_read(outcome: Outcome) -> Iterator[str]:
    """Readers of committed records never saw another one."""
    for history, partition, offset, text in outcome.events("read"):
        if history.is_read_committed and offset not in outcome.committed.get(partition, {}):
            yield f"{history.name} read {text} at {partition}/{offset}, which is not committed"


def transactions_are_whole(outcome: Outcome) -> Iterator[str]:
    """A committed transaction is read in whole, another not at all, an unknown one as either."""
    found: dict[str, list[str]] = defaultdict(list)
    for partition in outcome.committed.values():
        for text in partition.values():
            found[text.rpartition(":")[0]].append(text)
    for history in outcome.histories:
        for event in history.events:
            if event.kind not in ("commit", "abort", "unknown"):
                continue
            texts = found.get(event.text, [])
            whole = {f"{event.text}:{number}" for number in range(event.offset)}
            is_whole = len(texts) == len(whole) and set(texts) == whole
            expected = {"commit": is_whole, "abort": not texts, "unknown": is_whole or not texts}
            if not expected[event.kind]:
                yield (
                    f"{history.name}: {event.kind} of {event.text} was told, and {len(texts)} of"
                    f" {event.offset} records are read"
                )


def committed_offsets_never_go_back(outcome: Outcome) -> Iterator[str]:
    """A request that left after a commit was acknowledged finds it, or a later one."""
    yield from _never_back(outcome, told=("committed", "found"), asked="found")


def ends_never_go_back(outcome: Outcome) -> Iterator[str]:
    """An end that anybody was told, or a record that was read, lies before each later end."""
    yield from _never_back(outcome, told=("end", "read"), asked="end")
    for history, partition, offset, _ in outcome.events("end"):
        end = outcome.ends.get(partition, 0)
        if offset > end:
            yield f"{history.name} was told the end {offset} of {partition}, which ends at {end}"


def _never_back(outcome: Outcome, *, told: tuple[str, ...], asked: str) -> Iterator[str]:
    """Groups have their own offsets, and isolation levels their own ends."""
    by_whom: dict[object, list[History]] = defaultdict(list)
    for history in outcome.histories:
        if history.group:
            by_whom[history.group if asked == "found" else history.is_read_committed].append(
                history
            )
    for histories in by_whom.values():
        knowing: dict[int, list[tuple[int, int]]] = defaultdict(list)
        asking: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
        for history in histories:
            for event in history.events:
                if event.kind in told:
                    # A record that was read lies below the end.
                    offset = event.offset + (event.kind == "read")
                    knowing[event.partition].append((event.at_ms, offset))
                if event.kind == asked:
                    asking[event.partition].append((int(event.text), event.offset, history.name))
        for partition, questions in asking.items():
            known, highest, place = sorted(knowing[partition]), -1, 0
            for began_ms, offset, name in sorted(questions):
                while place < len(known) and known[place][0] < began_ms:
                    highest = max(highest, known[place][1])
                    place += 1
                if offset < highest:
                    yield f"{name} found {partition}/{offset}, where {highest} was known before"


def a_group_skips_nothing(outcome: Outcome) -> Iterator[str]:
    """Each record below a group's committed offset was read by a member of it."""
    groups: dict[str, list[History]] = defaultdict(list)
    for history in outcome.histories:
        if history.group:
            groups[history.group].append(history)
    for group, members in groups.items():
        visible: Mapping[int, Iterable[int]] = (
            outcome.committed if members[0].is_read_committed else outcome.records
        )
        read: dict[int, set[int]] = defaultdict(set)
        reached: dict[int, int] = defaultdict(int)
        for member in members:
            for event in member.events:
                if event.kind == "read":
                    read[event.partition].add(event.offset)
                elif event.kind == "committed":
                    reached[event.partition] = max(reached[event.partition], event.offset)
        for partition, end in reached.items():
            for offset in visible.get(partition, ()):
                if offset < end and offset not in read[partition]:
                    yield f"group {group} committed {partition}/{end} and never read {offset}"


def the_lake_has_the_same(outcome: Outcome) -> Iterator[str]:
    """A reader of the bucket finds what consumers do, up to where the archive ends."""
    for partition, rows in (outcome.lake or {}).items():
        end = max(rows, default=-1) + 1
        read = outcome.committed.get(partition, {})
        for offset in sorted(rows.keys() | {one for one in read if one < end}):
            if rows.get(offset) != read.get(offset):
                yield (
                    f"{partition}/{offset}: the lake has {rows.get(offset)!r}, a consumer reads"
                    f" {read.get(offset)!r}"
                )


def each_record_was_copied_once(outcome: Outcome) -> Iterator[str]:
    """Read, written and committed in one transaction, whoever died meanwhile."""
    if outcome.source is None:
        return
    copies = Counter(text for found in outcome.committed.values() for text in found.values())
    sent = {text for found in outcome.source.committed.values() for text in found.values()}
    for text in sorted(sent | copies.keys()):
        if copies[text] != 1 or text not in sent:
            yield f"{text} was copied {copies[text]} times"


CHECKS: tuple[Check, ...] = (
    acknowledged_is_there,
    idempotent_is_there_once_and_in_order,
    nothing_is_invented,
    replicas_are_the_same,
    a_folder_has_what_consumers_read,
    what_was_read_stays,
    nothing_aborted_is_read,
    transactions_are_whole,
    committed_offsets_never_go_back,
    ends_never_go_back,
    a_group_skips_nothing,
    the_lake_has_the_same,
    each_record_was_copied_once,
)


def violations(outcome: Outcome) -> list[str]:
    """Of all checks; of each the first few."""
    found = []
    for check in CHECKS:
        for place, text in enumerate(check(outcome)):
            if place == FOUND_MAX:
                break
            found.append(f"{outcome.topic}: {check.__name__}: {text}")
    return found
