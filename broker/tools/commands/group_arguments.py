"""Arguments of `strandline group`."""

from __future__ import annotations

import argparse

from strandline.broker.tools.client.confirmation import add_yes
from strandline.broker.tools.client.resets import Reset, Target
from strandline.broker.tools.client.timestamps import moment_ago_ms, moment_ms
from strandline.broker.tools.commands import groups as group_commands
from strandline.broker.tools.commands.command_parser import (
    Commands,
    action_parser,
    chosen_connection,
    command_parser,
)
from strandline.storage.clock import SystemClock

_EXAMPLES = """
examples:
  strandline group list
  strandline group describe billing                       # how far behind is it, and who reads what
  strandline group reset-offsets billing --topic orders --to-earliest            # prints the plan
  strandline group reset-offsets billing --topic orders --to-earliest --execute  # does it
  strandline group reset-offsets billing --topic orders:0,3 --to-offset 1200 --execute
  strandline group reset-offsets billing --all-topics --to-datetime 2026-11-20T18:00:00Z
  strandline group reset-offsets billing --all-topics --by-duration 2h      # what came 2 hours ago
  strandline group reset-offsets billing --all-topics --shift-by -100       # the last 100 again
  strandline group delete billing             # says what it has committed, and asks
"""


def add_group(commands: Commands) -> None:
    group = command_parser(commands, "group", "consumer groups: lag, members, offsets", _EXAMPLES)
    actions = group.add_subparsers(title="actions", required=True, metavar="ACTION")
    action_parser(actions, "list", "one line per group", _EXAMPLES, _group_list, with_json=True)

    describe = action_parser(
        actions,
        "describe",
        "lag per partition, and who reads it",
        _EXAMPLES,
        _group_describe,
        with_json=True,
    )
    describe.add_argument("groups", nargs="+", metavar="GROUP", help="one group or several")
    describe.add_argument("--members", action="store_true", help="a table of the members as well")

    reset = action_parser(
        actions,
        "reset-offsets",
        "move the offsets of a group that has no members; prints the plan unless --execute",
        _EXAMPLES,
        _group_reset,
        with_json=True,
    )
    reset.add_argument("group", metavar="GROUP", help="a group without members")
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
    target.add_argument(
        "--to-offset", type=int, metavar="OFFSET", help="this one, in each partition"
    )
    target.add_argument("--shift-by", type=int, metavar="N", help="forwards, or backwards with -N")
    target.add_argument("--to-datetime", metavar="MOMENT", help="2026-11-20T18:00:00Z, or ms")
    target.add_argument("--by-duration", metavar="LENGTH", help="that long ago: 90s 15m 6h 7d")
    reset.add_argument("--execute", action="store_true", help="do it, and not only print the plan")

    delete = action_parser(
        actions, "delete", "forget groups and their offsets", _EXAMPLES, _group_delete
    )
    delete.add_argument("groups", nargs="+", metavar="GROUP", help="one group or several")
    add_yes(delete)


def _group_list(options: argparse.Namespace) -> int:
    return group_commands.list_groups(chosen_connection(options), as_json=options.json)


def _group_describe(options: argparse.Namespace) -> int:
    return group_commands.describe(
        chosen_connection(options),
        options.groups,
        with_members=options.members,
        as_json=options.json,
    )


def _group_reset(options: argparse.Namespace) -> int:
    return group_commands.reset_offsets(
        chosen_connection(options),
        options.group,
        _reset(options),
        topics=options.topics,
        all_topics=options.all_topics,
        execute=options.execute,
        as_json=options.json,
    )


def _reset(options: argparse.Namespace) -> Reset:
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
    moment = moment_ago_ms(options.by_duration, SystemClock().now_ms())
    return Reset(target=Target.MOMENT, number=moment)


def _group_delete(options: argparse.Namespace) -> int:
    return group_commands.delete(chosen_connection(options), options.groups, yes=options.yes)
