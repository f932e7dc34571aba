"""`strandline cluster status`: the brokers of a cluster, and what each has of it."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from functools import partial

from strandline.broker.tools.client.printing import print_json, say
from strandline.broker.tools.client.tables import print_table
from strandline.broker.tools.commands.command_parser import (
    action_parser,
    chosen_connection,
    command_parser,
    connect,
)
from strandline.broker.tools.commands.options import Commands, add_actions, add_json
from strandline.storage.plurals import counted

# As of `strandline status`.
PROBLEM = 3
LEADERLESS_SHOWN = 10

_EXAMPLES = """
Ends with 3 if a broker that has partitions is not there, or partitions have no leader.

examples:
  strandline cluster status
  strandline cluster status --bootstrap-server kafka.example.org:9092 --json
"""


def add_cluster(commands: Commands) -> None:
    cluster = command_parser(commands, "cluster", "look at the brokers of a cluster", _EXAMPLES)
    action = partial(action_parser, add_actions(cluster), _EXAMPLES)
    status = action("status", "one line per broker: its address and its partitions", _status)
    add_json(status)


def _status(options: argparse.Namespace) -> int:
    view = connect(chosen_connection(options)).view()
    absent = [one.node_id for one in view.members if one.address is None]
    if options.json:
        print_json(asdict(view))
        return PROBLEM if absent or view.leaderless else 0
    print_table(
        f"cluster {view.cluster_id}: {counted(len(view.members) - len(absent), 'broker')}",
        ("broker", "address", "rack", "leads", "replicas", "in sync"),
        [
            (
                one.node_id,
                one.address or "not there",
                one.rack,
                one.leads,
                one.replicas,
                one.in_sync,
            )
            for one in view.members
        ],
    )
    for node_id in absent:
        say(f"broker {node_id} has partitions and is not there")
    if view.leaderless:
        shown = ", ".join(
            f"{topic}-{number}" for topic, number in view.leaderless[:LEADERLESS_SHOWN]
        )
        more = len(view.leaderless) - LEADERLESS_SHOWN
        say(
            f"{counted(len(view.leaderless), 'partition')} without a leader: {shown}"
            + (f" and {more:,} more" if more > 0 else "")
        )
    return PROBLEM if absent or view.leaderless else 0
