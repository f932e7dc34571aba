"""What a client was told, an event a line, in a file that outlives the kill of its process.

    MILLISECONDS KIND PARTITION OFFSET TEXT          milliseconds of the machine's monotonic clock

    acknowledged   the record TEXT of this producer is in the partition, at OFFSET (-1: not told)
    refused        nobody knows whether the record TEXT is in the partition
    read           the consumer read the record TEXT at OFFSET
    committed      the group's OFFSET was committed
    found          a request that left at the milliseconds TEXT found the group's OFFSET (-1: none)
    end            a request that left at the milliseconds TEXT found the end of the partition
    commit, abort  the transaction TEXT of OFFSET records ended so, as its producer was told
    unknown        nobody knows how the transaction TEXT of OFFSET records ended

A producer numbers its records, in each partition upwards: `NAME:NUMBER`, and within a transaction
`NAME:TRANSACTION:NUMBER`. NAME changes when an application would make a new producer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

PADDING = b"."
# In a line.
WORDS = 5


class Event(NamedTuple):
    at_ms: int
    kind: str
    partition: int
    offset: int
    text: str


class History(NamedTuple):
    """Of one client, in the order in which it was told."""

    name: str
    topic: str
    events: list[Event]
    is_idempotent: bool = False
    is_read_committed: bool = False
    group: str = ""


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def padded(text: str, size_bytes: int) -> bytes:
    """A record's value; `text_of` takes the padding off again."""
    return text.encode().ljust(size_bytes, PADDING)


def text_of(value: bytes | None) -> str:
    return (value or b"").rstrip(PADDING).decode()


class Writer:
    """Of one process of a client; its next process writes on."""

    def __init__(self, path: Path) -> None:
        # Until `flush`, what is lost with the process is only a check less.
        self._file = open(path, "a", buffering=1 << 16)  # noqa: SIM115

    def note(self, kind: str, partition: int, offset: int, text: str = "-") -> None:
        self._file.write(f"{now_ms()} {kind} {partition} {offset} {text}\n")

    def flush(self) -> None:
        self._file.flush()

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()


def events_in(path: Path) -> Iterator[Event]:
    """A last line that a kill left unfinished counts as not told."""
    if not path.exists():
        return
    with open(path) as lines:
        for line in lines:
            words = line.split()
            if line.endswith("\n") and len(words) == WORDS:
                at_ms, kind, partition, offset, text = words
                yield Event(int(at_ms), kind, int(partition), int(offset), text)
