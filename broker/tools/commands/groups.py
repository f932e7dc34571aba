"""`strandline group list|describe|reset-offsets|delete`.

A reset is only printed unless `--execute` is given, as in Kafka's own tool. It is refused while the
group has members: they would overwrite it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from strandline.broker.tools.client.cluster import Cluster, GroupView, Key, MemberView
from strandline.broker.tools.client.confirmation import confirm
from strandline.broker.tools.client.connection import ClusterConnection
from strandline.broker.tools.client.failures import ToolFailure, WrongUse
from strandline.broker.tools.client.printing import Json, print_json, print_table, remark, say
from strandline.broker.tools.client.resets import Move, PartitionState, Reset, moment_of, plan
from strandline.storage.plurals import counted

# The state of an unknown group.
DEAD = "DEAD"


def list_groups(connection: ClusterConnection, *, as_json: bool) -> int:
    """Prints one line per group; returns the exit code."""
    lines = Cluster(connection).group_lines()
    if as_json:
        print_json(
            [{"group": line.group, "state": line.state, "type": line.kind} for line in lines]
        )
    elif not lines:
        remark("no groups yet; one comes into being when a consumer joins it or commits")
    else:
        print_table(
            "",
            ("group", "state", "type"),
            [(line.group, line.state.lower(), line.kind.lower()) for line in lines],
        )
    return 0


def describe(
    connection: ClusterConnection, names: Sequence[str], *, with_members: bool, as_json: bool
) -> int:
    """Prints lag and reader per partition; returns the exit code."""
    cluster = Cluster(connection)
    documents: list[Json] = []
    for name in names:
        group = _known(cluster, name)
        owners = {key: member for member in group.members for key in member.partitions}
        keys = sorted({*cluster.committed(name), *owners})
        states = _readable(cluster, name, keys)
        if as_json:
            documents.append(_document(group, states))
            continue
        lags = [state.lag for state in states if state.lag is not None]
        print_table(
            f"{name}  {group.state.lower()}, {counted(len(group.members), 'member')}"
            + f", lag {sum(lags)}"
            + (f", {group.assignor}" if group.assignor else "")
            + f"  (coordinator {group.coordinator})",
            ("topic", "partition", "committed", "start", "end", "lag", "client", "host", "member"),
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
        if with_members:
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
    if as_json:
        print_json(documents)
    return 0


def reset_offsets(
    connection: ClusterConnection,
    name: str,
    reset: Reset,
    *,
    topics: Sequence[str],
    all_topics: bool,
    execute: bool,
    as_json: bool,
) -> int:
    """Resets offsets; `topics` are names, or `name:0,1,4` for some partitions. The exit code."""
    if bool(topics) == all_topics:
        raise WrongUse(
            "say which offsets: --topic NAME, --topic NAME:0,1, or --all-topics (those committed)"
        )
    cluster = Cluster(connection)
    group = cluster.group(name)
    if not group.is_idle:
        raise ToolFailure(
            f"group {name!r} has {counted(len(group.members), 'member')}, who would commit over a"
            " reset",
            remedy="stop them first; strandline group describe shows who they are",
        )
    keys = sorted(cluster.committed(name)) if all_topics else _chosen(cluster, topics)
    if not keys:
        raise ToolFailure(
            f"group {name!r} has committed nothing", remedy="name the topics with --topic"
        )
    moves = plan(reset, cluster.group_state(name, keys, moment_of(reset)))
    if execute:
        cluster.set_offsets(name, moves)
    if as_json:
        print_json({"group": name, "executed": execute, "moves": [_move(move) for move in moves]})
        return 0
    print_table(
        f"{name}  {'reset' if execute else 'would be reset (dry run)'}",
        ("topic", "partition", "from", "to", "note"),
        [(m.topic, m.partition, m.old_offset, m.new_offset, m.note) for m in moves],
    )
    if not execute:
        remark("nothing was changed; add --execute to do it")
    return 0


def delete(connection: ClusterConnection, names: Sequence[str], *, yes: bool) -> int:
    """Deletes groups and their offsets; returns the exit code."""
    cluster = Cluster(connection)
    if not yes:
        groups = [_known(cluster, name) for name in names]
        print_table(
            "",
            ("group", "state", "members", "committed"),
            [
                (g.group, g.state.lower(), len(g.members), len(cluster.committed(g.group)))
                for g in groups
            ],
        )
    confirm(f"{counted(len(names), 'group')} to be forgotten, with their offsets", yes=yes)
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


def _readable(cluster: Cluster, group: str, keys: Iterable[Key]) -> list[PartitionState]:
    """Leaves out deleted topics; their offsets outlive them for a while."""
    there = set(cluster.topic_names())
    return cluster.group_state(group, [key for key in keys if key[0] in there])


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
                known.update(int(number) for number in numbers.split(","))
        else:
            raise WrongUse(f"{text!r} is no topic:partition,partition")
    keys = []
    for topic in cluster.topics(list(chosen)):
        there = {place.partition for place in topic.partitions}
        wanted = chosen[topic.name]
        absent = sorted((wanted or set()) - there)
        if absent:
            raise WrongUse(f"topic {topic.name!r} has no partition {absent[0]}")
        keys += [(topic.name, number) for number in sorted(there if wanted is None else wanted)]
    return keys


def _owner_cells(member: MemberView | None) -> tuple[object, object, object]:
    if member is None:
        return None, None, None
    return member.client_id, member.host, member.member_id


def _document(group: GroupView, states: Sequence[PartitionState]) -> Json:
    return {
        "group": group.group,
        "state": group.state,
        "type": group.kind,
        "assignor": group.assignor,
        "coordinator": group.coordinator,
        "members": [
            {
                "member_id": member.member_id,
                "instance_id": member.instance_id,
                "client_id": member.client_id,
                "host": member.host,
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


def _move(move: Move) -> Json:
    return {
        "topic": move.topic,
        "partition": move.partition,
        "old_offset": move.old_offset,
        "new_offset": move.new_offset,
        "note": move.note,
    }
