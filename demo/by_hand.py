"""The commands to go on by hand with what the demo left behind."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from urllib.request import getproxies

from demo.settings import CREDENTIALS, NO_PROXY, REGION, TOPIC, Settings
from demo.table import FIELDS, TABLE


def commands(settings: Settings) -> str:
    """Shell text; each block works when pasted in this folder, in this order."""
    has_proxy = bool(getproxies().keys() - {"no"})
    exported = CREDENTIALS | {"AWS_DEFAULT_REGION": REGION} | (NO_PROXY if has_proxy else {})
    variables = " ".join(f"{name}={value}" for name, value in exported.items())
    s3 = " ".join(
        f"{name}={shlex.quote(value)}" for name, value in settings.s3_environment().items()
    )
    python = shlex.quote(sys.executable)
    strandline = shlex.quote(str(settings.strandline))
    archive = f"--remote {settings.remote_url} --endpoint-url {settings.s3_url}"
    text = f"""\
# the S3 server and the broker again, on the same data (stop them with: kill %2 %1)
export {variables}
export PYSPARK_PYTHON={_absolute(Path(sys.executable))}
{s3} \\
    {shlex.quote(str(settings.ministack))} > /dev/null 2>&1 &
{_wrapped(settings.broker_command())} \\
    2>> {shlex.quote(str(settings.data))}/broker.log &

# what lies in the bucket; no broker is asked
{strandline} archive ls {archive}
{strandline} archive show {archive} --topic {TOPIC}

# the first records of a partition, from S3 through the broker (kcat is a Debian package)
{strandline} consume {TOPIC} --partition 0 --from start --max-messages 3 -b {settings.bootstrap}
kcat -b {settings.bootstrap} -C -t {TOPIC} -p 0 -o beginning -c 3

# Spark straight from the bucket
{python} - <<'PYTHON'
from pyspark.sql import SparkSession
from strandline.spark_lake import register
spark = SparkSession.builder.master("local[2]").getOrCreate()
register(spark)
flights = (
    spark.read.format("strandline")
    .option("path", "{settings.remote_url}")
    .option("s3.endpoint.url", "{settings.s3_url}")
    .option("s3.region", "{REGION}")
    .option("subscribe", "{TOPIC}")
    .load()
)
flights.where("timestamp < '2013-01-03'").groupBy("partition").count().show()
PYTHON

# what was archived since then becomes rows of the table
{strandline} table sync {archive} --topic {TOPIC} --table {TABLE} \\
    --warehouse {settings.warehouse_url} \\
    --option valueFormat=json --option valueSchema={shlex.quote(FIELDS)}

# the table by DuckDB
{python} - <<'PYTHON'
from pyiceberg.catalog import load_catalog
catalog = load_catalog("strandline", type="sql", uri="sqlite:///{settings.tables}/catalog.db")
connection = catalog.load_table("{TABLE}").scan().to_duckdb("flights")
print(connection.sql("select carrier, avg(dep_delay) from flights group by all order by all"))
PYTHON
"""
    # Shorter. Spark alone wants to know where its Python really is.
    return text.replace(f"{Path.cwd()}/", "")


def _absolute(program: Path) -> str:
    """A word of the shell, short for what lies in this folder."""
    if program.is_relative_to(Path.cwd()):
        return f'"$PWD"/{shlex.quote(str(program.relative_to(Path.cwd())))}'
    return shlex.quote(str(program))


def _wrapped(command: list[str]) -> str:
    """`strandline serve` with one setting per line."""
    return shlex.join(command).replace(" --set ", " \\\n    --set ")
