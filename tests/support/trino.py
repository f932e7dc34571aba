"""A Trino server on loopback that reads the Iceberg tables of one SQLite catalog in one bucket."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.broker import eventually
from tests.support.ministack import ServerProcess
from tests.support.ports import ReservedPort

# A catalog of Trino, which is also the name that our embedded catalog has in its database.
CATALOG = "strandline"
# What its own launcher sets, as far as a server of tests needs it.
_JVM = [
    "-Xmx1G",
    "-Djdk.attach.allowAttachSelf=true",
    "--enable-native-access=ALL-UNNAMED",
    "--sun-misc-unsafe-memory-access=allow",
]
_CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}


class TrinoServer:
    """A running server, and its protocol's simplest client."""

    def __init__(self, endpoint_url: str) -> None:
        self._endpoint_url = endpoint_url

    def is_ready(self) -> bool:
        """Whether it answers queries: the server is up before it has found itself as a node."""
        try:
            return self.query("select 1") == [[1]]
        except RuntimeError:
            return False

    def query(self, sql: str) -> list[list[Any]]:
        """The rows of a statement, in JSON's types. Raises RuntimeError with Trino's message."""
        request = urllib.request.Request(
            f"{self._endpoint_url}/v1/statement",
            data=sql.encode(),
            headers={"X-Trino-User": "test", "X-Trino-Catalog": CATALOG},
        )
        rows: list[list[Any]] = []
        while True:
            with urllib.request.urlopen(request) as answer:
                page = json.load(answer)
            if "error" in page:
                raise RuntimeError(page["error"]["message"])
            rows += page.get("data", ())
            if "nextUri" not in page:
                return rows
            request = urllib.request.Request(page["nextUri"])


@contextmanager
def trino(
    home: Path, java: Path, folder: Path, *, catalog_db: Path, s3_endpoint_url: str
) -> Iterator[TrinoServer]:
    """A server with the program in `home`; `folder` takes its settings and data."""
    port = ReservedPort()
    settings = _settings(folder, port.number, catalog_db, s3_endpoint_url)
    # It looks for its plugins below the folder that it runs in.
    command = ["/usr/bin/env", "--chdir", str(home), str(java), *_JVM, "-cp", "lib/*"]
    command += [f"-Dconfig={settings}", "-Dnode.environment=test", f"-Dnode.data-dir={folder}"]
    command += [f"-Dcatalog.config-dir={folder}/catalog", "io.trino.server.TrinoServer"]
    server = ServerProcess(
        command, port=port, log_path=folder / "trino.log", environment=_CREDENTIALS
    )
    with server:
        running = TrinoServer(server.endpoint_url)
        eventually(running.is_ready)
        yield running


def _settings(folder: Path, port: int, catalog_db: Path, s3_endpoint_url: str) -> Path:
    (folder / "catalog").mkdir(parents=True)
    (folder / "catalog" / f"{CATALOG}.properties").write_text(
        f"""\
connector.name=iceberg
iceberg.catalog.type=jdbc
iceberg.jdbc-catalog.driver-class=org.sqlite.JDBC
iceberg.jdbc-catalog.connection-url=jdbc:sqlite:{catalog_db}
iceberg.jdbc-catalog.catalog-name={CATALOG}
iceberg.jdbc-catalog.default-warehouse-dir=s3://unused/
fs.native-s3.enabled=true
s3.endpoint={s3_endpoint_url}
s3.region=us-east-1
s3.path-style-access=true
s3.aws-access-key={_CREDENTIALS["AWS_ACCESS_KEY_ID"]}
s3.aws-secret-key={_CREDENTIALS["AWS_SECRET_ACCESS_KEY"]}
"""
    )
    settings = folder / "config.properties"
    settings.write_text(
        f"""\
coordinator=true
node-scheduler.include-coordinator=true
http-server.http.port={port}
discovery.uri=http://127.0.0.1:{port}
query.max-memory-per-node=256MB
"""
    )
    return settings
