"""Options for the selection: topics by name, topics by pattern, or single partitions.

Exactly one of subscribe, subscribePattern and assign is given, as in Spark's Kafka source. Pure.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from strandline.spark_lake.options.given_options import GivenOptions, json_object
from strandline.storage.errors import InvalidConfig


@dataclass(frozen=True, slots=True)
class Subscribe:
    """All partitions of these topics."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubscribePattern:
    """All partitions of the topics whose name contains a match of the pattern."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Assign:
    """These partitions."""

    partitions: Mapping[str, tuple[int, ...]]


Selection: TypeAlias = Subscribe | SubscribePattern | Assign


def parse_selection(given: GivenOptions) -> Selection:
    """Returns the only given selection. Raises InvalidConfig."""
    names = [
        name for name in ("subscribe", "subscribePattern", "assign") if given.text(name) is not None
    ]
    if len(names) != 1:
        raise InvalidConfig(
            "exactly one of the options subscribe, subscribePattern and assign says what is read;"
            f" given: {', '.join(names) or 'none'}"
        )
    if names == ["subscribe"]:
        named = [topic.strip() for topic in (given.text("subscribe") or "").split(",")]
        # Empty names are ignored, as by Spark's Kafka source.
        topics = dict.fromkeys(topic for topic in named if topic)
        if not topics:
            raise InvalidConfig("option subscribe names no topic between its commas")
        return Subscribe(tuple(topics))
    if names == ["subscribePattern"]:
        return SubscribePattern(_pattern(given.text("subscribePattern") or ""))
    return Assign(_assignment(given.text("assign") or ""))


def _pattern(text: str) -> str:
    """Compiles the pattern. Raises InvalidConfig if it is invalid, or differs in Java.

    Python warns of a nested character class, and treats its brackets as literals.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)
            re.compile(text)
    except (re.error, FutureWarning) as error:
        raise InvalidConfig(
            f"option subscribePattern is no regular expression of Python's: {error}"
        ) from error
    return text


def _assignment(text: str) -> dict[str, tuple[int, ...]]:
    example = '{"topic": [0, 1]}'
    partitions_by_topic: dict[str, tuple[int, ...]] = {}
    for topic, partitions in json_object("assign", text, example).items():
        if not isinstance(partitions, list) or not all(
            type(partition) is int and partition >= 0 for partition in partitions
        ):
            raise InvalidConfig(f"option assign for {topic} is {partitions!r}, expected {example}")
        if not partitions:
            raise InvalidConfig(
                f"option assign names no partition of {topic}: leave the topic out, or subscribe it"
            )
        partitions_by_topic[topic] = tuple(dict.fromkeys(partitions))
    if not partitions_by_topic:
        raise InvalidConfig(f"option assign names no topic, expected {example}")
    return partitions_by_topic
