"""Counters and gauges that owners keep and an exporter reads.

A `Counter` is a plain integer behind a name, so that counting on the hot path costs one addition.
Names end in their unit, as Prometheus wants them (`_bytes_total`, `_seconds_total`, `_total`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class Counter:
    """A number that only grows; `value` is added to directly where speed matters."""

    name: str
    help: str
    labels: tuple[tuple[str, str], ...] = ()
    value: float = 0

    def add(self, amount: float = 1) -> None:
        self.value += amount


@dataclass(slots=True)
class MetricRegistry:
    """All counters of one process, created once per (name, labels)."""

    # By labels, then by name: those of one topic are found without scanning all others.
    _counters: dict[tuple[tuple[str, str], ...], dict[str, Counter]] = field(default_factory=dict)

    def counter(self, name: str, help: str, **labels: str) -> Counter:  # noqa: A002 (Prometheus' word)
        """The counter of that name and labels; always the same object for the same arguments."""
        key = tuple(sorted(labels.items()))
        of_labels = self._counters.setdefault(key, {})
        existing = of_labels.get(name)
        if existing is None:
            existing = of_labels[name] = Counter(name, help, key)
        return existing

    def retire(self, **labels: str) -> None:
        """Drops the counters with these labels only; their values go on without a label.

        So a sum over all counters of a name never decreases. Later additions to a dropped one are
        not counted any more.
        """
        for retired in self._counters.pop(tuple(sorted(labels.items())), {}).values():
            if retired.value:
                self.counter(retired.name, retired.help).add(retired.value)

    def __iter__(self) -> Iterator[Counter]:
        return (counter for of_labels in self._counters.values() for counter in of_labels.values())
