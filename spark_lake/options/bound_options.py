"""Options for the start and end of a query: edges, offsets or times, for each partition.

    startingTimestamp > startingOffsetsByTimestamp > startingOffsets        (the first one given)
    endingTimestamp   > endingOffsetsByTimestamp   > endingOffsets

    -> Bounds: one bound for all partitions, or one for each by name

As in Spark's Kafka source. `query/bounds.py` resolves them to offsets. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from strandline.spark_lake.options.given_options import GivenOptions, is_long, json_object
from strandline.storage.errors import InvalidConfig
from strandline.storage.model import TopicPartition
from strandline.storage.moments import moment_ms

_EXAMPLE = '{"topic": {"0": 23, "1": 42}}'


class Edge(Enum):
    """Earliest or latest offset of a partition; the values are Kafka's numbers in JSON options."""

    LATEST = -1
    EARLIEST = -2


@dataclass(frozen=True, slots=True)
class AtOffset:
    """A bound at this offset."""

    offset: int


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """A bound at the first record with this timestamp or a later one."""

    timestamp_ms: int


Bound: TypeAlias = Edge | AtOffset | AtTimestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The start (or end) of each partition. `named` holds all partitions, or none."""

    option: str
    default: Bound
    named: Mapping[TopicPartition, Bound] = field(default_factory=dict)

    def of(self, partition: TopicPartition) -> Bound:
        """Raises InvalidConfig if partitions are named and this is not among them."""
        if not self.named:
            return self.default
        if partition not in self.named:
            raise InvalidConfig(
                f"option {self.option} must name every partition that is read;"
                f" {partition.topic} partition {partition.partition} is missing"
            )
        return self.named[partition]

    def check_names(self, partitions: Collection[TopicPartition]) -> None:
        """Raises InvalidConfig for a name that is not among `partitions`, those that are read."""
        for other in sorted(self.named.keys() - set(partitions)):
            raise InvalidConfig(
                f"option {self.option} names {other.topic} partition {other.partition}, which is"
                " not read: it must name the partitions that are, and no others"
            )


def is_behind(start: Bound, end: Bound | None) -> bool:
    """Returns whether the start is after the end; offsets and times cannot be compared."""
    match start, end:
        case AtOffset(first), AtOffset(last):
            return first > last
        case AtTimestamp(first), AtTimestamp(last):
            return first > last
    return False


def parse_bounds(given: GivenOptions, which: str, default: Edge, refused: Edge | None) -> Bounds:
    """Returns the bounds of one end; `which` is "starting" or "ending".

    `refused` is the edge that would leave nothing to read. Raises InvalidConfig.
    """
    name = f"{which}Timestamp"
    if (text := given.text(name)) is not None:
        return Bounds(option=name, default=_moment(name, text))
    name = f"{which}OffsetsByTimestamp"
    if (text := given.text(name)) is not None:
        named = _named(name, text, lambda number: _moment(name, str(number)))
        return Bounds(option=name, default=default, named=named)
    name = f"{which}Offsets"
    text = given.text(name) or default.name.lower()
    for edge in Edge:
        if text.lower() != edge.name.lower():
            continue
        if edge is refused:
            raise InvalidConfig(f"option {name} may not be {text.lower()} in a batch query")
        return Bounds(option=name, default=edge)

    def bound(offset: int) -> Bound:
        for edge in Edge:
            if offset != edge.value:
                continue
            if edge is refused:
                raise InvalidConfig(
                    f"option {name} may not hold {offset} ({edge.name.lower()}) in a batch query"
                )
            return edge
        if offset < 0:
            raise InvalidConfig(f"option {name} holds the offset {offset}")
        return AtOffset(offset)

    return Bounds(option=name, default=default, named=_named(name, text, bound))


def _moment(name: str, text: str) -> AtTimestamp:
    try:
        return AtTimestamp(moment_ms(text))
    except ValueError as error:
        raise InvalidConfig(f"option {name}: {error}") from error


def _named(name: str, text: str, bound: Callable[[int], Bound]) -> dict[TopicPartition, Bound]:
    named: dict[TopicPartition, Bound] = {}
    for topic, numbers in json_object(name, text, _EXAMPLE).items():
        if not isinstance(numbers, dict):
            raise InvalidConfig(f"option {name} for {topic} is {numbers!r}, expected {_EXAMPLE}")
        for partition, number in numbers.items():
            if not is_long(number) or re.fullmatch("[0-9]{1,10}", partition) is None:
                raise InvalidConfig(
                    f"option {name} for {topic} holds {partition!r}: {number!r},"
                    f" expected {_EXAMPLE}"
                )
            named[TopicPartition(topic, int(partition))] = bound(number)
    if not named:
        raise InvalidConfig(f"option {name} names no partition, expected {_EXAMPLE}")
    return named


def narrowed(options: Mapping[str, str], topic: str) -> dict[str, str]:
    """Returns the options for a query of one topic, without the partitions of other topics.

    An option that does not name the topic stays, and that query refuses it.
    """
    of_topic = dict(options)
    for name, text in options.items():
        if name.lower() not in _BY_PARTITION or not text.lstrip().startswith("{"):
            continue
        by_topic = json_object(name, text, _EXAMPLE)
        if topic in by_topic:
            of_topic[name] = json.dumps({topic: by_topic[topic]})
    return of_topic


_BY_PARTITION = frozenset(
    f"{edge}offsets{kind}" for edge in ("starting", "ending") for kind in ("", "bytimestamp")
)
