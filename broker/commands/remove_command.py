"""`strandline cluster remove ID`: other brokers take over from one that is gone for good."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from strandline.broker.tools.client.confirmation import confirm
from strandline.broker.tools.client.failures import ToolFailure
from strandline.broker.tools.client.printing import say
from strandline.broker.tools.client.tables import Column, print_table
from strandline.broker.tools.commands.command_parser import action_parser, chosen_connection
from strandline.broker.tools.commands.options import Commands, add_bucket
from strandline.storage.plurals import counted

if TYPE_CHECKING:
    from strandline.broker.commands.lost_broker import LostBroker, LostPartition, Remains
    from strandline.broker.tools.client.connection import ClusterConnection

INCOMPLETE = 3

_EXAMPLES = """
  strandline cluster remove 3 --remote s3://my-bucket/my-cluster
  strandline cluster remove 3 --remote file:///srv/archive --yes
"""


def add_remove(actions: Commands) -> None:
    remove = action_parser(
        actions,
        _EXAMPLES,
        "remove",
        "let other brokers take over from one that is gone for good, from the bucket",
        _remove,
    )
    remove.add_argument("node_id", type=int, metavar="ID", help="the id of the lost broker")
    add_bucket(remove)
    remove.add_argument(
        "--yes", action="store_true", help="do it without a question, after the plan is printed"
    )


def _remove(options: argparse.Namespace) -> int:
    from strandline.broker.commands.lost_broker import (
        check_owner,
        find_lost,
        remains_of,
        take_over,
    )
    from strandline.broker.tools.nodes.requests import asked
    from strandline.storage.remote.open_store import open_store

    connection = chosen_connection(options)
    lost = asked(connection, partial(find_lost, node_id=options.node_id))
    if not lost.is_registered and not lost.partitions:
        raise ToolFailure(f"the cluster has no broker {lost.node_id}, and nothing that was on it")
    store = open_store(
        options.remote,
        endpoint_url=options.endpoint_url,
        region=options.region,
        ca_file=options.ca_file,
    )
    check_owner(store, lost.cluster_id)
    remains = list(remains_of(store, lost.partitions))
    _print_plan(lost, remains)
    confirm(f"broker {lost.node_id} is removed, and what is named as lost is lost", yes=options.yes)
    outcome = asked(connection, partial(take_over, lost=lost))
    for name, reason in outcome.refused.items():
        say(f"{name} is not taken over: {reason}")
    for name in outcome.leaderless:
        say(f"{name} has no leader yet")
    taken = [
        one
        for one in lost.partitions
        if one.name not in outcome.refused and one.name not in outcome.leaderless
    ]
    is_ended = _end_transactions(connection, taken)
    say(f"broker {lost.node_id} is removed; {counted(len(taken), 'partition')} taken over")
    return 0 if is_ended and len(taken) == len(lost.partitions) else INCOMPLETE


def _end_transactions(connection: ClusterConnection, taken: Sequence[LostPartition]) -> bool:
    """Aborts what the takeover left open, and says so; returns whether nothing is left."""
    from strandline.broker.commands.left_open import end_left_open

    try:
        ended = end_left_open(connection, taken)
    except ToolFailure as failure:
        say(str(failure))
        return False
    for left, reason in ended.items():
        say(f"{left} is {f'still open: {reason}' if reason else 'aborted'}")
    return not any(ended.values())


def _print_plan(lost: LostBroker, remains: list[Remains]) -> None:
    print_table(
        f"broker {lost.node_id}: {counted(len(remains), 'partition')} without another replica",
        ("partition", Column(name="taken over by", is_right=True), "from the archive", "lost"),
        [(one.partition.name, one.partition.successor, one.archived, one.lost) for one in remains],
    )
    if lost.shared:
        say(
            f"{counted(lost.shared, 'partition')} with other replicas: these serve on; give them"
            " another one with kafka-reassign-partitions"
        )
