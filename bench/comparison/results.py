"""The figures of all runs, one JSON file per row, so that an interrupted run goes on where it was.

    <folder>/<row>.json   {"measured": "…", "figures": {"Kafka": [{metric: figure}, …], …}}

`measured` says what: the row without its words and goals, the size of the run, and the way in which
rows are measured. Figures of anything else are ignored, and the row starts again.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from bench.comparison.rows import Row

# One more for each change after which figures are not what they were.
METHOD = 2
# What a row is called and should be does not change what was measured.
_WORDS = ("section", "title", "goals", "peers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A metric of a row and a broker over its runs."""

    median: float
    least: float
    most: float
    runs: int


class Results:
    """The figures of all rows, in memory and in files."""

    def __init__(self, folder: Path, rows: Sequence[Row], *, size: float) -> None:
        self._folder = folder
        self._measured = {row.name: f"{_essence(row)}, {size=:g}, method={METHOD}" for row in rows}
        self._figures: dict[str, dict[str, list[Mapping[str, float]]]] = {}
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob("*.json"):
            document = json.loads(path.read_text())
            if document.get("measured") == self._measured.get(path.stem):
                self._figures[path.stem] = document["figures"]

    def runs(self, row: str, peer: str) -> int:
        return len(self._figures.get(row, {}).get(peer, ()))

    def add(self, row: str, peer: str, figures: Mapping[str, float]) -> None:
        self._figures.setdefault(row, {}).setdefault(peer, []).append(dict(figures))
        document = {"measured": self._measured[row], "figures": self._figures[row]}
        temporary = self._folder / f"{row}.json.new"
        temporary.write_text(json.dumps(document, indent=1))
        temporary.replace(self._folder / f"{row}.json")

    def forget(self, row: str) -> None:
        self._figures.pop(row, None)
        (self._folder / f"{row}.json").unlink(missing_ok=True)

    def spread(self, row: str, peer: str, metric: str) -> Spread | None:
        """None where it was not measured."""
        runs = self._figures.get(row, {}).get(peer, ())
        figures = [run[metric] for run in runs if metric in run]
        if not figures:
            return None
        return Spread(
            median=statistics.median(figures),
            least=min(figures),
            most=max(figures),
            runs=len(figures),
        )

    def ratio(self, row: str, metric: str) -> float | None:
        """strandline : Kafka, of the medians."""
        ours, theirs = self.spread(row, "strandline", metric), self.spread(row, "Kafka", metric)
        if ours is None or theirs is None or theirs.median == 0:
            return None
        return ours.median / theirs.median


def _essence(row: Row) -> str:
    return ", ".join(
        f"{field.name}={getattr(row, field.name)}"
        for field in fields(row)
        if field.name not in _WORDS
    )
