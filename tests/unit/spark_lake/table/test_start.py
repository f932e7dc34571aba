"""The start of `table sync --interval`: outages are waited for, mistakes end it in one line."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog, SqlCatalogBaseTable
from sqlalchemy.exc import IntegrityError, OperationalError

from strandline.broker.cli import main
from strandline.broker.commands import table_commands
from strandline.spark_lake.table.errors import TableRefused
from strandline.spark_lake.table.iceberg import catalogs
from strandline.spark_lake.table.sync import SyncReport
from strandline.storage.errors import StrandlineError
from tests.unit.spark_lake.archive_builder import ArchiveBuilder
from tests.unit.spark_lake.table.rig import (
    NoProgress,
    add_rows,
    data_files,
    every,
    make_run,
    rows_of,
    sync,
)
from tests.unit.spark_lake.table.test_delta import DELTA

pytestmark = pytest.mark.slow

SCHEMA = {"type": "record", "name": "Row", "fields": [{"name": "id", "type": "long"}]}


class Server(ThreadingHTTPServer):
    """Answers everything with one status, or else with a schema."""

    def __init__(self, status: int, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Answer)
        self.status = status

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Server)
        body = b"{}"
        if self.server.status == 200:
            body = json.dumps({"schema": json.dumps(SCHEMA), "schemaType": "AVRO"}).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET
    do_POST = do_GET

    def log_message(self, *_: object) -> None: ...


@contextmanager
def serving(status: int, port: int = 0) -> Iterator[Server]:
    server = Server(status, port)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def follow(
    orders: ArchiveBuilder, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, list[str]]]:
    """Runs a sync until its first commit; calls `mend` after the second failure."""

    def run(given: list[str], mend: Callable[[], object]) -> tuple[int, list[str]]:
        told: list[str] = []

        def on_wait(error: StrandlineError) -> None:
            told.append(str(error))
            if len(told) == 2:
                mend()
            assert len(told) < 5, told

        def on_sync(_: SyncReport) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

        monkeypatch.setattr(table_commands, "_tell_wait", on_wait)
        monkeypatch.setattr(table_commands, "_print_report", on_sync)
        monkeypatch.setattr(table_commands, "duration_ms", lambda _: 1)
        command = ["table", "sync", "--remote", orders.url, "--topic", "orders"]
        return main([*command, "--table", "lake.orders", "--interval", "1s", *given]), told

    return run


Follow = Callable[..., tuple[int, list[str]]]


def test_a_catalog_that_does_not_answer_at_the_start_is_tried_again(
    orders: ArchiveBuilder, tmp_path: Path, follow: Follow
) -> None:
    """As of a database that starts later."""
    folder = tmp_path / "later"
    catalog = f"sqlite:///{folder}/catalog.db"
    code, told = follow(["--catalog", catalog], folder.mkdir)
    assert (code, len(told)) == (0, 2)
    assert all(f"cannot open the catalog {catalog}" in one for one in told)
    assert rows_of(make_run(orders, catalog=catalog)) == every(range(80))


def registry(url: str) -> list[str]:
    return ["--option", "valueFormat=avro", "--option", f"schemaRegistry.url={url}"]


@pytest.mark.parametrize("is_up", [True, False])
def test_a_registry_that_does_not_answer_at_the_start_is_tried_again(
    orders: ArchiveBuilder, follow: Follow, is_up: bool
) -> None:
    """Overloaded, or not started yet."""
    with ExitStack() as stack:
        server = stack.enter_context(serving(503))
        given = [*registry(server.url), "--on-error", "reject"]
        if not is_up:
            stack.close()

        def mend() -> None:
            if is_up:
                server.status = 200
            else:
                stack.enter_context(serving(200, port=server.server_address[1]))

        code, told = follow(given, mend)
    assert (code, len(told)) == (0, 2)
    assert all(server.url in one for one in told)
    # None of its values is in Avro.
    assert rows_of(make_run(orders)) == every(range(3, 80, 7))


def test_a_rest_catalog_that_is_overloaded_at_the_start_is_tried_again_and_a_refusal_ends_it(
    follow: Follow, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(503) as server:

        def mend() -> None:
            server.status = 403

        code, told = follow(["--catalog", server.url], mend)
    assert (code, len(told)) == (1, 2)
    assert all("ServiceUnavailable" in one for one in told)
    (said,) = capsys.readouterr().err.strip().splitlines()
    assert "ForbiddenError" in said
    assert "check the credentials" in said


@pytest.mark.parametrize(
    ("given", "code", "says"),
    [
        (["--catalog", "nonsense"], 2, "URI missing"),
        (["--catalog", "nosuch://x"], 2, "Can't load plugin"),
        (["--option", "valueFormat=nonsense"], 2, "valueFormat"),
        (["--mode", "upsert", "--partition-by", "city"], 2, "--partition-by _topic_partition"),
        (["--codec", "zstandard"], 2, "must be one of zstd, snappy, lz4, gzip"),
        (["--warehouse", "tables"], 2, "must be a URL"),
    ],
)
def test_a_mistake_ends_it_at_once_in_one_line(
    follow: Follow, capsys: pytest.CaptureFixture[str], given: list[str], code: int, says: str
) -> None:
    assert follow(given, lambda: None) == (code, [])
    (said,) = capsys.readouterr().err.strip().splitlines()
    assert says in said


def test_an_interval_without_a_wait_is_refused(
    orders: ArchiveBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--remote", orders.url, "--topic", "orders", "--table", "lake.orders"]
    assert main(["table", "sync", *given, "--interval", "0s"]) == 2
    assert "--interval must be longer than 0s" in capsys.readouterr().err


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("place", ["catalog", "registry", "warehouse", "delta"])
def test_refused_credentials_end_it_at_once_in_one_line(
    follow: Follow,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    status: int,
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "wrong")
    with serving(status) as server:
        bucket = ["--warehouse", "s3://b/tables", "--endpoint-url", server.url]
        given = {
            "catalog": ["--catalog", server.url],
            "registry": registry(server.url),
            "warehouse": [*bucket, "--catalog", "sqlite://"],
            "delta": [*bucket, "--format", "delta"],
        }[place]
        assert follow(given, lambda: None) == (1, [])
    (said,) = capsys.readouterr().err.strip().splitlines()
    assert "check the credentials" in said or "schemaRegistry.userPassword" in said


@pytest.mark.parametrize(
    "says",
    [
        'FATAL:  password authentication failed for user "user"',
        "fe_sendauth: no password supplied",
        "(psycopg2.errors.InsufficientPrivilege) permission denied for schema public",
    ],
)
def test_a_database_that_refuses_the_login_ends_it_at_once_and_no_message_has_the_password(
    follow: Follow,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    says: str,
) -> None:
    """As psycopg2 and psycopg said it of Postgres 15; the tests have no driver of Postgres."""

    def refuse(*_: object, **__: object) -> None:
        raise OperationalError(None, None, Exception(says))

    monkeypatch.setattr(catalogs, "load_catalog", refuse)
    given = ["--catalog", "postgresql+psycopg2://user:secret@db/lake"]
    assert follow(given, lambda: None) == (1, [])
    (said,) = capsys.readouterr().err.strip().splitlines()
    assert "check the credentials" in said
    assert "the catalog postgresql+psycopg2://user:***@db/lake" in said


def test_a_sync_takes_a_catalog_that_another_one_makes_in_postgres_at_the_same_moment(
    orders: ArchiveBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Postgres 15 says it; the tests have no driver of Postgres."""
    load_catalog = catalogs.load_catalog
    says = (
        'duplicate key value violates unique constraint "pg_type_typname_nsp_index"\n'
        "DETAIL:  Key (typname, typnamespace)=(iceberg_tables, 2200) already exists."
    )

    def second(*_: object, **__: object) -> None:
        monkeypatch.setattr(catalogs, "load_catalog", load_catalog)
        raise IntegrityError(None, None, Exception(says))

    monkeypatch.setattr(catalogs, "load_catalog", second)
    assert make_run(orders).sync(NoProgress()).rows == 160


def test_a_sync_takes_a_catalog_and_a_namespace_that_another_one_makes_at_the_same_moment(
    orders: ArchiveBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tables, has_namespace = SqlCatalog.create_tables, SqlCatalog.namespace_exists
    looks: list[bool] = []

    def make_tables_second(catalog: SqlCatalog) -> None:
        make_tables(catalog)
        # What its look did not see is there now.
        SqlCatalogBaseTable.metadata.create_all(catalog.engine, checkfirst=False)

    def sees_no_namespace_at_first(catalog: SqlCatalog, namespace: Any) -> bool:
        looks.append(has_namespace(catalog, namespace))
        if len(looks) == 1:
            other = SqlCatalog("strandline", uri=str(catalog.engine.url), warehouse="file:///none")
            other.create_namespace(namespace)
        return looks[-1]

    monkeypatch.setattr(SqlCatalog, "create_tables", make_tables_second)
    monkeypatch.setattr(SqlCatalog, "namespace_exists", sees_no_namespace_at_first)
    make_run(orders).sync(NoProgress())
    assert not looks[0]


def test_a_lost_catalog_is_told_with_the_way_back_and_no_row_is_there_twice(
    synced: ArchiveBuilder,
) -> None:
    folder = synced.path.with_name("archive-tables")
    (folder / "catalog.db").unlink()
    with pytest.raises(TableRefused, match=r"register_table.*newest metadata: ") as refused:
        sync(synced)
    newest = str(refused.value).rpartition("newest metadata: ")[2]
    catalog = load_catalog("strandline", type="sql", uri=f"sqlite:///{folder}/catalog.db")
    catalog.create_namespace_if_not_exists("lake")
    catalog.register_table("lake.orders", newest)
    add_rows(synced, base=80)
    assert sync(synced).rows == 80
    assert rows_of(make_run(synced)) == every(range(120))
    assert make_run(synced).check(deep=True).findings == []


@pytest.mark.parametrize("table_format", [{}, DELTA])
def test_each_command_tells_of_a_file_of_the_table_that_somebody_deleted(
    orders: ArchiveBuilder, table_format: dict[str, Any]
) -> None:
    sync(orders, **table_format)
    lost = Path(data_files(orders)[0])
    content = lost.read_bytes()
    lost.unlink()
    commands: tuple[Callable[[], object], ...] = (
        lambda: sync(orders, **table_format),
        lambda: make_run(orders, **table_format).check(),
        lambda: make_run(orders, **table_format).check(deep=True),
        lambda: make_run(orders, **table_format).maintain(),
    )
    for command in commands:
        with pytest.raises(TableRefused, match=f"has lost 1 file .*{lost.name}.*put them back"):
            command()
    lost.write_bytes(content)
    add_rows(orders, base=80)
    assert sync(orders, **table_format).rows == 80
