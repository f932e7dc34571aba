"""`strandline topic create|list|describe|alter|delete`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strandline.broker.tools.client.cluster import Cluster, TopicView
from strandline.broker.tools.client.confirmation import confirm
from strandline.broker.tools.client.connection import ClusterConnection
from strandline.broker.tools.client.failures import ToolFailure, WrongUse
from strandline.broker.tools.client.printing import Json, print_json, print_table, remark, say
from strandline.storage.plurals import counted

_TIERED = "remote.storage.enable"
_DELETED_ON_DISABLE = "remote.log.delete.on.disable"


def create(
    connection: ClusterConnection,
    names: Sequence[str],
    *,
    partition_count: int,
    replication_factor: int,
    config: Mapping[str, str],
    only_if_missing: bool,
    validate_only: bool,
) -> int:
    """Creates the topics one after the other; returns the exit code."""
    cluster = Cluster(connection)
    there = set(cluster.topic_names()) if only_if_missing else set()
    for name in names:
        if name in there:
            say(f"topic {name} is there already")
            continue
        cluster.create_topic(
            name,
            partition_count=partition_count,
            replication_factor=replication_factor,
            config=config,
            validate_only=validate_only,
        )
        say(f"topic {name} could be created" if validate_only else f"created topic {name}")
    return 0


def list_topics(connection: ClusterConnection, *, with_internal: bool, as_json: bool) -> int:
    """Prints one line per topic; returns the exit code."""
    cluster = Cluster(connection)
    topics = [
        topic
        for topic in cluster.topics(cluster.topic_names())
        if with_internal or not topic.is_internal
    ]
    if as_json:
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
        remark("no topics yet; create one with: strandline topic create NAME")
    else:
        _show(topics)
    return 0


def _show(topics: Sequence[TopicView]) -> None:
    print_table(
        "",
        ("topic", "partitions", "replicas"),
        [(topic.name, len(topic.partitions), _replication(topic)) for topic in topics],
    )


def describe(
    connection: ClusterConnection, names: Sequence[str], *, all_config: bool, as_json: bool
) -> int:
    """Prints partitions with their offsets, and explicit properties; returns the exit code."""
    cluster = Cluster(connection)
    documents: list[Json] = []
    for topic in cluster.topics(names):
        keys = [(topic.name, place.partition) for place in topic.partitions]
        starts, ends = cluster.start_offsets(keys), cluster.end_offsets(keys)
        config = [row for row in cluster.topic_config(topic.name) if row.is_set or all_config]
        if as_json:
            documents.append(
                {
                    "name": topic.name,
                    "topic_id": topic.topic_id,
                    "internal": topic.is_internal,
                    "partitions": [
                        {
                            "partition": place.partition,
                            "leader": place.leader,
                            "replicas": list(place.replicas),
                            "isr": list(place.isr),
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
    if as_json:
        print_json(documents)
    return 0


def alter(
    connection: ClusterConnection,
    name: str,
    *,
    partition_count: int | None,
    changed: Mapping[str, str],
    removed: Sequence[str],
    yes: bool,
) -> int:
    """Changes properties first: an invalid one must not leave new partitions behind."""
    if partition_count is None and not changed and not removed:
        raise WrongUse(
            "nothing to change",
            remedy="give --config KEY=VALUE, --delete-config KEY or --partitions N",
        )
    both = sorted(set(changed) & set(removed))
    if both:
        raise WrongUse(f"{both[0]} is to be both set and removed")
    cluster = Cluster(connection)
    if not yes and _deletes_archive(cluster, name, changed, removed):
        confirm(f"the archive of topic {name} to be deleted, with all records in it", yes=yes)
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
    """Whether the change would delete the topic's archive."""
    if not {_TIERED, _DELETED_ON_DISABLE} & {*changed, *removed}:
        return False
    before = {row.name: row.value for row in cluster.topic_config(name)}
    after = {**before, **dict.fromkeys(removed, "false"), **changed}
    is_disabled = before.get(_TIERED) == "true" != after.get(_TIERED)
    return is_disabled and after.get(_DELETED_ON_DISABLE) == "true"


def delete(
    connection: ClusterConnection, names: Sequence[str], *, only_if_there: bool, yes: bool
) -> int:
    """Deletes the topics with all data, in the archive too; returns the exit code."""
    cluster = Cluster(connection)
    there = set(cluster.topic_names())
    absent = [name for name in names if name not in there]
    if absent and not only_if_there:
        raise ToolFailure(
            f"no topic {absent[0]!r}; nothing was deleted",
            remedy="strandline topic list  shows the topics there are",
        )
    present = [name for name in names if name in there]
    if present:
        if not yes:
            _show(cluster.topics(present))
        what = (
            f"{counted(len(present), 'topic')} to be deleted, with all records, archived ones too"
        )
        confirm(what, yes=yes)
        cluster.delete_topics(present)
    for name in present:
        say(f"deleted topic {name}")
    return 0


def _replication(topic: TopicView) -> int:
    return max((len(place.replicas) for place in topic.partitions), default=0)


def _nodes(ids: Sequence[int]) -> str:
    return ",".join(str(node) for node in ids)
