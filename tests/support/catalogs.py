"""Catalogs of Iceberg tables, each a server of its own on loopback.

rest      our own small REST catalog, over pyiceberg's SQL catalog
apache    Apache Iceberg's REST catalog; only if $STRANDLINE_ICEBERG_REST names the folder of its
          jar, as `make check-catalogs` says
glue      AWS Glue, as moto's server has it
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.contract.stores import moto_command
from tests.support.ministack import REPOSITORY, ServerProcess
from tests.support.ports import ReservedPort

REST, APACHE, GLUE = "rest", "apache", "glue"
FOLDER_VARIABLE = "STRANDLINE_ICEBERG_REST"
_NONE: Mapping[str, str] = {}


def apache_kinds() -> list[str]:
    """Apache's catalog, if this machine has it."""
    return [APACHE] if os.environ.get(FOLDER_VARIABLE) else []


def bucket_properties(endpoint_url: str) -> dict[str, str]:
    """Those by which a REST catalog reaches a bucket; the credentials are in the environment."""
    return {
        "s3.endpoint": endpoint_url,
        "s3.path-style-access": "true",
        "client.region": "us-east-1",
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
    }


def catalog_server(kind: str, folder: Path, properties: Mapping[str, str] = _NONE) -> ServerProcess:
    """The catalog, not started yet, with its database and its log in `folder`.

    `properties` are those by which it reaches its warehouse.
    """
    port = ReservedPort()
    if kind == GLUE:
        command = moto_command(port.number)
    else:
        command = _rest_command(kind, port.number, folder / "catalog-server.db")
        command += [f"{name}={value}" for name, value in properties.items()]
    return ServerProcess(command, port=port, log_path=folder / "catalog-server.log", environment={})


def _rest_command(kind: str, port: int, database: Path) -> list[str]:
    programs = REPOSITORY / "tests" / "support"
    if kind == REST:
        program = programs / "run_iceberg_rest.py"
        return [sys.executable, "-P", str(program), str(port), f"uri=sqlite:///{database}"]
    (jar,) = Path(os.environ[FOLDER_VARIABLE]).resolve().glob("iceberg-open-api-*.jar")
    program = programs / "run_apache_iceberg_rest.py"
    return [
        *[sys.executable, "-P", str(program), str(jar), str(port)],
        *[f"uri=jdbc:sqlite:{database}", f"warehouse={database.with_name('warehouse').as_uri()}"],
    ]
