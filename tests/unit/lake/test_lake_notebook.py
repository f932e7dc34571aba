"""The notebook of docs/ runs from its first cell to its last, on flights in an archive."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest

from demo.flights import load_flights, to_records
from strandline.storage.records.compression import Codec
from strandline.storage.records.record import Record
from tests.unit.lake.archive_builder import ArchiveBuilder, make_batches

NOTEBOOK = Path(__file__).parents[3] / "docs" / "lake.ipynb"
# One flight in so many: the whole year, in seconds.
EVERY = 60

pytestmark = pytest.mark.slow


def code_cells() -> list[str]:
    cells: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_the_notebook_runs_and_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flights = load_flights().iloc[::EVERY]
    records = [
        Record(offset=n, timestamp_ms=one.timestamp_ms, key=one.key, value=one.value)
        for n, one in enumerate(to_records(flights))
    ]
    archive = ArchiveBuilder(tmp_path)
    archive.add_topic("flights")
    for start in range(0, len(records), 2000):
        part = records[start : start + 2000]
        archive.add_segment("flights", make_batches(part, per_batch=100, codec=Codec.LZ4))
    monkeypatch.setenv("STRANDLINE_ARCHIVE", archive.url)
    mpl.use("Agg")
    names: dict[str, Any] = {}
    for cell in code_cells():
        exec(compile(cell, str(NOTEBOOK), "exec"), names)
    figures = len(plt.get_fignums())
    plt.close("all")
    assert names["total"] == len(records)
    assert sum(names["days"]["flights"]) == len(records)
    in_storm = flights["time_hour"].str.slice(0, 10).between("2013-02-08", "2013-02-10")
    assert 0 < sum(names["cancelled"]["cancelled"]) < sum(names["cancelled"]["planned"])
    assert abs(sum(names["cancelled"]["planned"]) - in_storm.sum()) < 20
    assert len(names["late"]) == (flights["carrier"] == "AA").sum()
    assert figures == 3


def test_the_notebook_is_kept_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert [
        cell["id"] for cell in cells if cell.get("outputs") or cell.get("execution_count")
    ] == []
