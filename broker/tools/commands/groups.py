"""`strandline group list|describe|reset-offsets|delete`.

A reset is only printed unless `--execute` is given, as in Kafka's own tool. It is refused while the
group has members: they would overwrite it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

from strandline.broker.tools.client.confirmation import confirm
from strandline.broker.tools.client.failures import ToolFailure, WrongUse
from strandline.broker.tools.client.lags import GroupLag, group_lags
from strandline.broker.tools.client.printing import Json, print_json, remark, say
from strandline.broker.tools.client.resets import (
    Reset,
    ResetTarget,
    moment_of,
    plan,
)
from strandline.broker.tools.client.tables import Column, print_table
from strandline.broker.tools.client.timestamps import moment_ago_ms, moment_ms
from strandline.broker.tools.commands.command_parser import (
    action_parser,
    chosen_connection,
    command_parser,
    connect,
)
from strandline.broker.tools.commands.options import (
    Commands,
    add_actions,
    add_json,
    add_repeated,
    add_yes,
)
from strandline.storage.clock import SystemClock
from strandline.storage.plurals import counted, human_seconds

if TYPE_CHECKING:
    from strandline.broker.tools.client.cluster import Cluster, GroupView, Key, MemberView

# The state of an unknown group.
DEAD = "DEAD"


_EXAMPLES = """
examples:
  strandline group list                                   # which group is behind, and since when
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
    action = partial(action_parser, add_actions(group), _EXAMPLES)
    add_json(action("list", "one line per group, with its lag in records and in time", _list))

    describe = action("describe", "lag per partition, and who reads it", _describe)
    add_json(describe)
    describe.add_argument("groups", nargs="+", metavar="GROUP", help="one group or several")
    describe.add_argument("--members", action="store_true", help="a table of the members as well")

    reset = action(
        "reset-offsets",
        "move the offsets of a group that has no members; prints the plan unless --execute",
        _reset,
    )
    add_json(reset)
    reset.add_argument("group", metavar="GROUP", help="a group without members")
    add_repeated(
        reset,
        "--topic",
        "NAME[:0,1]",
        "a topic, or some partitions of it; may be repeated",
        "topics",
    )
    reset.add_argument("--all-topics", action="store_true", help="all that the group committed")
    target = reset.add_alternatives(required=True)
    target.add_argument("--to-earliest", action="store_true", help="the start of the log")
    target.add_argument("--to-latest", action="store_true", help="the end of the log")
    target.add_argument(
        "--to-current",
        action="store_true",
        help="the present offset, moved into the log if it is outside",
    )
    target.add_argument(
        "--to-offset", type=int, metavar="OFFSET", help="this one, in each partition"
    )
    target.add_argument("--shift-by", type=int, metavar="N", help="forwards, or backwards with -N")
    target.add_argument("--to-datetime", metavar="MOMENT", help="2026-11-20T18:00:00Z, or ms")
    target.add_argument("--by-duration", metavar="LENGTH", help="that long ago: 90s 15m 6h 7d")
    reset.add_argument("--execute", action="store_true", help="do it, and not only print the plan")

    delete = action("delete", "delete groups and their offsets", _delete)
    delete.add_argument("groups", nargs="+", metavar="GROUP", help="one group or several")
    add_yes(delete)


def _list(options: argparse.Namespace) -> int:
    """Prints one line per group."""
    connection = chosen_connection(options)
    cluster = connect(connection)
    lines = cluster.group_lines()
    lags = group_lags(cluster, connection, [line.group for line in lines], SystemClock())
    if options.json:
        print_json(
            [
                {
                    "group": line.group,
                    "state": line.state,
                    "type": line.kind,
                    "lag": lags[line.group].records,
                    "lag_seconds": lags[line.group].age_s,
                }
                for line in lines
            ]
        )
    elif not lines:
        remark(
            "no groups yet, or none that this user may describe; one comes into being when a"
            " consumer joins it or commits"
        )
    else:
        print_table(
            "",
            (
                *("group", "state", "type"),
                *(Column(name="lag", is_right=True), Column(name="oldest unread", is_right=True)),
            ),
            [
                (line.group, line.state.lower(), line.kind.lower(), *_lag_cells(lags[line.group]))
                for line in lines
            ],
        )
    troubles = [lag.trouble for lag in lags.values() if lag.trouble]
    if troubles:
        remark(f"lag not known of {counted(len(troubles), 'group')}: {troubles[0]}")
    return 0


def _lag_cells(lag: GroupLag) -> tuple[object, object]:
    unknown = "not known" if lag.trouble else None
    return (
        unknown if lag.records is None else lag.records,
        unknown if lag.age_s is None else human_seconds(lag.age_s),
    )


def _describe(options: argparse.Namespace) -> int:
    """Prints lag and reader per partition."""
    cluster = connect(chosen_connection(options))
    documents: list[Json] = []
    for name in options.groups:
        group = _known(cluster, name)
        owners = {key: member for member in group.members for key in member.partitions}
        states, troubles = _states(cluster, name, owners)
        if troubles:
            remark(f"offsets not known of {counted(len(troubles), 'partition')}: {troubles[0]}")
        if options.json:
            documents.append(_document(group, states))
            continue
        lags = [state.lag for state in states if state.lag is not None]
        print_table(
            f"{name}  {group.state.lower()}, {counted(len(group.members), 'member')}"
            + f", lag {sum(lags)}"
            + (f", {group.assignor}" if group.assignor else "")
            + f"  (coordinator {group.coordinator})",
            (
                *("topic", "partition", "committed", "start", "end", "lag", "client"),
                *(Column(name="host", rank=1), Column(name="member", rank=2)),
            ),
            [
                (
                    state.topic,
                    state.partition,
                    state.committed,
                    state.start_offset,
                    state.end_offset,
                    state.lag,
                    *_owner_cells(owners.get((state.topic, state.partition))),
                )
                for state in states
            ],
        )
        if options.members:
            print_table(
                "",
                ("member", "instance", "client", "host", "partitions"),
                [
                    (
                        member.member_id,
                        member.instance_id,
                        member.client_id,
                        member.host,
                        ", ".join(f"{topic}-{number}" for topic, number in member.partitions),
                    )
                    for member in group.members
                ],
            )
    if options.json:
        print_json(documents)
    return 0


def _reset(options: argparse.Namespace) -> int:
    """Resets offsets; `--topic` names a topic, or `name:0,1,4` for some partitions."""
    connection, name, execute = chosen_connection(options), options.group, options.execute
    reset = _target(options)
    if bool(options.topics) == options.all_topics:
        raise WrongUse(
            "say which offsets: --topic NAME, --topic NAME:0,1, or --all-topics (those committed)"
        )
    cluster = connect(connection)
    group = cluster.group(name)
    if group.members:
        raise ToolFailure(
            f"group {name!r} has {counted(len(group.members), 'member')}, who would commit over a"
            " reset",
            remedy="stop them first; strandline group describe shows who they are",
        )
    keys = (
        sorted(cluster.committed(name)) if options.all_topics else _chosen(cluster, options.topics)
    )
    if not keys:
        raise ToolFailure(
            f"group {name!r} has committed nothing", remedy="name the topics with --topic"
        )
    moves = plan(reset, cluster.group_state(name, keys, moment_of(reset)))
    if execute:
        cluster.set_offsets(name, moves)
    if options.json:
        print_json({"group": name, "executed": execute, "moves": [asdict(move) for move in moves]})
        return 0
    print_table(
        f"{name}  {'reset' if execute else 'would be reset (dry run)'}",
        ("topic", "partition", "from", "to", "note"),
        [(m.topic, m.partition, m.old_offset, m.new_offset, m.note) for m in moves],
    )
    if not execute:
        remark("nothing was changed; add --execute to do it")
    return 0


def _target(options: argparse.Namespace) -> Reset:
    if options.to_earliest:
        return Reset(target=ResetTarget.EARLIEST)
    if options.to_latest:
        return Reset(target=ResetTarget.LATEST)
    if options.to_current:
        return Reset(target=ResetTarget.CURRENT)
    if options.to_offset is not None:
        return Reset(target=ResetTarget.OFFSET, number=options.to_offset)
    if options.shift_by is not None:
        return Reset(target=ResetTarget.SHIFT, number=options.shift_by)
    if options.to_datetime is not None:
        return Reset(target=ResetTarget.MOMENT, number=moment_ms(options.to_datetime))
    moment = moment_ago_ms(options.by_duration, SystemClock().now_ms())
    return Reset(target=ResetTarget.MOMENT, number=moment)


def _delete(options: argparse.Namespace) -> int:
    """Deletes groups and their offsets."""
    cluster, names = connect(chosen_connection(options)), options.groups
    if not options.yes:
        groups = [_known(cluster, name) for name in names]
        print_table(
            "",
            ("group", "state", "members", "committed"),
            [
                (g.group, g.state.lower(), len(g.members), len(cluster.committed(g.group)))
                for g in groups
            ],
        )
    confirm(f"{counted(len(names), 'group')} to be forgotten, with their offsets", yes=options.yes)
    cluster.delete_groups(names)
    for name in names:
        say(f"deleted group {name}")
    return 0


def _known(cluster: Cluster, name: str) -> GroupView:
    group = cluster.group(name)
    if group.state == DEAD and not cluster.committed(name):
        raise ToolFailure(
            f"no group {name!r}", remedy="strandline group list  shows the groups there are"
        )
    return group


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """A partition as a group sees it; None is not there, or not known."""

    topic: str
    partition: int
    committed: int | None
    start_offset: int | None
    end_offset: int | None

    @property
    def lag(self) -> int | None:
        if self.committed is None or self.end_offset is None:
            return None
        return max(0, self.end_offset - self.committed)


def _states(
    cluster: Cluster, group: str, owned: Iterable[Key]
) -> tuple[list[_State], list[ToolFailure]]:
    """Returns the partitions of a group, and why offsets of some are not known.

    Leaves out deleted topics; their offsets outlive them for a while.
    """
    committed = cluster.committed(group)
    starts, ends = cluster.known_bounds({*committed, *owned})
    states = [
        _State(
            topic=key[0],
            partition=key[1],
            committed=committed.get(key),
            start_offset=_known_offset(starts.get(key)),
            end_offset=_known_offset(end),
        )
        for key, end in sorted(ends.items())
    ]
    return states, [end for _, end in sorted(ends.items()) if isinstance(end, ToolFailure)]


def _known_offset(found: int | ToolFailure | None) -> int | None:
    return None if isinstance(found, ToolFailure) else found


def _chosen(cluster: Cluster, texts: Sequence[str]) -> list[Key]:
    """Parses `name` (every partition) or `name:0,1`. Raises WrongUse."""
    chosen: dict[str, set[int] | None] = {}
    for text in texts:
        name, colon, numbers = text.partition(":")
        if not colon:
            chosen[name] = None
        elif all(number.strip().isdigit() for number in numbers.split(",")):
            known = chosen.setdefault(name, set())
            if known is not None:
                known.update(map(int, numbers.split(",")))
        else:
            raise WrongUse(f"{text!r} is no topic:partition,partition")
    return cluster.partitions({name: numbers or () for name, numbers in chosen.items()})


def _owner_cells(member: MemberView | None) -> tuple[object, object, object]:
    if member is None:
        return None, None, None
    return member.client_id, member.host, member.member_id


def _document(group: GroupView, states: Sequence[_State]) -> Json:
    return {
        "group": group.group,
        "state": group.state,
        "type": group.kind,
        "assignor": group.assignor,
        "coordinator": group.coordinator,
        "members": [
            {
                **asdict(member),
                "partitions": [{"topic": t, "partition": p} for t, p in member.partitions],
            }
            for member in group.members
        ],
        "offsets": [
            {
                "topic": state.topic,
                "partition": state.partition,
                "committed": state.committed,
                "start_offset": state.start_offset,
                "end_offset": state.end_offset,
                "lag": state.lag,
            }
            for state in states
        ],
    }
