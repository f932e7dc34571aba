"""`strandline consume`: prints records from any position in the log.

Without a group it reads partitions directly and commits nothing. With a group the cluster assigns
the partitions among its members, and offsets of printed records are committed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from strandline.broker.tools.client.connection import (
    failure_of,
    quiet_logger,
    settings_checked,
)
from strandline.broker.tools.client.failures import WrongUse
from strandline.broker.tools.client.printing import remark
from strandline.broker.tools.client.record_text import ReadRecord, json_of, line_of
from strandline.broker.tools.client.timestamps import duration_ms, moment_ago_ms, moment_ms
from strandline.broker.tools.commands.command_parser import (
    add_connection,
    chosen_connection,
    command_parser,
    connect,
    record_count,
)
from strandline.broker.tools.commands.options import Commands, given_name
from strandline.storage.clock import SystemClock
from strandline.storage.model import Offset, TimestampMs
from strandline.storage.plurals import counted

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

    from strandline.broker.tools.client.cluster import Cluster, Key

# Also the maximal delay of a printed record.
POLL_SECONDS = 0.1
RECORDS_PER_POLL = 1000
TIMESTAMP_NOT_AVAILABLE = 0
# A healthy group has assigned its partitions by then.
ASSIGNMENT_S = 15.0
# How many partitions without the requested offset are named.
STRAYS_SHOWN = 10


_EXAMPLES = """
examples:
  strandline consume orders                              # what comes from now on, Ctrl-C ends
  strandline consume orders --from start --until-end     # everything that is there
  strandline consume orders --from -5 --until-end        # the last 5 of each partition
  strandline consume orders --from 1200 --partition 0 --max-messages 10
  strandline consume orders --since 15m                  # or --since 2026-11-20T18:00:00Z
  strandline consume orders --group billing --from start --value | ./bill
  strandline consume orders --from start --until-end --json | jq .value
"""


def add_consume(commands: Commands) -> None:
    parser = command_parser(commands, "consume", "print the records of topics", _EXAMPLES, _consume)
    parser.add_argument(
        "topics", nargs="+", type=given_name, metavar="TOPIC", help="one topic or several"
    )
    place = parser.add_alternatives()
    place.add_argument(
        "--from",
        dest="start",
        default="end",
        metavar="WHERE",
        help="start, end, an offset, or -N for the last N of each partition [end]",
    )
    place.add_argument("--since", metavar="WHEN", help="2026-11-20T18:00:00Z, or 15m (ago)")
    parser.add_argument("--until-end", action="store_true", help="stop when everything was read")
    parser.add_argument("--max-messages", "-n", type=record_count, metavar="N", help="stop after N")
    parser.add_argument("--timeout", metavar="LENGTH", help="stop when nothing comes for so long")
    parser.add_argument(
        "--partition",
        action="append",
        type=int,
        default=[],
        metavar="N",
        help="this one alone; may be repeated",
    )
    parser.add_argument(
        "--group", "-g", type=given_name, help="as a member of this group, committing offsets"
    )
    form = parser.add_alternatives()
    form.add_argument("--json", action="store_true", help="one JSON object per line")
    form.add_argument("--value", action="store_true", help="values alone, byte for byte")
    parser.add_argument("--quiet", "-q", action="store_true", help="no remarks")
    add_connection(parser)


def _position(options: argparse.Namespace) -> Position:
    """Parses `--from` and `--since`. Raises WrongUse."""
    if options.since is not None:
        return Position(Start.MOMENT, _since_ms(options.since))
    text: str = options.start
    if text in ("start", "earliest", "beginning"):
        return Position(Start.START)
    if text in ("end", "latest"):
        return Position(Start.END)
    if text.isascii() and text.isdigit():
        return Position(Start.OFFSET, int(text))
    if text.isascii() and text.startswith("-") and text[1:].isdigit():
        return Position(Start.LAST, int(text[1:]))
    raise WrongUse(f"--from {text!r}: write start, end, an offset, or -N for the last N")


def _since_ms(text: str) -> int:
    """Parses a moment, or a duration before now."""
    try:
        return moment_ago_ms(text, SystemClock().now_ms())
    except WrongUse:
        return moment_ms(text)


class Start(Enum):
    """The position where reading starts."""

    START = "start"
    END = "end"
    OFFSET = "offset"
    # That many offsets before the end of each partition.
    LAST = "last"
    MOMENT = "moment"


@dataclass(frozen=True, slots=True)
class Position:
    """The start of reading; `number` is the offset, the count or the moment in ms."""

    start: Start
    number: int = 0


def _consume(options: argparse.Namespace) -> int:
    """Reads until a limit or Ctrl-C; returns the exit code."""
    position = _position(options)
    connection = chosen_connection(options)
    silence_ms_max = None if options.timeout is None else duration_ms(options.timeout)
    if options.group is not None and options.partition:
        raise WrongUse(
            "--partition and --group exclude each other: a group is given its partitions"
        )
    if options.group is not None and position.start not in (Start.START, Start.END):
        raise WrongUse(
            "a group continues where it stopped; --from and --since cannot move it",
            remedy="strandline group reset-offsets GROUP does",
        )
    cluster = connect(connection)
    topics = list(dict.fromkeys(options.topics))
    keys = cluster.partitions(dict.fromkeys(topics, options.partition))
    from confluent_kafka import Consumer, TopicPartition

    with settings_checked():
        consumer = Consumer(
            connection.client_settings(
                # librdkafka requires one even if it is not used.
                group_id=options.group or "strandline-cli",
                enable_auto_commit=options.group is not None,
                enable_auto_offset_store=False,
                auto_offset_reset="earliest" if position.start is Start.START else "latest",
                enable_partition_eof=True,
            ),
            logger=quiet_logger(),
        )
    is_waiting = position.start is Start.END and not options.until_end and not options.group
    try:
        if options.group is not None:
            consumer.subscribe(topics)
        else:
            starts = _starts(cluster, position, keys, quiet=options.quiet)
            consumer.assign([TopicPartition(*key, offset) for key, offset in starts.items()])
        if is_waiting and not options.quiet:
            remark("waiting for new records; --from start reads those that are there, Ctrl-C ends")
        count = _copy(consumer, options, silence_ms_max)
    except KeyboardInterrupt:
        return 0
    finally:
        consumer.close()
    if not options.quiet:
        remark(counted(count, "record"))
    return 0


def _starts(
    cluster: Cluster, position: Position, keys: Sequence[Key], *, quiet: bool
) -> dict[Key, int]:
    """Returns the start offset of each partition; always inside its log."""
    if position.start is Start.START:
        return cluster.start_offsets(keys)
    ends = cluster.end_offsets(keys)
    if position.start is Start.END:
        return ends
    if position.start is Start.MOMENT:
        found = cluster.offsets_at(keys, TimestampMs(position.number))
        return {key: ends[key] if offset is None else offset for key, offset in found.items()}
    starts = cluster.start_offsets(keys)
    if position.start is Start.LAST:
        return {key: max(ends[key] - position.number, starts[key]) for key in keys}
    for line in _strays(position.number, starts, ends):
        if not quiet:
            remark(line)
    return {key: min(max(position.number, starts[key]), ends[key]) for key in keys}


def _strays(offset: Offset, starts: Mapping[Key, int], ends: Mapping[Key, int]) -> list[str]:
    """Names the partitions without the requested offset, and their actual start.

    Raises WrongUse if it is beyond the end of all: waiting there, or reading nothing, would look as
    if there were no records.
    """
    beyond = [key for key in sorted(ends) if offset > ends[key]]
    if beyond and len(beyond) == len(ends):
        last = max(beyond, key=lambda key: ends[key])
        raise WrongUse(
            f"offset {offset} is beyond the end: {_place(last)} ends at {ends[last]}"
            + ("" if len(ends) == 1 else ", the others before that"),
            remedy="--from end waits for what comes, --from -N begins with the last N",
        )
    before = [key for key in sorted(starts) if offset < starts[key]]
    return [
        *(f"{_place(k)} begins at {starts[k]}: read from there" for k in before[:STRAYS_SHOWN]),
        *(f"{_place(k)} ends at {ends[k]}: read from there" for k in beyond[:STRAYS_SHOWN]),
    ]


def _place(key: Key) -> str:
    return f"{key[0]}-{key[1]}"


def _copy(consumer: Consumer, options: argparse.Namespace, silence_ms_max: int | None) -> int:
    """Writes records until a limit is reached; returns how many."""
    write = _writer(options)
    clock = SystemClock()
    heard_s = clock.monotonic_s()
    at_end: set[Key] = set()
    count = 0
    waits_from_s: float | None = None if options.group is None or options.quiet else heard_s
    while True:
        wanted = RECORDS_PER_POLL
        if options.max_messages is not None:
            wanted = min(wanted, options.max_messages - count)
            if wanted <= 0:
                return count
        messages = consumer.consume(wanted, POLL_SECONDS)
        for message in _records(messages, at_end):
            write(_seen(message))
            count += 1
            if options.group is not None:
                consumer.store_offsets(message)
        if messages:
            sys.stdout.flush()
            heard_s = clock.monotonic_s()
        assigned = {(place.topic, place.partition) for place in consumer.assignment()}
        if assigned:
            waits_from_s = None
        elif waits_from_s is not None and clock.monotonic_s() - waits_from_s >= ASSIGNMENT_S:
            waits_from_s = None
            remark(
                "still without a partition: other members have them all (strandline group describe"
                f" {options.group}), or the group is not served (strandline status)"
            )
        if options.until_end and assigned and assigned <= at_end:
            return count
        silence_ms = (clock.monotonic_s() - heard_s) * 1000
        if silence_ms_max is not None and silence_ms >= silence_ms_max:
            return count


def _records(messages: Sequence[Message], at_end: set[Key]) -> Iterator[Message]:
    """Yields messages that are records; notes partitions read to their end."""
    from confluent_kafka import KafkaError

    for message in messages:
        error = message.error()
        key = (str(message.topic()), int(message.partition() or 0))
        if error is None:
            at_end.discard(key)
            yield message
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  the library's own name
            at_end.add(key)
        else:
            raise failure_of(error, f"cannot read {message.topic() or 'the topic'}")


def _seen(message: Message) -> ReadRecord:
    kind, timestamp_ms = message.timestamp()
    headers = message.headers() or ()
    # The stubs allow a mapping, which only producers pass.
    assert not isinstance(headers, dict)
    return ReadRecord(
        topic=str(message.topic()),
        partition=int(message.partition() or 0),
        offset=int(message.offset() or 0),
        timestamp_ms=None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms,
        key=_bytes(message.key()),
        value=_bytes(message.value()),
        headers=tuple((name, _bytes(value)) for name, value in headers),
    )


def _bytes(content: str | bytes | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content


def _writer(options: argparse.Namespace) -> Callable[[ReadRecord], None]:
    out = sys.stdout
    if options.json:
        return lambda record: _write_line(json_of(record))
    if options.value:
        # Unchanged: the value may be binary, and a pipe takes it.
        out.flush()
        return lambda record: _write_value(record.value)
    colours = out.isatty() and "NO_COLOR" not in os.environ
    return lambda record: _write_line(line_of(record, colours=colours))


def _write_line(line: str) -> None:
    sys.stdout.write(line + "\n")


def _write_value(value: bytes | None) -> None:
    sys.stdout.buffer.write((value or b"") + b"\n")
