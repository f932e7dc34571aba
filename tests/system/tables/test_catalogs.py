"""Syncs over each kind of catalog, in a process of its own; tests/support/catalogs.py has them.

A proxy stands before the catalog, and breaks answers to commits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pyiceberg.catalog
import pytest
from pyiceberg.table import TableProperties
from pyiceberg.utils.config import Config

from strandline.spark_lake.table.errors import TableUnavailable
from strandline.spark_lake.table.iceberg import catalogs
from strandline.spark_lake.table.run import TableRun
from tests.support.catalogs import GLUE, REST, apache_kinds, catalog_server
from tests.support.fault_proxy import Action, FaultProxy, Rule
from tests.support.heavy import heavy
from tests.support.ministack import ServerProcess
from tests.unit.spark_lake.archive_builder import ArchiveBuilder
from tests.unit.spark_lake.table.random_history import TableHistory, UpsertHistory
from tests.unit.spark_lake.table.rig import (
    NoProgress,
    add_rows,
    data_files,
    every,
    iceberg,
    make_run,
    named_files,
    rows_of,
)
from tests.unit.spark_lake.table.test_histories import run as run_history
from tests.unit.spark_lake.table.test_upkeep import NOW

pytestmark = pytest.mark.slow


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogUnderTest:
    """A catalog behind a proxy; `given` is what a sync is told of it."""

    proxy: FaultProxy
    given: dict[str, Any]
    # Of the requests of a commit, which one changes the table; counted from 0.
    commit_number: int

    def run(self, archive: ArchiveBuilder) -> TableRun:
        return make_run(archive, **self.given)

    def sync(self, archive: ArchiveBuilder) -> Any:
        return self.run(archive).sync(NoProgress())

    def break_commit(self, action: Action) -> None:
        """Breaks the next commit of a table."""
        self.proxy.add(
            Rule(
                action=action,
                method="POST",
                # Glue's requests all have one path.
                path="/tables/orders$|^/$",
                skip=self.commit_number,
                code="ServiceUnavailable",
            )
        )


# Starts the catalog of a kind, or gives the one that runs.
StartCatalog = Callable[[str], ServerProcess]


@pytest.fixture(scope="module")
def start_catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartCatalog]:
    """One of each kind for all tests: it takes two seconds of a processor to start."""
    with ExitStack() as running:

        @cache
        def start(kind: str) -> ServerProcess:
            return running.enter_context(catalog_server(kind, tmp_path_factory.mktemp(kind)))

        yield start


# A namespace that no test before had.
_numbers = count(1)


@pytest.fixture(params=[REST, *apache_kinds(), heavy(GLUE)])
def catalog(
    request: pytest.FixtureRequest, start_catalog: StartCatalog
) -> Iterator[CatalogUnderTest]:
    is_glue = request.param == GLUE
    with FaultProxy(start_catalog(request.param).port) as proxy:
        given: dict[str, Any] = {"catalog": proxy.endpoint_url}
        if is_glue:
            properties = {
                "type": "glue",
                "glue.endpoint": proxy.endpoint_url,
                "glue.region": "us-east-1",
                # Ten attempts, pyiceberg's default, take more than a minute.
                "glue.max-retries": 2,
            }
            given = {"catalog": "analytics", "catalog_properties": properties}
        given["table"] = f"lake{next(_numbers)}.orders"
        yield CatalogUnderTest(proxy=proxy, given=given, commit_number=1 if is_glue else 0)


@pytest.fixture
def orders(tmp_path: Path) -> ArchiveBuilder:
    made = ArchiveBuilder(tmp_path / "archive")
    made.add_topic("orders", partitions=2)
    add_rows(made, base=0)
    add_rows(made, base=40)
    return made


def test_a_second_sync_adds_what_is_new_and_maintenance_leaves_no_file(
    orders: ArchiveBuilder, catalog: CatalogUnderTest
) -> None:
    assert catalog.sync(orders).rows == 160
    assert catalog.sync(orders).commits == 0
    add_rows(orders, base=80)
    assert catalog.sync(orders).rows == 80
    run = catalog.run(orders)
    report = run.maintain(None, NOW)
    assert report.rewritten_files > report.new_files > 0
    assert report.expired_snapshots > 0
    assert run.check(deep=True).findings == []
    assert rows_of(run) == every(range(120))
    assert named_files(run) == sorted(data_files(orders))
    assert len(iceberg(run).snapshots()) == 1


@pytest.mark.parametrize(
    "action", [Action.RESET_AFTER, heavy(Action.RESET_BEFORE), heavy(Action.STATUS)]
)
def test_a_commit_whose_answer_is_lost_is_in_the_table_once(
    orders: ArchiveBuilder,
    catalog: CatalogUnderTest,
    action: Action,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = catalog.run(orders)
    commit = run.store.commit

    def answer_is_lost(*given: Any) -> None:
        monkeypatch.setattr(run.store, "commit", commit)
        catalog.break_commit(action)
        commit(*given)

    monkeypatch.setattr(run.store, "commit", answer_is_lost)
    assert run.sync(NoProgress()).rows == 160
    assert any(one.action is action for one in catalog.proxy.seen)
    assert rows_of(run) == every(range(80))
    assert named_files(run) == sorted(data_files(orders))


def test_of_two_syncs_that_wrote_the_same_rows_one_drops_its_files(
    orders: ArchiveBuilder, catalog: CatalogUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = catalog.run(orders)
    commit = first.store.commit

    def second_is_first(*given: Any) -> None:
        monkeypatch.setattr(first.store, "commit", commit)
        catalog.sync(orders)
        commit(*given)

    monkeypatch.setattr(first.store, "commit", second_is_first)
    assert first.sync(NoProgress()).lost_rounds == 1
    assert rows_of(first) == every(range(80))
    assert named_files(first) == sorted(data_files(orders))


def test_a_catalog_that_is_away_is_named_and_a_later_sync_goes_on(
    orders: ArchiveBuilder, catalog: CatalogUnderTest
) -> None:
    run = catalog.run(orders)
    catalog.proxy.go_away()
    with pytest.raises(TableUnavailable, match=r"table lake\d+\.orders"):
        run.sync(NoProgress())
    catalog.proxy.come_back()
    assert catalog.sync(orders).rows == 160


def test_old_metadata_goes_and_no_commit_warns_of_what_the_catalog_has_deleted_itself(
    orders: ArchiveBuilder, catalog: CatalogUnderTest, caplog: pytest.LogCaptureFixture
) -> None:
    run = catalog.run(orders)
    run.sync(NoProgress())
    with iceberg(run).transaction() as transaction:
        transaction.set_properties({TableProperties.METADATA_PREVIOUS_VERSIONS_MAX: "1"})
    # pyiceberg's own commit has warned.
    caplog.clear()
    for base in (80, 120, 160):
        add_rows(orders, base=base)
        catalog.sync(orders)
    folder = orders.path.with_name("archive-tables")
    assert len(list(folder.rglob("*.metadata.json"))) == 2
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING] == []


def test_a_first_sync_takes_the_namespace_and_the_table_that_another_makes_at_the_same_moment(
    orders: ArchiveBuilder, catalog: CatalogUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = catalog.run(orders)
    store: Any = run.store
    create_namespace = store._catalog.create_namespace

    def second_is_first(*given: Any) -> None:
        monkeypatch.setattr(store._catalog, "create_namespace", create_namespace)
        catalog.sync(orders)
        create_namespace(*given)

    monkeypatch.setattr(store._catalog, "create_namespace", second_is_first)
    run.sync(NoProgress())
    assert rows_of(run) == every(range(80))
    assert named_files(run) == sorted(data_files(orders))


@pytest.mark.parametrize(
    ("catalog", "history"),
    [
        *[heavy(kind, TableHistory) for kind in (REST, GLUE)],
        *[(kind, history) for kind in apache_kinds() for history in (TableHistory, UpsertHistory)],
        *[heavy(kind, UpsertHistory) for kind in (REST, GLUE)],
    ],
    indirect=["catalog"],
)
def test_a_table_has_the_archives_rows_whatever_happens(
    tmp_path: Path, catalog: CatalogUnderTest, history: type[TableHistory]
) -> None:
    """Evolution, deaths at any step, two writers, lost answers, maintenance and its retention."""
    seed = 1
    made = history(tmp_path, seed)
    made.more = {**made.more, **catalog.given}
    run_history(made, seed)


def test_a_rest_catalog_is_asked_for_the_warehouse_that_its_configuration_names(
    orders: ArchiveBuilder, start_catalog: StartCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There a warehouse is the name of one of its catalogs, not the place of a table."""
    with FaultProxy(start_catalog(REST).port) as proxy:
        monkeypatch.setenv("PYICEBERG_CATALOG__LAB__URI", proxy.endpoint_url)
        monkeypatch.setenv("PYICEBERG_CATALOG__LAB__WAREHOUSE", "analytics")
        # pyiceberg has read it when it was loaded.
        monkeypatch.setattr(pyiceberg.catalog, "_ENV_CONFIG", Config())
        make_run(orders, catalog="lab")
        make_run(orders, catalog=proxy.endpoint_url)
        make_run(orders, catalog=proxy.endpoint_url, catalog_properties={"warehouse": "lab"})
        assert [one.path for one in proxy.seen] == [
            "/v1/config?warehouse=analytics",
            "/v1/config",
            "/v1/config?warehouse=lab",
        ]


def test_a_rest_catalog_that_never_answers_is_an_outage(
    orders: ArchiveBuilder, start_catalog: StartCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FaultProxy(start_catalog(REST).port) as proxy:
        monkeypatch.setattr(catalogs, "REST_WAIT_S_MAX", 0.2)
        run = make_run(orders, catalog=proxy.endpoint_url, table="unanswered.orders")
        proxy.add(Rule(action=Action.HANG, path="/tables/orders$"))
        with pytest.raises(TableUnavailable, match="Read timed out"):
            run.sync(NoProgress())
