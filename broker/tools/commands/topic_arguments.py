"""Arguments of `strandline topic`."""

from __future__ import annotations

import argparse

from strandline.broker.tools.client.confirmation import add_yes
from strandline.broker.tools.client.connection import pair
from strandline.broker.tools.client.failures import WrongUse
from strandline.broker.tools.commands import topics as topic_commands
from strandline.broker.tools.commands.command_parser import (
    Commands,
    action_parser,
    chosen_connection,
    command_parser,
)

BROKER_DEFAULT = -1
# A signed 32-bit number; librdkafka accepts no more replicas.
PARTITIONS_MAX = 2**31 - 1
REPLICAS_MAX = 10_000

_EXAMPLES = """
examples:
  strandline topic create orders --partitions 6
  strandline topic create events --config retention.ms=-1 \\
      --config remote.storage.enable=true --config local.retention.ms=3600000
  strandline topic list --json
  strandline topic describe orders
  strandline topic alter orders --config retention.ms=86400000 --delete-config segment.bytes
  strandline topic alter orders --partitions 12
  strandline topic delete orders             # says what it is, and asks
  strandline topic delete orders --yes
"""


def add_topic(commands: Commands) -> None:
    topic = command_parser(
        commands, "topic", "create, look at, change and delete topics", _EXAMPLES
    )
    actions = topic.add_subparsers(title="actions", required=True, metavar="ACTION")

    create = action_parser(actions, "create", "create topics", _EXAMPLES, _topic_create)
    create.add_argument("topics", nargs="+", metavar="NAME", help="one topic or several")
    create.add_argument(
        "--partitions",
        type=int,
        default=-1,
        metavar="N",
        help="how many [the broker's num.partitions]",
    )
    create.add_argument(
        "--replication-factor",
        type=int,
        default=-1,
        metavar="N",
        help="how many brokers have each of them [default.replication.factor]",
    )
    _add_config(create)
    create.add_argument("--if-not-exists", action="store_true", help="leave one that is there")
    create.add_argument("--validate-only", action="store_true", help="check, create nothing")

    listing = action_parser(
        actions, "list", "one line per topic", _EXAMPLES, _topic_list, with_json=True
    )
    listing.add_argument("--internal", action="store_true", help="with those of the broker itself")

    describe = action_parser(
        actions,
        "describe",
        "partitions, offsets and properties of topics",
        _EXAMPLES,
        _topic_describe,
        with_json=True,
    )
    describe.add_argument("topics", nargs="+", metavar="NAME", help="one topic or several")
    describe.add_argument("--all-config", action="store_true", help="properties not set as well")

    alter = action_parser(
        actions, "alter", "change properties, add partitions", _EXAMPLES, _topic_alter
    )
    alter.add_argument("topic", metavar="NAME", help="the topic")
    _add_config(alter)
    alter.add_argument(
        "--delete-config",
        action="append",
        default=[],
        metavar="KEY",
        help="back to the broker's default; may be repeated",
    )
    alter.add_argument("--partitions", type=int, metavar="N", help="the new number, a larger one")
    add_yes(alter)

    delete = action_parser(
        actions,
        "delete",
        "delete topics and all that is in them, in the archive too",
        _EXAMPLES,
        _topic_delete,
    )
    delete.add_argument("topics", nargs="+", metavar="NAME", help="one topic or several")
    delete.add_argument("--if-exists", action="store_true", help="pass over those that are gone")
    add_yes(delete)


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a topic property; may be repeated",
    )


def _check_count(count: int, what: str, count_max: int) -> None:
    """Raises WrongUse."""
    if count != BROKER_DEFAULT and not 1 <= count <= count_max:
        raise WrongUse(f"{count} is no number of {what}: 1 to {count_max:,}")


def _topic_create(options: argparse.Namespace) -> int:
    _check_count(options.partitions, "partitions", PARTITIONS_MAX)
    _check_count(options.replication_factor, "replicas", REPLICAS_MAX)
    return topic_commands.create(
        chosen_connection(options),
        options.topics,
        partition_count=options.partitions,
        replication_factor=options.replication_factor,
        config=dict(pair(text) for text in options.config),
        only_if_missing=options.if_not_exists,
        validate_only=options.validate_only,
    )


def _topic_list(options: argparse.Namespace) -> int:
    return topic_commands.list_topics(
        chosen_connection(options), with_internal=options.internal, as_json=options.json
    )


def _topic_describe(options: argparse.Namespace) -> int:
    return topic_commands.describe(
        chosen_connection(options),
        options.topics,
        all_config=options.all_config,
        as_json=options.json,
    )


def _topic_alter(options: argparse.Namespace) -> int:
    if options.partitions is not None:
        _check_count(options.partitions, "partitions", PARTITIONS_MAX)
    return topic_commands.alter(
        chosen_connection(options),
        options.topic,
        partition_count=options.partitions,
        changed=dict(pair(text) for text in options.config),
        removed=options.delete_config,
        yes=options.yes,
    )


def _topic_delete(options: argparse.Namespace) -> int:
    return topic_commands.delete(
        chosen_connection(options),
        options.topics,
        only_if_there=options.if_exists,
        yes=options.yes,
    )
