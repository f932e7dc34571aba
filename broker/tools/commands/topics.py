"""`strandline topic create|list|describe|alter|delete`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from strandline.broker.tools.client.confirmation import confirm
from strandline.broker.tools.client.connection import pair
from strandline.broker.tools.client.failures import ToolFailure, WrongUse
from strandline.broker.tools.client.printing import Json, print_json, remark, say
from strandline.broker.tools.client.tables import print_table
from strandline.broker.tools.commands.command_parser import (
    action_parser,
    chosen_connection,
    command_parser,
    connect,
)
from strandline.broker.tools.commands.options import (
    CommandParser,
    Commands,
    add_actions,
    add_json,
    add_repeated,
    add_yes,
    given_name,
)
from strandline.broker.tools.nodes.replication import loss_of_one
from strandline.storage.plurals import counted

if TYPE_CHECKING:
    from strandline.broker.tools.client.cluster import Cluster, ClusterTopic

_TIERED = "remote.storage.enable"
_MINIMUM = "min.insync.replicas"
_DELETED_ON_DISABLE = "remote.log.delete.on.disable"

BROKER_DEFAULT = -1
# librdkafka accepts no more.
PARTITIONS_MAX = 100_000
REPLICAS_MAX = 10_000
_CONFIG = ("--config", "KEY=VALUE", "a topic property; may be repeated")

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
    action = partial(action_parser, add_actions(topic), _EXAMPLES)

    create = action("create", "create topics", _create)
    _add_topics(create)
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
    add_repeated(create, *_CONFIG)
    create.add_argument("--if-not-exists", action="store_true", help="leave one that is there")
    create.add_argument("--validate-only", action="store_true", help="check, create nothing")

    listing = action("list", "one line per topic", _list)
    add_json(listing)
    listing.add_argument("--internal", action="store_true", help="with those of the broker itself")

    describe = action("describe", "partitions, offsets and properties of topics", _describe)
    add_json(describe)
    _add_topics(describe)
    describe.add_argument("--all-config", action="store_true", help="properties not set as well")

    alter = action("alter", "change properties, add partitions", _alter)
    alter.add_argument("topic", type=given_name, metavar="NAME", help="the topic")
    add_repeated(alter, *_CONFIG)
    add_repeated(alter, "--delete-config", "KEY", "back to the broker's default; may be repeated")
    alter.add_argument("--partitions", type=int, metavar="N", help="the new number, a larger one")
    add_yes(alter)

    delete = action("delete", "delete topics and all that is in them, in the archive too", _delete)
    _add_topics(delete)
    delete.add_argument("--if-exists", action="store_true", help="skip topics that do not exist")
    add_yes(delete)


def _add_topics(action: CommandParser) -> None:
    action.add_argument(
        "topics", nargs="+", type=given_name, metavar="NAME", help="one topic or several"
    )


def _check_count(count: int, what: str, count_max: int) -> None:
    """Raises WrongUse."""
    if not 1 <= count <= count_max:
        raise WrongUse(f"{count} is no number of {what}: 1 to {count_max:,}")


def _create(options: argparse.Namespace) -> int:
    """Creates the topics one after the other."""
    if options.partitions != BROKER_DEFAULT:
        _check_count(options.partitions, "partitions", PARTITIONS_MAX)
    if options.replication_factor != BROKER_DEFAULT:
        _check_count(options.replication_factor, "replicas", REPLICAS_MAX)
    connection = chosen_connection(options)
    config = dict(map(pair, options.config))
    cluster = connect(connection)
    there = set(cluster.topic_names()) if options.if_not_exists else set()
    for name in options.topics:
        if name in there:
            say(f"topic {name} is there already")
            continue
        cluster.create_topic(
            name,
            partition_count=options.partitions,
            replication_factor=options.replication_factor,
            config=config,
            validate_only=options.validate_only,
        )
        is_try = options.validate_only
        say(f"topic {name} could be created" if is_try else f"created topic {name}")
        if not is_try:
            _say_loss(cluster, name)
    return 0


def _say_loss(cluster: Cluster, name: str) -> None:
    """Says what the loss of a machine costs, where there is more than one broker."""
    brokers = cluster.brokers()
    if len(brokers) < 2:
        return
    (topic,) = cluster.topics([name])
    config = {row.name: row.value for row in cluster.topic_config(name)}
    say(
        loss_of_one(
            replicas=_replication(topic),
            minimum=int(config.get(_MINIMUM) or 1),
            is_archived=config.get(_TIERED) == "true",
            hosts=len({one.host for one in brokers}),
        )
    )


def _list(options: argparse.Namespace) -> int:
    """Prints one line per topic."""
    cluster = connect(chosen_connection(options))
    topics = [
        topic
        for topic in cluster.topics(cluster.topic_names())
        if options.internal or not topic.is_internal
    ]
    if options.json:
        print_json(
            [
                {
                    "name": topic.name,
                    "topic_id": topic.topic_id,
                    "partitions": len(topic.partitions),
                    "replication_factor": _replication(topic),
                    "internal": topic.is_internal,
                }
                for topic in topics
            ]
        )
    elif not topics:
        remark(
            "no topics yet, or none that this user may describe; create one with: strandline topic"
            " create NAME"
        )
    else:
        _show(topics)
    return 0


def _show(topics: Sequence[ClusterTopic]) -> None:
    print_table(
        "",
        ("topic", "partitions", "replicas"),
        [(topic.name, len(topic.partitions), _replication(topic)) for topic in topics],
    )


def _describe(options: argparse.Namespace) -> int:
    """Prints partitions with their offsets, and explicit properties."""
    cluster = connect(chosen_connection(options))
    documents: list[Json] = []
    for topic in cluster.topics(options.topics):
        keys = [(topic.name, place.partition) for place in topic.partitions]
        starts, ends = cluster.start_offsets(keys), cluster.end_offsets(keys)
        config = [
            row for row in cluster.topic_config(topic.name) if row.is_set or options.all_config
        ]
        if options.json:
            documents.append(
                {
                    "name": topic.name,
                    "topic_id": topic.topic_id,
                    "internal": topic.is_internal,
                    "partitions": [
                        {
                            **asdict(place),
                            "start_offset": starts[topic.name, place.partition],
                            "end_offset": ends[topic.name, place.partition],
                        }
                        for place in topic.partitions
                    ],
                    "config": {row.name: row.value for row in config},
                }
            )
            continue
        print_table(
            f"{topic.name}  (id {topic.topic_id})",
            ("partition", "leader", "replicas", "isr", "start", "end", "offsets"),
            [
                (
                    place.partition,
                    place.leader,
                    _nodes(place.replicas),
                    _nodes(place.isr),
                    starts[topic.name, place.partition],
                    ends[topic.name, place.partition],
                    ends[topic.name, place.partition] - starts[topic.name, place.partition],
                )
                for place in topic.partitions
            ],
        )
        if config:
            print_table(
                "",
                ("property", "value", "set by"),
                [(row.name, row.value, row.source) for row in config],
            )
    if options.json:
        print_json(documents)
    return 0


def _alter(options: argparse.Namespace) -> int:
    """Changes properties first: an invalid one must not leave new partitions behind."""
    name, partition_count, removed = options.topic, options.partitions, options.delete_config
    if partition_count is not None:
        _check_count(partition_count, "partitions", PARTITIONS_MAX)
    connection = chosen_connection(options)
    changed = dict(map(pair, options.config))
    if partition_count is None and not changed and not removed:
        raise WrongUse(
            "nothing to change",
            remedy="give --config KEY=VALUE, --delete-config KEY or --partitions N",
        )
    both = sorted(set(changed) & set(removed))
    if both:
        raise WrongUse(f"{both[0]} is to be both set and removed")
    cluster = connect(connection)
    if not options.yes and _deletes_archive(cluster, name, changed, removed):
        confirm(f"the archive of topic {name} to be deleted, with all records in it", yes=False)
    unknown = set(removed) - {row.name for row in cluster.topic_config(name)} if removed else ()
    if unknown:
        raise ToolFailure(
            f"topic {name!r} has no property {min(unknown)!r}",
            remedy=f"strandline topic describe {name} --all-config  shows those there are",
        )
    if changed or removed:
        cluster.alter_topic_config(name, changed=changed, removed=removed)
        for key, value in changed.items():
            say(f"{name}: {key} is now {value}")
        for key in removed:
            say(f"{name}: {key} is now the broker's default")
    if partition_count is not None:
        cluster.add_partitions(name, partition_count)
        say(f"{name}: now {counted(partition_count, 'partition')}")
        remark("  keys of new records may go to other partitions than those of old ones")
    return 0


def _deletes_archive(
    cluster: Cluster, name: str, changed: Mapping[str, str], removed: Sequence[str]
) -> bool:
    """Returns whether the change would delete the topic's archive."""
    if not {_TIERED, _DELETED_ON_DISABLE} & {*changed, *removed}:
        return False
    before = {row.name: row.value for row in cluster.topic_config(name)}
    after = {**before, **dict.fromkeys(removed, "false"), **changed}
    is_disabled = before.get(_TIERED) == "true" != after.get(_TIERED)
    return is_disabled and after.get(_DELETED_ON_DISABLE) == "true"


def _delete(options: argparse.Namespace) -> int:
    """Deletes the topics with all data, in the archive too."""
    cluster = connect(chosen_connection(options))
    there = set(cluster.topic_names())
    absent = [name for name in options.topics if name not in there]
    if absent and not options.if_exists:
        raise ToolFailure(
            f"no topic {absent[0]!r}, or none that this user may describe; nothing was deleted",
            remedy="strandline topic list  shows the topics there are",
        )
    present = [name for name in options.topics if name in there]
    if present:
        if not options.yes:
            _show(cluster.topics(present))
        what = (
            f"{counted(len(present), 'topic')} to be deleted, with all records, archived ones too"
        )
        confirm(what, yes=options.yes)
        cluster.delete_topics(present)
    for name in present:
        say(f"deleted topic {name}")
    return 0


def _replication(topic: ClusterTopic) -> int:
    return max((len(place.replicas) for place in topic.partitions), default=0)


def _nodes(ids: Sequence[int]) -> str:
    return ",".join(str(node) for node in ids)
