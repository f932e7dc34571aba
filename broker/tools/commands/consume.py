"""`strandline consume`: prints records from any position in the log.

Without a group it reads partitions directly and commits nothing. With a group the cluster assigns
the partitions among its members, and offsets of printed records are committed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from strandline.broker.tools.client.connection import (
    ClusterConnection,
    failure_of,
    quiet_logger,
    settings_checked,
)
from strandline.broker.tools.client.failures import ToolFailure, WrongUse
from strandline.broker.tools.client.printing import remark
from strandline.broker.tools.client.reading import Reading, stopped_text
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
    from confluent_kafka import Consumer, KafkaError, Message

    from strandline.broker.tools.client.cluster import Cluster, Key

# Also the maximal delay of a printed record.
POLL_SECONDS = 0.1
RECORDS_PER_POLL = 1000
TIMESTAMP_NOT_AVAILABLE = 0
# A healthy group has assigned its partitions by then.
ASSIGNMENT_S = 15.0
# How many partitions without the requested offset are named.
STRAYS_SHOWN = 10
_UNREADABLE = (
    "there are more records: the broker does not answer, or cannot read them from its archive; its"
    " log and `strandline status` say why"
)


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
    raise WrongUse(
        f"--from {text!r}: write start, end, an offset, or -N for the last N",
        remedy="--since begins at a time: 1d (ago), or 2026-11-20T18:00:00Z",
    )


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
    clock = SystemClock()
    cluster = connect(connection)
    topics = list(dict.fromkeys(options.topics))
    keys = cluster.partitions(dict.fromkeys(topics, options.partition))
    from confluent_kafka import Consumer, TopicPartition

    errors: list[KafkaError] = []
    settings: dict[str, Any] = {
        **connection.client_settings(
            # librdkafka requires one even if it is not used.
            group_id=options.group or "strandline-cli",
            enable_auto_commit=options.group is not None,
            enable_auto_offset_store=False,
            auto_offset_reset=_reset(options, position),
            enable_partition_eof=True,
        ),
        "error_cb": errors.append,
    }
    with settings_checked():
        consumer = Consumer(settings, logger=quiet_logger())
    is_waiting = position.start is Start.END and not options.until_end and not options.group
    try:
        if options.group is not None:
            consumer.subscribe(topics)
            reading = Reading({}, {}, clock.monotonic_s())
        else:
            ends = _Ends.of(cluster, connection, keys)
            starts = _starts(cluster, position, keys, ends, quiet=options.quiet)
            consumer.assign([TopicPartition(*key, offset) for key, offset in starts.items()])
            reading = Reading(starts, ends.readable, clock.monotonic_s())
            if options.until_end and not options.quiet:
                for line in ends.undecided():
                    remark(line)
        if is_waiting and not options.quiet:
            remark("waiting for new records; --from start reads those that are there, Ctrl-C ends")
        _copy(
            consumer, options, reading, silence_ms_max, lambda: _watch(errors, connection, reading)
        )
    except KeyboardInterrupt:
        return 0
    finally:
        consumer.close()
    if not options.quiet:
        remark(counted(reading.count, "record"))
    return 0


def _reset(options: argparse.Namespace, position: Position) -> str:
    """Where librdkafka goes on if an offset is gone: elsewhere only where somebody said so."""
    if position.start is Start.START:
        return "earliest"
    return "latest" if options.group is not None else "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ends:
    """The ends of partitions, and how far this consumer's isolation level lets it read."""

    last: Mapping[Key, int]
    readable: Mapping[Key, int]

    @classmethod
    def of(cls, cluster: Cluster, connection: ClusterConnection, keys: Sequence[Key]) -> _Ends:
        last = cluster.end_offsets(keys)
        # As librdkafka's default.
        if connection.settings.get("isolation.level", "read_committed") != "read_committed":
            return cls(last=last, readable=last)
        return cls(last=last, readable=cluster.end_offsets(keys, committed_only=True))

    def undecided(self) -> Iterator[str]:
        """Names the partitions with records that nobody can read before a transaction ends."""
        for key in [key for key in sorted(self.last) if self.readable[key] < self.last[key]][
            :STRAYS_SHOWN
        ]:
            count = self.last[key] - self.readable[key]
            yield (
                f"{_place(key)}: {counted(count, 'offset')} from {self.readable[key]} on wait for"
                " an open transaction; -X isolation.level=read_uncommitted reads them"
            )


def _watch(errors: list[KafkaError], connection: ClusterConnection, reading: Reading) -> None:
    """Raises ToolFailure if no broker has been reachable for long."""
    from confluent_kafka import KafkaError

    now_s = SystemClock().monotonic_s()
    all_down = KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001  the library's own name
    if any(error.code() == all_down for error in errors):
        reading.brokers_away(now_s)
    errors.clear()
    if reading.is_away(now_s):
        connection.check_reachable()
        reading.brokers_back()


def _starts(
    cluster: Cluster, position: Position, keys: Sequence[Key], ends: _Ends, *, quiet: bool
) -> dict[Key, int]:
    """Returns the start offset of each partition; always inside its log."""
    if position.start is Start.START:
        return cluster.start_offsets(keys)
    if position.start is Start.END:
        return dict(ends.readable)
    if position.start is Start.MOMENT:
        found = cluster.offsets_at(keys, TimestampMs(position.number))
        return {
            key: ends.readable[key] if offset is None else offset for key, offset in found.items()
        }
    starts = cluster.start_offsets(keys)
    if position.start is Start.LAST:
        return {key: max(ends.readable[key] - position.number, starts[key]) for key in keys}
    for line in _strays(position.number, starts, ends.last):
        if not quiet:
            remark(line)
    return {key: min(max(position.number, starts[key]), ends.last[key]) for key in keys}


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


def _copy(
    consumer: Consumer,
    options: argparse.Namespace,
    reading: Reading,
    silence_ms_max: int | None,
    watch: Callable[[], None],
) -> None:
    """Writes records until a limit is reached; `watch` raises when no broker is left.

    Raises ToolFailure where it stops before its end.
    """
    write = _writer(options)
    clock = SystemClock()
    waits_from_s = None if options.group is None or options.quiet else clock.monotonic_s()
    while True:
        wanted = RECORDS_PER_POLL
        if options.max_messages is not None:
            wanted = min(wanted, options.max_messages - reading.count)
            if wanted <= 0:
                return
        messages = consumer.consume(wanted, POLL_SECONDS)
        now_s = clock.monotonic_s()
        for message in _records(messages, reading, now_s, has_group=options.group is not None):
            write(_seen(message))
            if options.group is not None:
                consumer.store_offsets(message)
        if messages:
            sys.stdout.flush()
        assigned = {(place.topic, place.partition) for place in consumer.assignment()}
        if assigned:
            waits_from_s = None
        elif waits_from_s is not None and now_s - waits_from_s >= ASSIGNMENT_S:
            waits_from_s = None
            remark(f"still without a partition: {_unassigned(options)}")
        if options.until_end and assigned and not reading.unread(assigned):
            return
        silence_s = reading.silence_s(now_s)
        is_over = silence_ms_max is not None and silence_s * 1000 >= silence_ms_max
        if is_over and assigned and not reading.unread(assigned):
            return
        try:
            watch()
        except ToolFailure as failure:
            raise _stopped(reading, assigned, silence_s, str(failure)) from None
        if is_over and not assigned:
            raise _stopped(reading, assigned, silence_s, _unassigned(options))
        if is_over or reading.is_stalled(assigned, now_s):
            raise _stopped(reading, assigned, silence_s, _UNREADABLE)


def _unassigned(options: argparse.Namespace) -> str:
    return (
        f"other members have them all (strandline group describe {options.group}), or the group is"
        " not served (strandline status)"
    )


def _stopped(reading: Reading, assigned: Iterable[Key], silence_s: float, why: str) -> ToolFailure:
    what = stopped_text(reading.count, reading.unread(assigned), silence_s=silence_s)
    return ToolFailure(what, remedy=why)


def _records(
    messages: Sequence[Message], reading: Reading, now_s: float, *, has_group: bool
) -> Iterator[Message]:
    """Yields messages that are records; notes how far each partition is read."""
    from confluent_kafka import KafkaError

    for message in messages:
        error = message.error()
        key = (str(message.topic()), int(message.partition() or 0))
        offset = int(message.offset() or 0)
        if error is None:
            reading.read(key, offset, now_s)
            yield message
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  the library's own name
            reading.reached_end(key, offset, now_s)
        elif not has_group and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            continue  # librdkafka looks for the coordinator of a group that nobody uses.
        else:
            place = reading.unread([key])
            where = str(place[0]) if place else message.topic() or "the topic"
            raise failure_of(error, f"cannot read {where} after {counted(reading.count, 'record')}")


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
