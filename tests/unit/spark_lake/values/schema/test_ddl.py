"""Column types are written as Spark writes them."""

from __future__ import annotations

import pytest
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type

from strandline.spark_lake.values.schema.ddl import parse_columns
from strandline.storage.errors import InvalidConfig

# --- schemas ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "a INT, b STRING",
        "`a b` bigint not null, c: decimal(12, 3)",
        "s STRUCT<x: DOUBLE, y: ARRAY<STRUCT<z: BOOLEAN>>>, m MAP<STRING, ARRAY<TINYINT>>",
        "d DATE, t TIMESTAMP, f float, h smallint, n binary, e decimal",
    ],
)
def test_column_types_are_sparks_to_the_letter(text: str) -> None:
    made = parse_columns(text)
    assert to_arrow_type(from_arrow_type(made), timezone="UTC").equals(made)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a", "a type is missing"),
        ("a INTEGR", "'integr' is no type"),
        ("a INT b", "'b' was not expected"),
        ("a ARRAY<INT", "'>' is expected where the end is"),
        ("a INT, a INT", "twice"),
        ("a DECIMAL(50)", "impossible"),
        ("a INT; b INT", "is no type"),
        ("a.b INT", r"needs backticks \(`a\.b` INT\)"),
        ("x " + "ARRAY<" * 40 + "INT" + ">" * 40, "nested more than"),
    ],
)
def test_wrong_column_types_are_explained(text: str, says: str) -> None:
    with pytest.raises(InvalidConfig, match=says):
        parse_columns(text)
