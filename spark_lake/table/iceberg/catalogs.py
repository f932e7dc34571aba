"""Catalogs of Iceberg tables: the embedded one, another database, REST, or a name of pyiceberg's.

    none                                the file `catalog.db`: in the warehouse if that is a folder,
                                        else in ~/.local/share/strandline (or XDG_DATA_HOME)
    sqlite:///..., postgresql+...://    pyiceberg's SQL catalog in this database
    http://..., https://...             an Iceberg REST catalog
    a name                              of ~/.pyiceberg.yaml, or PYICEBERG_CATALOG__NAME__...

All SQL catalogs have the name `strandline` in their tables: readers name it too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import (
    BadRequestError,
    NoSuchPropertyException,
    NotInstalledError,
    RESTError,
)
from sqlalchemy.exc import ArgumentError, DBAPIError

from strandline.spark_lake.archive.objects import DEFAULT_REGION
from strandline.spark_lake.options.options import S3Options
from strandline.spark_lake.table.errors import failed
from strandline.spark_lake.table.iceberg.places import FOLDERS
from strandline.storage.errors import InvalidConfig
from strandline.storage.remote.silence import Silence

# Of a name or a URI that no catalog answers to.
_MISTAKES = (ValueError, ImportError, ArgumentError, NotInstalledError, NoSuchPropertyException)

# For each answer of a REST catalog but the first one, which opens it; as boto3 waits for Glue.
# pyiceberg would wait for ever where a firewall has forgotten the connection.
REST_WAIT_S_MAX = 60.0
# Of a URL, as SQLAlchemy reads it: up to the @.
_PASSWORD = re.compile(r"(://[^:/@]*):[^@]*@")
_HIDDEN = r"\1:***@"

# Some libraries decode the path of a URL, or cut it at these, or take it for a pattern.
_AMBIGUOUS = re.compile(r"[%#?*\[\]^|\\\x00-\x1f\x7f]")

CATALOG_NAME = "strandline"
CATALOG_FILE = "catalog.db"


def open_catalog(
    given: str | None,
    *,
    warehouse: str,
    s3: S3Options,
    properties: Mapping[str, str],
    makes_file: bool = True,
) -> Catalog:
    """Raises InvalidConfig, AccessDenied, TableUnavailable.

    Without `makes_file` an embedded catalog that is not there yet is an empty one in memory.
    """
    name, made = given, {**store_properties(s3), **properties}
    place = f"the catalog {_PASSWORD.sub(_HIDDEN, given) if given else 'of the warehouse'}"
    try:
        if given is None or "://" in given:
            uri = given or _embedded(warehouse, makes_file=makes_file)
            is_rest = urlsplit(uri).scheme in ("http", "https")
            name, made = CATALOG_NAME, {"type": "rest" if is_rest else "sql", "uri": uri, **made}
        with Silence(place):
            try:
                catalog = load_catalog(name, **made)
            except DBAPIError as error:
                if "already exists" not in str(error):
                    raise
                # Another process made the catalog's tables between the look for them and ours.
                catalog = load_catalog(name, **made)
    except Exception as error:
        failure = failed("open", place, error)
        is_answer = isinstance(error, BadRequestError) or type(error) is RESTError
        if is_answer or isinstance(error, _MISTAKES):
            raise InvalidConfig(f"{failure}; see the option --catalog") from error
        raise failure from error
    if isinstance(catalog, RestCatalog):
        session = catalog._session  # noqa: SLF001  # no property of the catalog sets a timeout
        session.request = partial(  # type: ignore[method-assign]  # of this one session
            session.request, timeout=REST_WAIT_S_MAX
        )
    return catalog


def warehouse_of(given: str | None, *, archive_url: str) -> str:
    """The URL of the warehouse that is given, or of the default. Raises InvalidConfig."""
    default = default_warehouse(archive_url)
    # A plain path: no character of it is special. In a URL `%20` is a space, as in the archive's.
    warehouse = unquote(given) if given else default
    if given and given.startswith("/"):
        warehouse = f"file://{given}"
    _refuse_ambiguous("--warehouse", warehouse)
    warehouse = re.sub("^file://localhost/", "file:///", warehouse)
    parts = urlsplit(warehouse)
    is_url = parts.scheme and warehouse.startswith(f"{parts.scheme}://")
    is_folder = parts.scheme == "file" and not parts.netloc and parts.path.strip("/")
    if not is_url or (parts.scheme == "file" and not is_folder):
        raise InvalidConfig(
            f"--warehouse {given!r} must be a URL, such as {default}, or the absolute name of a"
            " folder"
        )
    place = re.sub("^s3[an]://", "s3://", warehouse)
    is_inside = f"{place.rstrip('/')}/".startswith(f"{archive_url.rstrip('/')}/")
    # An archive may be a whole bucket.
    if is_inside and urlsplit(archive_url).path.strip("/"):
        raise InvalidConfig(
            f"--warehouse {given} is in the archive, where every object is the broker's: give"
            f" another place, such as {default}"
        )
    return warehouse


def _refuse_ambiguous(option: str, text: str) -> None:
    """Raises InvalidConfig for a place whose files would lie in two folders."""
    if found := _AMBIGUOUS.search(text):
        raise InvalidConfig(
            f"{option}: {text!r} has {found[0]!r}, which libraries of tables read in different"
            " ways: choose a name without it"
        )


def default_warehouse(archive_url: str) -> str:
    """Beside the archive, in the same bucket or folder; never inside it."""
    parts = urlsplit(archive_url)
    if parts.scheme == "s3" and not parts.path.strip("/"):
        return f"{archive_url.rstrip('/')}/tables"
    return f"{archive_url.rstrip('/')}-tables"


def parse_identifier(text: str) -> tuple[str, ...]:
    """`namespace.table`. Raises InvalidConfig."""
    parts = tuple(text.split("."))
    if len(parts) < 2 or not all(parts) or any("/" in part for part in parts):
        raise InvalidConfig(f"--table {text!r} must be NAMESPACE.TABLE, such as lake.orders")
    _refuse_ambiguous("--table", text)
    for number, part in enumerate(parts[2:], 2):
        if part in FOLDERS:
            raise InvalidConfig(
                f"--table {text!r}: the folder {'/'.join(parts[: number + 1])} has files of table"
                f" {'.'.join(parts[:number])}; choose another name than {part}"
            )
    return parts


def location_of(warehouse: str, identifier: tuple[str, ...]) -> str:
    """Where a new table lies."""
    return "/".join([warehouse.rstrip("/"), *identifier])


def _embedded(warehouse: str, *, makes_file: bool) -> str:
    parts = urlsplit(warehouse)
    if parts.scheme == "file":
        folder = Path(parts.path)
    else:
        home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
        folder = Path(home) / "strandline"
    if makes_file:
        folder.mkdir(parents=True, exist_ok=True)
    elif not (folder / CATALOG_FILE).exists():
        return "sqlite:///:memory:"
    return f"sqlite:///{folder / CATALOG_FILE}"


def store_properties(s3: S3Options) -> dict[str, str]:
    """The properties of pyiceberg by which it reaches the bucket."""
    given = {
        "s3.endpoint": endpoint_url_of(s3),
        "s3.region": region_of(s3),
        "s3.access-key-id": s3.key,
        "s3.secret-access-key": s3.secret,
        "s3.session-token": s3.token,
    }
    return {
        "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
        **{name: value for name, value in given.items() if value is not None},
    }


def endpoint_url_of(s3: S3Options) -> str | None:
    """From the options, or from the variables that boto3 reads and pyarrow does not."""
    return (
        s3.endpoint_url
        or os.environ.get("AWS_ENDPOINT_URL_S3")
        or os.environ.get("AWS_ENDPOINT_URL")
        or None
    )


def region_of(s3: S3Options) -> str | None:
    """From the options or boto3's variables; a store with an endpoint of its own needs any."""
    given = s3.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return given or (DEFAULT_REGION if endpoint_url_of(s3) else None)
