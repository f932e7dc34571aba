"""Counters and gauges that owners keep and an exporter reads.

A `Counter` is a plain integer behind a name, so that counting on the hot path costs one addition.
Names end in their unit, as Prometheus wants them (`_bytes_total`, `_seconds_total`, `_total`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

from strandline.storage.values import dataclass


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

    _counters: dict[tuple[str, tuple[tuple[str, str], ...]], Counter] = field(default_factory=dict)

    def counter(self, name: str, help: str, **labels: str) -> Counter:  # noqa: A002 (Prometheus' word)
        """The counter of that name and labels; always the same object for the same arguments."""
        key = (name, tuple(sorted(labels.items())))
        existing = self._counters.get(key)
        if existing is None:
            existing = self._counters[key] = Counter(name, help, key[1])
        return existing

    def retire(self, **labels: str) -> None:
        """The counters with these labels alone are dropped; their values go on without a label.

        So a sum over all counters of a name never goes back. What is added to a dropped one later
        is not counted any more.
        """
        wanted = tuple(sorted(labels.items()))
        for key in [key for key in self._counters if key[1] == wanted]:
            retired = self._counters.pop(key)
            if retired.value:
                self.counter(retired.name, retired.help).add(retired.value)

    def __iter__(self) -> Iterator[Counter]:
        return iter(self._counters.values())
