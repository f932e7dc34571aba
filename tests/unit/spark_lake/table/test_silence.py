"""A commit that its store or catalog does not answer is a silence, which commands tell."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

from strandline.storage.remote.silence import silent_places
from tests.support.broker import eventually
from tests.unit.spark_lake.archive_builder import ArchiveBuilder
from tests.unit.spark_lake.table.rig import NoProgress, make_run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table_format", "owner", "call"),
    [("iceberg", SqlCatalog, "commit_table"), ("delta", DeltaTable, "create_write_transaction")],
)
def test_a_commit_without_an_answer_is_a_silence_of_its_table(
    table_format: str,
    owner: type,
    call: str,
    orders: ArchiveBuilder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commit, asked, goes_on = getattr(owner, call), threading.Event(), threading.Event()

    def hang(*given: Any, **named: Any) -> Any:
        asked.set()
        assert goes_on.wait(60)
        return commit(*given, **named)

    run = make_run(orders, format=table_format)
    place = f"table {run.store.name}"
    monkeypatch.setattr(owner, call, hang)
    with ThreadPoolExecutor(1) as threads:
        syncing = threads.submit(run.sync, NoProgress())
        try:
            assert asked.wait(60)
            eventually(lambda: place in silent_places(0.1))
        finally:
            goes_on.set()
        assert syncing.result().rows > 0
    assert place not in silent_places(0.1)
