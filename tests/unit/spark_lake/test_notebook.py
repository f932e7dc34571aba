"""The notebook of docs/ runs from its first cell to its last, on flights in an archive."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from demo.flights import load_flights, to_records
from demo.notebook import NOTEBOOK, fingerprint, run, source_of
from strandline.storage.records.batch.record import Record
from strandline.storage.records.compression import Codec
from tests.unit.spark_lake.archive_builder import ArchiveBuilder, make_batches

# One flight in so many: the whole year, in seconds.
EVERY = 60

pytestmark = pytest.mark.slow


# What a page of a repository may weigh.
OUTPUT_BYTES_MAX = 150_000


@pytest.fixture
def notebook() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(NOTEBOOK.read_text())
    return loaded


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def drawn(notebook: dict[str, Any]) -> int:
    outputs = [one for cell in code_cells(notebook) for one in cell["outputs"]]
    return sum("image/png" in one.get("data", {}) for one in outputs)


@pytest.fixture
def lake_log() -> Iterator[logging.Logger]:
    """The notebook changes it."""
    log = logging.getLogger("strandline.spark_lake")
    handlers, propagate, level = log.handlers, log.propagate, log.level
    yield log
    log.handlers, log.propagate = handlers, propagate
    log.setLevel(level)


@pytest.mark.usefixtures("lake_log")
@pytest.mark.heavy
def test_the_notebook_runs_and_draws(
    notebook: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    names = run(notebook)
    assert names["total"] == len(records)
    assert sum(names["days"]["flights"]) == len(records)
    in_storm = flights["time_hour"].str.slice(0, 10).between("2013-02-08", "2013-02-10")
    assert 0 < sum(names["cancelled"]["cancelled"]) < sum(names["cancelled"]["planned"])
    assert abs(sum(names["cancelled"]["planned"]) - in_storm.sum()) < 20
    assert len(names["late"]) == (flights["carrier"] == "AA").sum()
    assert names["done"].rows == len(records)
    assert names["table"].scan().count() == len(records)
    counts = flights.groupby(["origin", "dest"]).size()
    assert names["routes"]["flights"].to_list() == counts.nlargest(5).to_list()
    assert drawn(notebook) == 4


def test_what_the_notebook_shows_is_what_its_cells_gave(notebook: dict[str, Any]) -> None:
    for cell in code_cells(notebook):
        assert cell["metadata"].get("ran") == fingerprint(source_of(cell)), (
            f"{cell['id']} was changed and not run again: make notebook-outputs"
        )
    shown = json.dumps([cell["outputs"] for cell in code_cells(notebook)])
    assert drawn(notebook) == 4
    assert "336,776 flights" in shown
    assert len(shown) < OUTPUT_BYTES_MAX
    # Nothing of the machine it ran on.
    assert "/home/" not in shown
    assert "/tmp/" not in shown
