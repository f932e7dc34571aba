"""Metrics of what this machine alone has: the loss if it burned now, by topic.

Topics with an archive and topics without one stand apart (label `tiered`): all records of the
latter are on this machine alone, as somebody wanted it. The groups' offsets and the transactional
ids have rows as the topics that hold them. Each family has one series for a topic at most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from strandline.broker.cluster.replicas.partition import Partition
from strandline.broker.telemetry.exposition import Sample
from strandline.broker.telemetry.families import ALL_TOPICS, Row, row_of, single

if TYPE_CHECKING:
    from strandline.storage.tiering.log.exposure import Exposure

TIERED, NOT_TIERED = "true", "false"


class ExposureSums:
    """Sums over partitions, by topic; the oldest record counts for the ages."""

    def __init__(self) -> None:
        # By topic and whether it has an archive.
        self._records: Counter[tuple[str, str]] = Counter()
        self._bytes: Counter[tuple[str, str]] = Counter()
        self._age_s: dict[str, float] = {}
        self._late_s: dict[str, float] = {}
        self._unknown_count = 0

    def add_tiered(self, topic: str, exposed: Exposure | None) -> None:
        """Adds a partition that has an archive; None: how far that reaches is not known."""
        if exposed is None:
            self._unknown_count += 1
            return
        self._records[topic, TIERED] += exposed.record_count
        self._bytes[topic, TIERED] += exposed.size_bytes
        self._age_s[topic] = max(self._age_s.get(topic, 0.0), exposed.age_s)
        self._late_s[topic] = max(self._late_s.get(topic, 0.0), exposed.late_s)

    def add_untiered(self, partition: Partition) -> None:
        """Adds a partition without an archive."""
        if partition.is_internal:
            return  # told by `add_state`
        log, place = partition.log, (partition.topic_partition.topic, NOT_TIERED)
        self._records[place] += log.high_watermark - log.log_start_offset
        self._bytes[place] += log.local.size_bytes

    def add_state(self, states: Mapping[str, Iterable[Exposure | None]]) -> None:
        """Adds the state of groups and transactions, by topic."""
        for topic, exposures in states.items():
            for exposed in exposures:
                self.add_tiered(topic, exposed)

    def rows(self, topics: Sequence[str]) -> Iterator[Row]:
        """Yields the families: the sums of all topics, and these topics."""
        shown = frozenset(topics)
        for what, counts in (("records", self._records), ("bytes", self._bytes)):
            yield row_of(f"strandline_exposed_{what}", _counted(counts, shown))
        for what, ages_s in (("seconds", self._age_s), ("late_seconds", self._late_s)):
            yield row_of(f"strandline_exposed_{what}", _longest(ages_s, shown))
        yield single("strandline_exposed_unknown_partitions", self._unknown_count)


def _counted(counts: Counter[tuple[str, str]], shown: frozenset[str]) -> Iterator[Sample]:
    for tiered in (TIERED, NOT_TIERED):
        total = sum(count for (_, other), count in counts.items() if other == tiered)
        yield Sample(total, (ALL_TOPICS, tiered))
    for (topic, tiered), count in sorted(counts.items()):
        if topic in shown:
            yield Sample(count, (topic, tiered))


def _longest(ages_s: Mapping[str, float], shown: frozenset[str]) -> Iterator[Sample]:
    yield Sample(round(max(ages_s.values(), default=0.0), 3), (ALL_TOPICS,))
    for topic, age_s in sorted(ages_s.items()):
        if topic in shown:
            yield Sample(round(age_s, 3), (topic,))
