"""`strandline cluster balance`: spreads replicas and leaders over all brokers."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

from strandline.broker.tools.client.printing import Json, print_json, remark, say
from strandline.broker.tools.client.tables import Column, print_table
from strandline.broker.tools.commands.command_parser import action_parser, chosen_connection
from strandline.broker.tools.commands.options import Commands, add_json
from strandline.broker.tools.nodes.balance import MOVES_MAX, PlannedPartition, plan_balance, shares
from strandline.storage.plurals import counted, human_bytes

if TYPE_CHECKING:
    from strandline.broker.tools.nodes.moves import Placement

# As of `strandline cluster remove`.
INCOMPLETE = 3
PARTITIONS_SHOWN = 50

_EXAMPLES = """
Plans which replicas move so that each broker has its share, by number and by bytes, and in
which order replicas stand, whose first one leads. Without --yes it moves nothing.

examples:
  strandline cluster balance
  strandline cluster balance --json     # for kafka-reassign-partitions --execute
  strandline cluster balance --yes
"""


def add_balance(actions: Commands) -> None:
    balance = action_parser(
        actions,
        _EXAMPLES,
        "balance",
        "spread replicas and leaders over all brokers, by number and by bytes",
        _balance,
    )
    add_json(balance)
    balance.add_argument("--yes", action="store_true", help="do it, after the plan is printed")


def _balance(options: argparse.Namespace) -> int:
    from strandline.broker.tools.nodes.moves import carry_out, placement
    from strandline.broker.tools.nodes.requests import asked

    connection = chosen_connection(options)
    found = placement(connection)
    plan = plan_balance(found.partitions, found.racks)
    if options.json:
        print_json(_document(plan))
    else:
        _print(found, plan)
    if not plan:
        return 0
    if not options.yes:
        if not options.json:
            say("nothing was moved; add --yes to do it")
        return 0

    def on_portion(done: int) -> None:
        if not options.json:
            say(f"{done:,} of {counted(len(plan), 'partition')} done")

    refused = asked(connection, partial(carry_out, plan=plan, on_portion=on_portion))
    for name, reason in refused.items():
        (remark if options.json else say)(f"{name} is not as planned: {reason}")
    return INCOMPLETE if refused else 0


def _document(plan: list[PlannedPartition]) -> Json:
    """The plan as kafka-reassign-partitions reads it."""
    return {
        "version": 1,
        "partitions": [
            {
                "topic": one.before.topic,
                "partition": one.before.partition,
                "replicas": list(one.replicas),
            }
            for one in plan
        ],
    }


def _print(found: Placement, plan: list[PlannedPartition]) -> None:
    brokers = sorted(found.racks)
    changed = {one.before.name: one.replicas for one in plan}
    before = shares(brokers, [(one, one.replicas) for one in found.partitions])
    after = shares(
        brokers, [(one, changed.get(one.name, one.replicas)) for one in found.partitions]
    )
    heads = ("replicas", "then", "bytes", "then", "leads", "then")
    print_table(
        f"{counted(len(brokers), 'broker')}, {counted(len(found.partitions), 'partition')}",
        ("broker", *(Column(name=head, is_right=True) for head in heads)),
        [
            (
                node_id,
                before[node_id].replicas,
                after[node_id].replicas,
                human_bytes(before[node_id].size_bytes),
                human_bytes(after[node_id].size_bytes),
                before[node_id].leads,
                after[node_id].leads,
            )
            for node_id in brokers
        ],
    )
    if not plan:
        say("the brokers have equal shares; nothing is to be moved")
        return
    print_table(
        "",
        ("partition", "replicas", "then", Column(name="to copy", is_right=True)),
        [
            (
                one.before.name,
                _nodes(one.before.replicas),
                _nodes(one.replicas),
                human_bytes(one.copied_bytes) if one.is_moved else "-",
            )
            for one in plan[:PARTITIONS_SHOWN]
        ],
    )
    moved = [one for one in plan if one.is_moved]
    more = len(plan) - PARTITIONS_SHOWN
    say(
        (f"and {more:,} more: " if more > 0 else "")
        + f"{counted(len(moved), 'partition')} to be moved,"
        f" {human_bytes(sum(one.copied_bytes for one in moved))} to be copied;"
        f" {counted(len(plan) - len(moved), 'partition')} with another first replica alone"
    )
    if sum(one.new_count for one in moved) >= MOVES_MAX:
        say("there may be more: run it again after this")


def _nodes(ids: tuple[int, ...]) -> str:
    return ",".join(map(str, ids))
