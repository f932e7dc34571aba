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
        ("a VARCHAR", r"'\(' is expected"),
        ("a VARCHAR(x)", "'x' is no number"),
        ("a INT COMMENT b", "a comment is a text"),
        ("a INT COMMENT", "a comment is missing"),
        ("struct<a: INT", "'>' is expected where the end is"),
        ("struct<a: INT>, b INT", "',' was not expected"),
        ("a.b INT", r"needs backticks \(`a\.b` INT\)"),
        ("x " + "ARRAY<" * 40 + "INT" + ">" * 40, "nested more than"),
    ],
)
def test_wrong_column_types_are_explained(text: str, says: str) -> None:
    with pytest.raises(InvalidConfig, match=says):
        parse_columns(text)


def test_a_schema_is_taken_as_spark_and_databases_write_it() -> None:
    """Lengths, comments, and the type of the whole value, as `simpleString` shows it."""
    plain = parse_columns("id BIGINT, name STRING, at STRUCT<city: STRING>")
    for text in (
        "struct<id:bigint,name:string,at:struct<city:string>>",
        "STRUCT<id: BIGINT, name: VARCHAR(20), at: STRUCT<city: CHAR(2) COMMENT 'it''s, a >'>>",
        """id BIGINT NOT NULL COMMENT "the \\"key\\"", name VARCHAR(20) comment '',
        at STRUCT<city: STRING>""",
    ):
        assert parse_columns(text) == plain
    # A column may have the name of a word.
    assert parse_columns("struct INT, comment STRING, varchar INT").names == [
        "struct",
        "comment",
        "varchar",
    ]
