"""How far groups are behind, in records and in time.

    records  the end of each partition less the committed offset, as Kafka's own tool counts
    time     the age of the oldest record that the group has not read, by its timestamp

No request of Kafka tells the timestamp of an offset. So one record is read of each partition that
is behind, as a consumer without a group does it, which commits nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.broker.tools.client.connection import (
    ClusterConnection,
    failure_of,
    quiet_logger,
    settings_checked,
)
from strandline.broker.tools.client.failures import ToolFailure
from strandline.broker.tools.client.reading import Key, Place
from strandline.storage.clock import Clock
from strandline.storage.model import Offset, TimestampMs
from strandline.storage.plurals import counted

if TYPE_CHECKING:
    from confluent_kafka import Message, TopicPartition

    from strandline.broker.tools.client.cluster import Cluster

# A near broker tells a thousand in a second. Nobody waits longer than this for a list.
PLACES_MAX = 10_000
READ_S_MAX = 10.0
POLL_SECONDS = 0.1
# Of each partition in an answer: the first batch of most, and little to throw away.
FETCH_BYTES = 16_384
TIMESTAMP_NOT_AVAILABLE = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLag:
    """None is not known: `trouble` says why, and is empty if the group has committed nothing."""

    records: int | None = None
    age_s: float | None = None
    trouble: str = ""


def group_lags(
    cluster: Cluster, connection: ClusterConnection, groups: Sequence[str], clock: Clock
) -> dict[str, GroupLag]:
    """Returns the lag of each group; what one group lacks hides no other."""
    committed = cluster.committed_of(groups)
    ends = cluster.known_ends(
        {
            key
            for offsets in committed.values()
            if not isinstance(offsets, ToolFailure)
            for key in offsets
        }
    )
    places: dict[str, list[Place]] = {}
    lags: dict[str, GroupLag] = {}
    for group in groups:
        try:
            places[group] = places_of(committed[group], ends)
        except ToolFailure as failure:
            lags[group] = GroupLag(trouble=str(failure))
    now_ms = clock.now_ms()
    times = _read_times(connection, chosen(places.values()), clock, now_ms)
    return lags | {group: lag_of(there, times, now_ms) for group, there in places.items()}


def places_of(
    committed: Mapping[Key, Offset] | ToolFailure, ends: Mapping[Key, Offset | ToolFailure]
) -> list[Place]:
    """Returns the place of a group in each partition that exists, the furthest behind first.

    Raises ToolFailure if one is not known.
    """
    if isinstance(committed, ToolFailure):
        raise committed
    places = []
    for key, offset in committed.items():
        # Offsets of a deleted topic outlive it for a while.
        end = ends.get(key)
        if isinstance(end, ToolFailure):
            raise end
        if end is not None:
            places.append(Place(key, offset, end))
    return sorted(places, key=lambda place: place.offset - place.end_offset)


def chosen(groups: Iterable[Sequence[Place]]) -> list[Place]:
    """Returns the places to read: of each group the furthest behind first, PLACES_MAX at most."""
    ranked = [
        (rank, place)
        for places in groups
        for rank, place in enumerate(places)
        if place.offset < place.end_offset
    ]
    ranked.sort(key=lambda one: one[0])
    return list(dict.fromkeys(place for _, place in ranked))[:PLACES_MAX]


def lag_of(
    places: Sequence[Place], times: Mapping[Place, TimestampMs | ToolFailure], now_ms: TimestampMs
) -> GroupLag:
    """Returns the lag of a group; its age is that of the oldest of the `times` at its places."""
    if not places:
        return GroupLag()
    behind = [place for place in places if place.offset < place.end_offset]
    records = sum(place.end_offset - place.offset for place in behind)
    oldest_ms = now_ms
    for place in behind:
        time_ms = times.get(place)
        if time_ms is None:
            return GroupLag(
                records=records,
                trouble=f"more than {counted(PLACES_MAX, 'partition')} are behind: too many",
            )
        if isinstance(time_ms, ToolFailure):
            return GroupLag(records=records, trouble=str(time_ms))
        oldest_ms = min(oldest_ms, time_ms)
    return GroupLag(records=records, age_s=(now_ms - oldest_ms) / 1000)


def _read_times(
    connection: ClusterConnection, places: Sequence[Place], clock: Clock, now_ms: TimestampMs
) -> dict[Place, TimestampMs | ToolFailure]:
    """Reads the timestamp of the first record at or behind each place, all partitions at once."""
    times: dict[Place, TimestampMs | ToolFailure] = {
        place: ToolFailure(f"{place}: no record came within {READ_S_MAX:.0f} s") for place in places
    }
    if not places:
        return times
    from confluent_kafka import Consumer

    waiting: dict[Key, list[Place]] = {}
    for place in places:
        waiting.setdefault(place.key, []).append(place)
    settings = {
        **connection.client_settings(),
        # These win over the settings of a consumer, whose group must not notice.
        "group.id": "strandline-cli",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        # Retention may have overtaken the group: the oldest record that there still is.
        "auto.offset.reset": "earliest",
        "isolation.level": "read_uncommitted",
        "enable.partition.eof": True,
        "queued.min.messages": 1,
        # Else the library fetches from a partition once a second.
        "fetch.queue.backoff.ms": 1,
        "fetch.message.max.bytes": FETCH_BYTES,
    }
    with settings_checked():
        consumer = Consumer(settings, logger=quiet_logger())
    try:
        consumer.assign([_at(rest[-1]) for rest in waiting.values()])
        until_s = clock.monotonic_s() + READ_S_MAX
        while waiting and clock.monotonic_s() < until_s:
            message = consumer.poll(POLL_SECONDS)
            if message is None:
                continue
            key = (str(message.topic()), int(message.partition() or 0))
            if key not in waiting:
                continue
            rest = waiting[key]
            place = rest.pop()
            times[place] = time_ms = _time_of(message, place, now_ms)
            if rest and not isinstance(time_ms, ToolFailure):
                # Another group is at another place of the same partition.
                consumer.seek(_at(rest[-1]))
            else:
                times |= dict.fromkeys(rest, time_ms)
                del waiting[key]
                consumer.incremental_unassign([_at(place)])
    finally:
        consumer.close()
    return times


def _at(place: Place) -> TopicPartition:
    from confluent_kafka import TopicPartition

    return TopicPartition(*place.key, place.offset)


def _time_of(message: Message, place: Place, now_ms: TimestampMs) -> TimestampMs | ToolFailure:
    from confluent_kafka import KafkaError

    error = message.error()
    if error is not None:
        # Only markers of transactions, or records that compaction removed, are left: none to read.
        is_end = error.code() == KafkaError._PARTITION_EOF  # noqa: SLF001  the library's own name
        return now_ms if is_end else failure_of(error, f"cannot read {place}")
    kind, timestamp_ms = message.timestamp()
    if kind == TIMESTAMP_NOT_AVAILABLE:
        return ToolFailure(f"{place}: the record has no timestamp")
    return timestamp_ms
