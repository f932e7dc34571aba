"""`strandline cluster status`: the brokers of a cluster, and what each has of it.

`strandline cluster remove` needs the bucket too, so it is not of the tools: it is given.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from strandline.broker.tools.client.printing import print_json, remark, say, utc_text
from strandline.broker.tools.client.tables import Column, print_table
from strandline.broker.tools.commands.balance import add_balance
from strandline.broker.tools.commands.command_parser import (
    action_parser,
    chosen_connection,
    command_parser,
    connect,
)
from strandline.broker.tools.commands.options import Commands, add_actions, add_json
from strandline.broker.tools.nodes.replication import BEHIND, TOO_FEW
from strandline.storage.plurals import counted, human_seconds

if TYPE_CHECKING:
    from strandline.broker.tools.client.cluster import Key
    from strandline.broker.tools.nodes.view import ClusterView

# As of `strandline status`.
PROBLEM = 3
PARTITIONS_SHOWN = 10
RUNBOOK = "runbooks/several-brokers#brokers-are-fenced--partitions-have-no-leader"

_EXAMPLES = """
Asks by Kafka's own requests, so any cluster answers. A broker is online, fenced (it
starts, is down, or hangs), or gone: not registered, and partitions have it as a replica.
`since` is when its process began, if the brokers serve metrics, and of one that is not
online when it was last heard. `behind for`: how long replicas of it have not been in sync,
if their leaders serve metrics. `metadata lag`: records of the metadata that it lacks.
Ends with 3 if a broker is fenced or gone, or partitions have no leader or lack replicas.

examples:
  strandline cluster status
  strandline cluster status --bootstrap-server kafka.example.org:9092 --json
  strandline cluster balance
  strandline cluster remove 3 --remote s3://my-bucket/my-cluster
"""


def add_cluster(commands: Commands, add_remove: Callable[[Commands], None]) -> None:
    """`add_remove` adds the action that lets others take over from a lost broker."""
    cluster = command_parser(
        commands,
        "cluster",
        "look at the brokers of a cluster, and spread its partitions",
        _EXAMPLES,
    )
    actions = add_actions(cluster)
    action = partial(action_parser, actions, _EXAMPLES)
    status = action(
        "status", "one line per broker: its address, its state and its partitions", _status
    )
    add_json(status)
    add_balance(actions)
    add_remove(actions)


def _status(options: argparse.Namespace) -> int:
    from strandline.broker.tools.nodes.view import view_cluster

    connection = chosen_connection(options)
    view = view_cluster(connection, connect(connection))
    if options.json:
        print_json(asdict(view))
    else:
        _print(view)
    return 0 if view.is_well else PROBLEM


def _print(view: ClusterView) -> None:
    count = sum(one.address is not None for one in view.members)
    print_table(
        f"cluster {view.cluster_id}: {counted(count, 'broker')}",
        (
            "broker",
            "address",
            Column(name="rack", rank=2),
            "state",
            Column(name="since", rank=3),
            "leads",
            "replicas",
            "in sync",
            Column(name="behind for", rank=2, is_right=True),
            Column(name="metadata lag", rank=1, is_right=True),
        ),
        [
            (
                one.node_id,
                one.address,
                one.rack,
                one.state,
                None if one.since_ms is None else utc_text(one.since_ms),
                one.leads,
                one.replicas,
                one.in_sync,
                None if one.behind_s is None else human_seconds(one.behind_s),
                one.metadata_lag,
            )
            for one in view.members
        ],
    )
    controller = view.controller
    if controller is not None:
        at = f" at {controller.address}" if controller.address else ""
        say(
            f"controller {controller.node_id}{at}, epoch {controller.epoch};"
            f" metadata: {counted(controller.metadata_end_offset, 'record')}"
        )
    if view.unasked:
        remark(f"not asked, or not answered: {view.unasked}")
    for one in view.absent:
        say(
            f"broker {one.node_id} is {one.state}"
            + (f", with {counted(one.replicas, 'replica')}" if one.replicas else "")
        )
    _print_partitions(view.leaderless, "without a leader")
    _print_partitions(view.under_replicated, "under-replicated")
    _print_partitions(
        view.under_minimum,
        "with fewer replicas in sync than min.insync.replicas: acks=all is refused",
    )
    _print_partitions(
        view.at_minimum,
        "at min.insync.replicas: with the next broker that is lost, acks=all is refused",
    )
    if view.absent or view.leaderless:
        say(f"what to do: strandline docs {RUNBOOK}")
    elif not view.is_well:
        say(f"what to do: strandline docs {TOO_FEW if view.under_minimum else BEHIND}")


def _print_partitions(partitions: Sequence[Key], what: str) -> None:
    if not partitions:
        return
    shown = ", ".join(f"{topic}-{number}" for topic, number in partitions[:PARTITIONS_SHOWN])
    more = len(partitions) - PARTITIONS_SHOWN
    say(
        f"{counted(len(partitions), 'partition')} {what}: {shown}"
        + (f" and {more:,} more" if more > 0 else "")
    )
