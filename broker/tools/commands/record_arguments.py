"""Arguments of `strandline produce` and `consume`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from strandline.broker.tools.client.connection import pair
from strandline.broker.tools.client.failures import WrongUse
from strandline.broker.tools.client.timestamps import duration_ms, moment_ago_ms, moment_ms
from strandline.broker.tools.commands.command_parser import (
    Commands,
    add_connection,
    chosen_connection,
    command_parser,
    partition_number,
)
from strandline.broker.tools.commands.consume import ConsumeOptions, Output, Start, consume
from strandline.broker.tools.commands.produce import LineFormat, produce
from strandline.storage.clock import SystemClock

_PRODUCE_EXAMPLES = """
examples:
  echo hello | strandline produce orders
  strandline produce orders --key-separator :            # then type key:value, Ctrl-D ends
  strandline produce orders --file orders.csv --header source=import --compression zstd
  strandline produce pictures --whole --key logo --file logo.png
  strandline consume orders --from start --until-end --json | strandline produce copy --json
  printf 'trace:1,user:ann\\tid7|paid\\n' | \\
      strandline produce orders --parse-headers --key-separator '|'
"""

_CONSUME_EXAMPLES = """
examples:
  strandline consume orders                              # what comes from now on, Ctrl-C ends
  strandline consume orders --from start --until-end     # everything that is there
  strandline consume orders --from -5 --until-end        # the last 5 of each partition
  strandline consume orders --from 1200 --partition 0 --max-messages 10
  strandline consume orders --since 15m                  # or --since 2026-11-20T18:00:00Z
  strandline consume orders --group billing --from start --value | ./bill
  strandline consume orders --from start --until-end --json | jq .value
"""


def add_produce(commands: Commands) -> None:
    produce = command_parser(commands, "produce", "write lines into a topic", _PRODUCE_EXAMPLES)
    produce.add_argument("topic", metavar="TOPIC", help="where to")
    produce.add_argument("--file", type=Path, metavar="FILE", help="instead of standard input")
    form = produce.add_mutually_exclusive_group()
    form.add_argument("--whole", action="store_true", help="the whole input is one record")
    form.add_argument("--json", action="store_true", help="lines as `consume --json` writes them")
    form.add_argument("--key-separator", metavar="TEXT", help="stands between key and value")
    produce.add_argument("--key", help="the same key for every record")
    produce.add_argument(
        "--header", action="append", default=[], metavar="NAME=VALUE", help="on every record"
    )
    produce.add_argument(
        "--parse-headers", action="store_true", help="each line begins with name:value,… and a TAB"
    )
    produce.add_argument("--null", metavar="TEXT", help="a key or value of this text is null")
    produce.add_argument(
        "--partition", type=partition_number, metavar="N", help="where to [by key, else spread]"
    )
    produce.add_argument(
        "--compression",
        default="none",
        choices=("none", "gzip", "snappy", "lz4", "zstd"),
        help="of the batches that are sent [none]",
    )
    produce.add_argument(
        "--acks",
        default="all",
        choices=("0", "1", "all"),
        help="who must have a record before it counts: nobody, the leader, all in-sync replicas"
        " [all]",
    )
    produce.add_argument("--quiet", "-q", action="store_true", help="say nothing on success")
    add_connection(produce)
    produce.set_defaults(run=_produce)


def _produce(options: argparse.Namespace) -> int:
    headers: Sequence[tuple[str, str]] = [pair(text) for text in options.header]
    return produce(
        chosen_connection(options),
        options.topic,
        source=options.file,
        line_format=LineFormat(
            as_json=options.json,
            whole=options.whole,
            key_separator=options.key_separator,
            parse_headers=options.parse_headers,
            null_text=options.null,
        ),
        headers=tuple((name, value.encode()) for name, value in headers),
        key=options.key,
        partition=options.partition,
        compression=options.compression,
        acks=options.acks,
        quiet=options.quiet,
    )


def add_consume(commands: Commands) -> None:
    consume = command_parser(commands, "consume", "print the records of topics", _CONSUME_EXAMPLES)
    consume.add_argument("topics", nargs="+", metavar="TOPIC", help="one topic or several")
    place = consume.add_mutually_exclusive_group()
    place.add_argument(
        "--from",
        dest="start",
        default="end",
        metavar="WHERE",
        help="start, end, an offset, or -N for the last N of each partition [end]",
    )
    place.add_argument("--since", metavar="WHEN", help="2026-11-20T18:00:00Z, or 15m (ago)")
    consume.add_argument("--until-end", action="store_true", help="stop when everything was read")
    consume.add_argument("--max-messages", "-n", type=int, metavar="N", help="stop after N")
    consume.add_argument("--timeout", metavar="LENGTH", help="stop when nothing comes for so long")
    consume.add_argument(
        "--partition",
        action="append",
        type=int,
        default=[],
        metavar="N",
        help="this one alone; may be repeated",
    )
    consume.add_argument("--group", "-g", help="as a member of this group, committing offsets")
    form = consume.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON object per line")
    form.add_argument("--value", action="store_true", help="values alone, byte for byte")
    consume.add_argument("--quiet", "-q", action="store_true", help="no remarks")
    add_connection(consume)
    consume.set_defaults(run=_consume)


def _consume(options: argparse.Namespace) -> int:
    if options.since is not None:
        start, number = Start.MOMENT, _since_ms(options.since)
    else:
        start, number = _start(options.start)
    output = Output.JSON if options.json else Output.VALUE if options.value else Output.LINE
    return consume(
        chosen_connection(options),
        ConsumeOptions(
            topics=tuple(dict.fromkeys(options.topics)),
            partitions=tuple(options.partition),
            start=start,
            start_number=number,
            group=options.group,
            until_end=options.until_end,
            record_count_max=options.max_messages,
            silence_ms_max=None if options.timeout is None else duration_ms(options.timeout),
            output=output,
            quiet=options.quiet,
        ),
    )


def _start(text: str) -> tuple[Start, int]:
    if text in ("start", "earliest", "beginning"):
        return Start.START, 0
    if text in ("end", "latest"):
        return Start.END, 0
    if text.isascii() and text.isdigit():
        return Start.OFFSET, int(text)
    if text.isascii() and text.startswith("-") and text[1:].isdigit():
        return Start.LAST, int(text[1:])
    raise WrongUse(f"--from {text!r}: write start, end, an offset, or -N for the last N")


def _since_ms(text: str) -> int:
    """Parses a moment, or a duration before now."""
    try:
        return moment_ago_ms(text, SystemClock().now_ms())
    except WrongUse:
        return moment_ms(text)
