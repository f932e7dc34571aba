"""What can be typed behind `strandline topic`, `group`, `produce` and `consume`.

Every command shows with `--help` what people do with it; the commands themselves are imported when
one runs, so that `strandline --help` costs nothing.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from strandline.broker.tools.connection import (
    DEFAULT_BOOTSTRAP,
    Connection,
    connection_of,
    pair,
)
from strandline.broker.tools.failures import WrongUse
from strandline.broker.tools.moments import duration_ms, moment_ms
from strandline.storage.clock import SystemClock

if TYPE_CHECKING:
    from strandline.broker.tools.consume_command import Start
    from strandline.broker.tools.resets import Reset

    # argparse has no public name for what add_subparsers returns.
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001

BOOTSTRAP_VARIABLE = "STRANDLINE_BOOTSTRAP"

_REACHING = f"""
Reaching the cluster: --bootstrap-server, else the variable {BOOTSTRAP_VARIABLE}, else
{DEFAULT_BOOTSTRAP}. TLS, SASL and the rest are settings of librdkafka, as in
  -X security.protocol=SASL_SSL -X sasl.username=me        or a file of them: --command-config FILE
Exit codes: 0 done, 1 the cluster refused or cannot be reached, 2 the command line is wrong.
"""

_TOPIC_EXAMPLES = """
examples:
  strandline topic create orders --partitions 6
  strandline topic create events --config retention.ms=-1 \\
      --config remote.storage.enable=true --config local.retention.ms=3600000
  strandline topic list --json
  strandline topic describe orders
  strandline topic alter orders --config retention.ms=86400000 --delete-config segment.bytes
  strandline topic alter orders --partitions 12
  strandline topic delete orders
"""

_GROUP_EXAMPLES = """
examples:
  strandline group list
  strandline group describe billing                       how far behind is it, and who reads what
  strandline group reset-offsets billing --topic orders --to-earliest            prints the plan
  strandline group reset-offsets billing --topic orders --to-earliest --execute  does it
  strandline group reset-offsets billing --topic orders:0,3 --to-offset 1200 --execute
  strandline group reset-offsets billing --all-topics --to-datetime 2026-11-20T18:00:00Z
  strandline group reset-offsets billing --all-topics --by-duration 2h      what came 2 hours ago
  strandline group reset-offsets billing --all-topics --shift-by -100       the last 100 again
  strandline group delete billing
"""

_PRODUCE_EXAMPLES = """
examples:
  echo hello | strandline produce orders
  strandline produce orders --key-separator :            then type key:value, Ctrl-D ends
  strandline produce orders --file orders.csv --header source=import --compression zstd
  strandline produce pictures --whole --key logo --file logo.png
  strandline consume orders --from start --until-end --json | strandline produce copy --json
  printf 'trace:1,user:ann\\tid7|paid\\n' | \\
      strandline produce orders --parse-headers --key-separator '|'
"""

_CONSUME_EXAMPLES = """
examples:
  strandline consume orders                              what comes from now on, Ctrl-C ends
  strandline consume orders --from start --until-end     everything that is there
  strandline consume orders --from -5 --until-end        the last 5 of each partition
  strandline consume orders --from 1200 --partition 0 --max-messages 10
  strandline consume orders --since 15m                  or --since 2026-11-20T18:00:00Z
  strandline consume orders --group billing --from start --value | ./bill
  strandline consume orders --from start --until-end --json | jq .value
"""


def add_commands(commands: Commands) -> None:
    """Adds the four to the parser of `strandline`."""
    _add_topic(commands)
    _add_group(commands)
    _add_produce(commands)
    _add_consume(commands)


def _parser(commands: Commands, name: str, text: str, examples: str) -> argparse.ArgumentParser:
    return commands.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog=examples + _REACHING,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _action(
    actions: Commands,
    name: str,
    text: str,
    examples: str,
    run: Callable[[argparse.Namespace], int],
    *,
    with_json: bool = False,
) -> argparse.ArgumentParser:
    """An action that speaks to a cluster; its examples are those that name it."""
    own = "".join(
        line + "\n" for line in _joined(examples) if f" {name} " in line or line.endswith(name)
    )
    action = _parser(actions, name, text, f"examples:\n{own}" if own else "")
    _add_connection(action)
    if with_json:
        action.add_argument("--json", action="store_true", help="JSON for programs")
    action.set_defaults(run=run)
    return action


def _joined(examples: str) -> list[str]:
    """Lines, those that go on behind a backslash as one."""
    return [part.replace("\0", "\\\n") for part in examples.replace("\\\n", "\0").splitlines()]


def _add_connection(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("reaching the cluster")
    group.add_argument(
        "--bootstrap-server",
        "-b",
        default=os.environ.get(BOOTSTRAP_VARIABLE, DEFAULT_BOOTSTRAP),
        metavar="HOST:PORT",
        help="a broker, or several with commas [%(default)s]",
    )
    group.add_argument(
        "-X",
        action="append",
        default=[],
        dest="client_settings",
        metavar="KEY=VALUE",
        help="a setting of librdkafka; may be repeated",
    )
    group.add_argument("--command-config", type=Path, metavar="FILE", help="a file of them")


def _connection(options: argparse.Namespace) -> Connection:
    return connection_of(options.bootstrap_server, options.client_settings, options.command_config)


# --- topic -------------------------------------------------------------------------------------


def _add_topic(commands: Commands) -> None:
    topic = _parser(commands, "topic", "create, look at, change and delete topics", _TOPIC_EXAMPLES)
    actions = topic.add_subparsers(title="actions", required=True, metavar="ACTION")

    create = _action(actions, "create", "create topics", _TOPIC_EXAMPLES, _topic_create)
    create.add_argument("topics", nargs="+", metavar="NAME")
    create.add_argument("--partitions", type=int, default=-1, metavar="N", help="[num.partitions]")
    create.add_argument(
        "--replication-factor", type=int, default=-1, metavar="N", help="[that of the broker]"
    )
    _add_config(create)
    create.add_argument("--if-not-exists", action="store_true", help="leave one that is there")
    create.add_argument("--validate-only", action="store_true", help="check, create nothing")

    listing = _action(
        actions, "list", "one line per topic", _TOPIC_EXAMPLES, _topic_list, with_json=True
    )
    listing.add_argument("--internal", action="store_true", help="with those of the broker itself")

    describe = _action(
        actions,
        "describe",
        "partitions, offsets and properties of topics",
        _TOPIC_EXAMPLES,
        _topic_describe,
        with_json=True,
    )
    describe.add_argument("topics", nargs="+", metavar="NAME")
    describe.add_argument("--all-config", action="store_true", help="properties not set as well")

    alter = _action(
        actions, "alter", "change properties, add partitions", _TOPIC_EXAMPLES, _topic_alter
    )
    alter.add_argument("topic", metavar="NAME")
    _add_config(alter)
    alter.add_argument(
        "--delete-config",
        action="append",
        default=[],
        metavar="KEY",
        help="back to the broker's default; may be repeated",
    )
    alter.add_argument("--partitions", type=int, metavar="N", help="the new number, a larger one")

    delete = _action(
        actions,
        "delete",
        "delete topics and all that is in them, in the archive too",
        _TOPIC_EXAMPLES,
        _topic_delete,
    )
    delete.add_argument("topics", nargs="+", metavar="NAME")
    delete.add_argument("--if-exists", action="store_true", help="pass over those that are gone")


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a topic property; may be repeated",
    )


def _topic_create(options: argparse.Namespace) -> int:
    from strandline.broker.tools import topic_commands

    for number in (options.partitions, options.replication_factor):
        if number < 1 and number != topic_commands.BROKER_DEFAULT:
            raise WrongUse(f"{number} is no number of partitions or replicas")
    return topic_commands.create(
        _connection(options),
        options.topics,
        partition_count=options.partitions,
        replication_factor=options.replication_factor,
        config=dict(pair(text) for text in options.config),
        only_if_missing=options.if_not_exists,
        validate_only=options.validate_only,
    )


def _topic_list(options: argparse.Namespace) -> int:
    from strandline.broker.tools import topic_commands

    return topic_commands.list_topics(
        _connection(options), with_internal=options.internal, as_json=options.json
    )


def _topic_describe(options: argparse.Namespace) -> int:
    from strandline.broker.tools import topic_commands

    return topic_commands.describe(
        _connection(options), options.topics, all_config=options.all_config, as_json=options.json
    )


def _topic_alter(options: argparse.Namespace) -> int:
    from strandline.broker.tools import topic_commands

    return topic_commands.alter(
        _connection(options),
        options.topic,
        partition_count=options.partitions,
        changed=dict(pair(text) for text in options.config),
        removed=options.delete_config,
    )


def _topic_delete(options: argparse.Namespace) -> int:
    from strandline.broker.tools import topic_commands

    return topic_commands.delete(
        _connection(options), options.topics, only_if_there=options.if_exists
    )


# --- group -------------------------------------------------------------------------------------


def _add_group(commands: Commands) -> None:
    group = _parser(commands, "group", "consumer groups: lag, members, offsets", _GROUP_EXAMPLES)
    actions = group.add_subparsers(title="actions", required=True, metavar="ACTION")
    _action(actions, "list", "one line per group", _GROUP_EXAMPLES, _group_list, with_json=True)

    describe = _action(
        actions,
        "describe",
        "lag per partition, and who reads it",
        _GROUP_EXAMPLES,
        _group_describe,
        with_json=True,
    )
    describe.add_argument("groups", nargs="+", metavar="GROUP")
    describe.add_argument("--members", action="store_true", help="a table of the members as well")

    reset = _action(
        actions,
        "reset-offsets",
        "move the offsets of a group that has no members; prints the plan unless --execute",
        _GROUP_EXAMPLES,
        _group_reset,
        with_json=True,
    )
    reset.add_argument("group", metavar="GROUP")
    reset.add_argument(
        "--topic",
        action="append",
        default=[],
        dest="topics",
        metavar="NAME[:0,1]",
        help="a topic, or some partitions of it; may be repeated",
    )
    reset.add_argument("--all-topics", action="store_true", help="all that the group committed")
    target = reset.add_mutually_exclusive_group(required=True)
    target.add_argument("--to-earliest", action="store_true", help="the start of the log")
    target.add_argument("--to-latest", action="store_true", help="the end of the log")
    target.add_argument("--to-current", action="store_true", help="where it is, held in the log")
    target.add_argument("--to-offset", type=int, metavar="OFFSET")
    target.add_argument("--shift-by", type=int, metavar="N", help="forwards, or backwards with -N")
    target.add_argument("--to-datetime", metavar="MOMENT", help="2026-11-20T18:00:00Z, or ms")
    target.add_argument("--by-duration", metavar="LENGTH", help="that long ago: 90s 15m 6h 7d")
    reset.add_argument("--execute", action="store_true", help="do it")

    delete = _action(
        actions, "delete", "forget groups and their offsets", _GROUP_EXAMPLES, _group_delete
    )
    delete.add_argument("groups", nargs="+", metavar="GROUP")


def _group_list(options: argparse.Namespace) -> int:
    from strandline.broker.tools import group_commands

    return group_commands.list_groups(_connection(options), as_json=options.json)


def _group_describe(options: argparse.Namespace) -> int:
    from strandline.broker.tools import group_commands

    return group_commands.describe(
        _connection(options), options.groups, with_members=options.members, as_json=options.json
    )


def _group_reset(options: argparse.Namespace) -> int:
    from strandline.broker.tools import group_commands

    return group_commands.reset_offsets(
        _connection(options),
        options.group,
        _reset(options),
        topics=options.topics,
        all_topics=options.all_topics,
        execute=options.execute,
        as_json=options.json,
    )


def _reset(options: argparse.Namespace) -> Reset:
    from strandline.broker.tools.resets import Reset, Target

    if options.to_earliest:
        return Reset(target=Target.EARLIEST)
    if options.to_latest:
        return Reset(target=Target.LATEST)
    if options.to_current:
        return Reset(target=Target.CURRENT)
    if options.to_offset is not None:
        return Reset(target=Target.OFFSET, number=options.to_offset)
    if options.shift_by is not None:
        return Reset(target=Target.SHIFT, number=options.shift_by)
    if options.to_datetime is not None:
        return Reset(target=Target.MOMENT, number=moment_ms(options.to_datetime))
    ago_ms = duration_ms(options.by_duration)
    return Reset(target=Target.MOMENT, number=SystemClock().now_ms() - ago_ms)


def _group_delete(options: argparse.Namespace) -> int:
    from strandline.broker.tools import group_commands

    return group_commands.delete(_connection(options), options.groups)


# --- produce and consume -----------------------------------------------------------------------


def _add_produce(commands: Commands) -> None:
    produce = _parser(commands, "produce", "write lines into a topic", _PRODUCE_EXAMPLES)
    produce.add_argument("topic", metavar="TOPIC")
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
    produce.add_argument("--partition", type=int, metavar="N", help="[by key, else spread]")
    produce.add_argument(
        "--compression", default="none", choices=("none", "gzip", "snappy", "lz4", "zstd")
    )
    produce.add_argument("--acks", default="all", choices=("0", "1", "all"), help="[all]")
    produce.add_argument("--quiet", "-q", action="store_true", help="say nothing on success")
    _add_connection(produce)
    produce.set_defaults(run=_produce)


def _produce(options: argparse.Namespace) -> int:
    from strandline.broker.tools.produce_command import LineFormat, produce

    headers: Sequence[tuple[str, str]] = [pair(text) for text in options.header]
    return produce(
        _connection(options),
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


def _add_consume(commands: Commands) -> None:
    consume = _parser(commands, "consume", "print the records of topics", _CONSUME_EXAMPLES)
    consume.add_argument("topics", nargs="+", metavar="TOPIC")
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
        "--partition", action="append", type=int, default=[], metavar="N", help="may be repeated"
    )
    consume.add_argument("--group", "-g", help="as a member of this group, committing offsets")
    form = consume.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON object per line")
    form.add_argument("--value", action="store_true", help="values alone, byte for byte")
    consume.add_argument("--quiet", "-q", action="store_true", help="no remarks")
    _add_connection(consume)
    consume.set_defaults(run=_consume)


def _consume(options: argparse.Namespace) -> int:
    from strandline.broker.tools.consume_command import Output, Start, Wish, consume

    if options.since is not None:
        start, number = Start.MOMENT, _since_ms(options.since)
    else:
        start, number = _start(options.start)
    output = Output.JSON if options.json else Output.VALUE if options.value else Output.LINE
    return consume(
        _connection(options),
        Wish(
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
    from strandline.broker.tools.consume_command import Start

    if text in ("start", "earliest", "beginning"):
        return Start.START, 0
    if text in ("end", "latest"):
        return Start.END, 0
    if text.isdigit():
        return Start.OFFSET, int(text)
    if text.startswith("-") and text[1:].isdigit():
        return Start.LAST, int(text[1:])
    raise WrongUse(f"--from {text!r}: write start, end, an offset, or -N for the last N")


def _since_ms(text: str) -> int:
    """A moment, or a length of time before now."""
    try:
        ago_ms = duration_ms(text)
    except WrongUse:
        return moment_ms(text)
    return SystemClock().now_ms() - ago_ms
