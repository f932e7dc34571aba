"""Two questions about the flights: how Spark answers them, and how plain pandas does.

An answer is a list of rows of strings and whole numbers (sums and counts, never means), so that
both must be equal to the last digit. Means are made from them when they are shown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]
    from pyspark.sql import DataFrame

Answer: TypeAlias = list[tuple[str | int, ...]]

# A blizzard closed the airports of the north-east on 8 and 9 February 2013.
STORM_BEGIN = datetime(2013, 2, 8, tzinfo=UTC)
STORM_END = datetime(2013, 2, 11, tzinfo=UTC)

_JSON_FIELDS = "origin STRING, dep_time INT, dep_delay INT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """`ask` takes the records as the lake gives them, `check` the rows of the source.

    A selective question filters on the timestamp, so that most of the archive need not be read.
    """

    title: str
    is_selective: bool
    columns: tuple[str, ...]
    ask: Callable[[DataFrame], DataFrame]
    check: Callable[[pd.DataFrame], Answer]
    show: Callable[[Answer], list[list[object]]]


def _ask_delays(records: DataFrame) -> DataFrame:
    from pyspark.sql import functions as sql

    flight = sql.from_json(records.value.cast("string"), _JSON_FIELDS)
    return (
        records.select(records.key.cast("string").alias("carrier"), flight.alias("flight"))
        .groupBy("carrier")
        .agg(
            sql.count("*").alias("flights"),
            sql.count("flight.dep_delay").alias("departures"),
            sql.coalesce(sql.sum("flight.dep_delay"), sql.lit(0)).alias("delay_minutes"),
        )
        .orderBy("carrier")
    )


def _check_delays(flights: pd.DataFrame) -> Answer:
    return [
        (
            str(carrier),
            len(rows),
            int(rows["dep_delay"].count()),
            int(rows["dep_delay"].sum()),
        )
        for carrier, rows in flights.groupby("carrier", sort=True)
    ]


def _show_delays(answer: Answer) -> list[list[object]]:
    rows: list[list[object]] = [
        [carrier, flights, int(minutes) / max(int(departures), 1)]
        for carrier, flights, departures, minutes in answer
    ]
    return sorted(rows, key=lambda row: float(str(row[2])), reverse=True)


def _ask_storm(records: DataFrame) -> DataFrame:
    from pyspark.sql import functions as sql

    during = (records.timestamp >= sql.lit(STORM_BEGIN)) & (records.timestamp < sql.lit(STORM_END))
    flight = sql.from_json(records.value.cast("string"), _JSON_FIELDS)
    return (
        records.where(during)
        .select(sql.to_date("timestamp").cast("string").alias("day"), flight.alias("flight"))
        .groupBy("day", "flight.origin")
        .agg(
            sql.count("*").alias("flights"),
            sql.count(sql.when(sql.isnull("flight.dep_time"), 1)).alias("cancelled"),
        )
        .orderBy("day", "origin")
    )


def _check_storm(flights: pd.DataFrame) -> Answer:
    import pandas as pd

    hours = pd.to_datetime(flights["timestamp_ms"], unit="ms", utc=True)
    during = flights[(hours >= STORM_BEGIN) & (hours < STORM_END)]
    days = hours[during.index].dt.strftime("%Y-%m-%d")
    return [
        (str(day), str(origin), len(rows), int(rows["dep_time"].isna().sum()))
        for (day, origin), rows in during.groupby([days, "origin"], sort=True)
    ]


def _show_storm(answer: Answer) -> list[list[object]]:
    return [list(row) for row in answer]


QUESTIONS = (
    Question(
        title="Which carriers left late in 2013? (reads the whole archive)",
        is_selective=False,
        columns=("carrier", "flights", "mean delay, minutes"),
        ask=_ask_delays,
        check=_check_delays,
        show=_show_delays,
    ),
    Question(
        title="How many flights did the blizzard of February 2013 cancel? (three days of the year)",
        is_selective=True,
        columns=("day (UTC)", "airport", "flights", "cancelled"),
        ask=_ask_storm,
        check=_check_storm,
        show=_show_storm,
    ),
)
