"""Where the files of a table lie, and whose else they may be."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow.fs as pf
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO

from strandline.spark_lake.table.errors import TableUnavailable

# Below the location of a table. What else lies there is of other tables: a longer name is a folder
# below a shorter one's.
FOLDERS = ("data", "metadata")
# What makes a folder a Delta table.
DELTA_LOG = "_delta_log"
# Of one name in a folder, and of the key of an object in S3 less what a table's location has.
NAME_BYTES_MAX = 255
KEY_BYTES_MAX = 700
# Metadata files that are opened to find another catalog's table at the same location.
METADATA_FILES_MAX = 100
_NUMBER = re.compile(r"v?(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherTable:
    """A table that another catalog names, or named."""

    uuid: str
    # Its newest metadata files: several, if a commit was refused.
    newest: Sequence[str]


def other_table(
    io: Any, location: str, table_uuid: str | None, *, known: set[str]
) -> OtherTable | None:
    """Another table with rows whose metadata lies at this location.

    A table without snapshots is left over from a creation that did not end. Raises OSError.
    """
    system, path, prefix = place_of(io, location)
    selector = pf.FileSelector(f"{path}/metadata", allow_not_found=True)
    found = [
        one
        for one in system.get_file_info(selector)
        if one.path.endswith(".metadata.json") and prefix + one.path not in known
    ]
    # Newest first: of a table without rows only the first file has none.
    found.sort(key=lambda one: one.mtime_ns or 0, reverse=True)
    for one in found[:METADATA_FILES_MAX]:
        try:
            with system.open_input_stream(one.path) as stream:
                document = json.loads(stream.read())
            uuid, has_rows = str(document["table-uuid"]), bool(document.get("snapshots"))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            # Torn, or deleted meanwhile by the table that wrote it.
            continue
        if has_rows and uuid != table_uuid:
            return OtherTable(uuid=uuid, newest=_newest([prefix + one.path for one in found]))
    return None


def _newest(paths: Sequence[str]) -> list[str]:
    """The metadata files with the greatest number, which catalogs begin their names with."""

    def number(path: str) -> int:
        digits = _NUMBER.match(path.rpartition("/")[2])
        return int(digits[1]) if digits else -1

    greatest = max(map(number, paths))
    return [one for one in paths if number(one) == greatest]


def names_in(io: Any, location: str) -> set[str]:
    """Names of the files and folders right below a location. Raises OSError."""
    system, path, _ = place_of(io, location)
    found = system.get_file_info(pf.FileSelector(path, allow_not_found=True))
    return {one.base_name for one in found}


def is_too_long(location: str, folders: str) -> bool:
    """Whether a store has no room for the names of these folders, as of long texts."""
    is_folder = location.startswith("file:")
    names = folders.split("/") if is_folder else []
    return len(folders.encode()) > KEY_BYTES_MAX or any(
        len(one.encode()) > NAME_BYTES_MAX for one in names
    )


def missing_paths(io: FileIO, location: str, paths: Iterable[str]) -> list[str]:
    """Those of a table's files below its location that are not there any more. Raises OSError.

    Another catalog's `io` is not asked.
    """
    if not isinstance(io, PyArrowFileIO):
        return []
    system, path, prefix = place_of(io, location)
    below = [one for one in paths if normalized(io, one, location).startswith(f"{prefix}{path}/")]
    if not below:
        return []
    selector = pf.FileSelector(path, recursive=True, allow_not_found=True)
    found = {prefix + one.path for one in system.get_file_info(selector)}
    return [one for one in below if normalized(io, one, location) not in found]


def delete_paths(io: FileIO, paths: Iterable[str]) -> int:
    """Deletes what it can, and returns how many that were."""
    deleted = 0
    for path in paths:
        with suppress(Exception):
            io.delete(path)
            deleted += 1
    return deleted


def place_of(io: Any, location: str) -> tuple[pf.FileSystem, str, str]:
    """File system, path in it, and what precedes such a path in a location of a table."""
    if not isinstance(io, PyArrowFileIO):
        raise TableUnavailable(
            f"{location}: the catalog set py-io-impl to {type(io).__name__}; maintenance needs"
            " pyiceberg.io.pyarrow.PyArrowFileIO"
        )
    scheme, netloc, path = io.parse_location(location, io.properties)
    return io.fs_by_scheme(scheme, netloc), path, f"{scheme}://"


def normalized(io: Any, location: str, table: str) -> str:
    """A location with the scheme of the table's: some writers leave it out, or say s3a."""
    return place_of(io, table)[2] + place_of(io, location)[1]
