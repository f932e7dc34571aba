"""The plots of docs/explanation/performance.md, one SVG per idea."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.comparison.results import Results
from bench.comparison.rows import ROWS, WAIT, Row

PEERS = ("strandline", "Kafka")
COLOURS = {"strandline": "#1b6ca8", "Kafka": "#b0b0b0"}
PERCENTILES = {"p50_ms": "p50", "p99_ms": "p99", "p999_ms": "p99.9"}
BAR = 0.38

# The same bytes for the same figures: no date and no random identifiers.
mpl.rcParams["svg.hashsalt"] = "strandline"
# Text stays text: a tenth of the bytes, and it can be searched.
mpl.rcParams["svg.fonttype"] = "none"
mpl.rcParams["font.size"] = 9


def write_plots(folder: Path, results: Results) -> Mapping[str, Sequence[tuple[str, str]]]:
    """File names and what they show, by section."""
    folder.mkdir(parents=True, exist_ok=True)
    moved = [row for row in ROWS if results.ratio(row.name, "produce_mb_per_s")]
    waited = [row for row in ROWS if results.ratio(row.name, "p99_ms")]
    plots: dict[str, list[tuple[str, str]]] = {}
    if moved:
        section = moved[0].section
        _throughput(folder / "throughput.svg", moved, results)
        _cpu(folder / "cpu.svg", moved, results)
        plots[section] = [
            ("throughput.svg", "MB/s of both brokers, produce and consume"),
            ("cpu.svg", "broker CPU seconds per GB of both brokers, produce and consume"),
        ]
    if waited:
        _latency(folder / "latency.svg", waited, results)
        plots[WAIT] = [("latency.svg", "end-to-end latency of both brokers")]
    return plots


def _throughput(path: Path, rows: Sequence[Row], results: Results) -> None:
    figure, axes = _halves(rows)
    for axis, action in zip(axes, ("produce", "consume"), strict=True):
        _bars(axis, rows, results, f"{action}_mb_per_s")
        axis.set_title(f"{action}, MB/s (longer is better)")
    _name_peers(figure, axes[0])
    _save(figure, path)


def _cpu(path: Path, rows: Sequence[Row], results: Results) -> None:
    figure, axes = _halves(rows)
    for axis, action in zip(axes, ("produce", "consume"), strict=True):
        _bars(axis, rows, results, f"{action}_cpu")
        axis.set_xscale("log")
        axis.set_title(f"{action}, broker CPU s/GB (shorter is better)")
    _name_peers(figure, axes[0])
    _save(figure, path)


def _halves(rows: Sequence[Row]) -> tuple[Figure, Sequence[Axes]]:
    figure = Figure(figsize=(10, 0.9 + 0.36 * len(rows)), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    axes[0].invert_yaxis()
    return figure, axes


def _name_peers(figure: Figure, axis: Axes) -> None:
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=2)


def _bars(axis: Axes, rows: Sequence[Row], results: Results, metric: str) -> None:
    places = np.arange(len(rows))
    for number, peer in enumerate(PEERS):
        spreads = [results.spread(row.name, peer, metric) for row in rows]
        medians = [spread.median if spread else np.nan for spread in spreads]
        reach = np.array(
            [(s.median - s.least, s.most - s.median) if s else (np.nan, np.nan) for s in spreads]
        ).T
        axis.barh(
            places + (number - 0.5) * BAR,
            medians,
            BAR,
            label=peer,
            color=COLOURS[peer],
            xerr=reach,
            error_kw={"elinewidth": 0.8, "ecolor": "#404040"},
        )
    axis.set_yticks(places, [row.title for row in rows])
    axis.grid(axis="x", alpha=0.3)


def _latency(path: Path, rows: Sequence[Row], results: Results) -> None:
    figure = Figure(figsize=(10, 3.4), layout="constrained")
    axes = figure.subplots(1, len(rows), sharey=True, squeeze=False)[0]
    for axis, row in zip(axes, rows, strict=True):
        for peer in PEERS:
            spreads = [results.spread(row.name, peer, name) for name in PERCENTILES]
            medians = [spread.median if spread else np.nan for spread in spreads]
            axis.plot(list(PERCENTILES.values()), medians, "o-", label=peer, color=COLOURS[peer])
        axis.set_yscale("log")
        axis.set_title(textwrap.fill(row.title, 30), fontsize=8)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("ms")
    axes[0].legend(fontsize=8)
    _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None})
