"""The registry of counters: what stays of a topic that is gone, and what it costs the others."""

from __future__ import annotations

from strandline.storage.metrics import MetricRegistry

NAMES = [f"things_{number}_total" for number in range(7)]


class WatchedName(str):
    """A topic's name that counts how often any of them is compared with another."""

    __slots__ = ()

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        WatchedName.comparisons += 1
        return str.__eq__(self, str(other))

    __hash__ = str.__hash__


def registry_of(topics: list[WatchedName]) -> MetricRegistry:
    registry = MetricRegistry()
    for topic in topics:
        for name in NAMES:
            registry.counter(name, "Things.", topic=topic).add(3)
    return registry


def test_what_was_counted_of_topics_that_are_gone_stays_in_the_sum() -> None:
    topics = [WatchedName(f"t{number}") for number in range(10)]
    registry = registry_of(topics)
    kept = registry.counter(NAMES[0], "Things.", topic=topics[9])
    for topic in topics[:9]:
        registry.retire(topic=topic)
    assert {counter.labels for counter in registry} == {(), (("topic", "t9"),)}
    assert registry.counter(NAMES[0], "Things.", topic=topics[9]) is kept
    for name in NAMES:
        assert sum(counter.value for counter in registry if counter.name == name) == 30
    assert sum(1 for _ in registry) == 2 * len(NAMES)


def test_a_deleted_topic_is_forgotten_without_a_look_at_the_other_topics() -> None:
    """A thousand topics that are deleted are not a thousand passes over all there are."""
    topics = [WatchedName(f"t{number}") for number in range(500)]
    registry = registry_of(topics)
    WatchedName.comparisons = 0
    for topic in topics[:100]:
        registry.retire(topic=WatchedName(topic))
    assert WatchedName.comparisons < 10 * 100
    assert sum(counter.value for counter in registry if counter.labels == ()) == 100 * 7 * 3
