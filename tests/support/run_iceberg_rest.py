"""An Iceberg REST catalog on loopback: pyiceberg's SQL catalog behind the routes of a sync.

    python run_iceberg_rest.py PORT NAME=VALUE...                    properties of the catalog

The stand-in of `make test` for Apache Iceberg's REST catalog, whose jar has 212 MB: `make
check-catalogs` runs the same tests over both. Requests and answers are pyiceberg's own models of
the REST specification; the SQL catalog checks the requirements of a commit. One request at a time.
"""

from __future__ import annotations

import json
import sys

from pyiceberg.catalog.rest import CreateTableRequest, TableResponse
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table import CommitTableRequest, CommitTableResponse, Table
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from werkzeug.exceptions import HTTPException
from werkzeug.routing import Map, Rule
from werkzeug.serving import run_simple
from werkzeug.wrappers import Request, Response

STATUS = {
    NoSuchTableError: 404,
    NoSuchNamespaceError: 404,
    NamespaceAlreadyExistsError: 409,
    TableAlreadyExistsError: 409,
    CommitFailedException: 409,
}
PLACES = Map(
    [
        Rule("/v1/config", endpoint="config"),
        Rule("/v1/namespaces", methods=["POST"], endpoint="create_namespace"),
        Rule("/v1/namespaces/<space>/tables", methods=["POST"], endpoint="create_table"),
        Rule("/v1/namespaces/<space>/tables/<name>", methods=["GET"], endpoint="load_table"),
        Rule("/v1/namespaces/<space>/tables/<name>", methods=["POST"], endpoint="commit"),
        Rule("/v1/namespaces/<space>/tables/<name>", methods=["DELETE"], endpoint="drop"),
    ]
)


class RestCatalog:
    """A WSGI application."""

    def __init__(self, catalog: SqlCatalog) -> None:
        self._catalog = catalog

    @Request.application
    def __call__(self, request: Request) -> Response:
        try:
            endpoint, values = PLACES.bind_to_environ(request.environ).match()
            return _json(getattr(self, endpoint)(request, **values))
        except HTTPException as error:
            return error.get_response()  # type: ignore[return-value]
        except tuple(STATUS) as error:
            status, kind = STATUS[type(error)], type(error).__name__
            told = {"error": {"message": str(error), "type": kind, "code": status}}
            return _json(json.dumps(told), status)

    def config(self, _: Request) -> str:
        return json.dumps({"defaults": {}, "overrides": {}})

    def create_namespace(self, request: Request) -> str:
        self._catalog.create_namespace(tuple(request.get_json()["namespace"]))
        return request.get_data(as_text=True)

    def create_table(self, request: Request, space: str) -> str:
        asked = CreateTableRequest.model_validate_json(request.get_data())
        made = self._catalog.create_table(
            (space, asked.name),
            schema=asked.table_schema,
            location=asked.location,
            partition_spec=asked.partition_spec or UNPARTITIONED_PARTITION_SPEC,
            sort_order=asked.write_order or UNSORTED_SORT_ORDER,
            properties=asked.properties,
        )
        return _told(made)

    def load_table(self, _: Request, space: str, name: str) -> str:
        return _told(self._catalog.load_table((space, name)))

    def commit(self, request: Request, space: str, name: str) -> str:
        asked = CommitTableRequest.model_validate_json(request.get_data())
        table = self._catalog.load_table((space, name))
        made = self._catalog.commit_table(table, asked.requirements, asked.updates)
        # As Apache's server does; pyiceberg leaves it to the client.
        self._catalog._delete_old_metadata(table.io, table.metadata, made.metadata)
        return CommitTableResponse(
            metadata=made.metadata, metadata_location=made.metadata_location
        ).model_dump_json()

    def drop(self, _: Request, space: str, name: str) -> str:
        self._catalog.drop_table((space, name))
        return ""


def _told(table: Table) -> str:
    return TableResponse(
        metadata_location=table.metadata_location, metadata=table.metadata
    ).model_dump_json()


def _json(text: str, status: int = 200) -> Response:
    return Response(text, status, mimetype="application/json")


if __name__ == "__main__":
    port, *more = sys.argv[1:]
    properties = dict(one.split("=", 1) for one in more)
    run_simple("127.0.0.1", int(port), RestCatalog(SqlCatalog("rest", **properties)))
