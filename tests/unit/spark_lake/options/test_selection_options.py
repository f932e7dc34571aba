"""Which topics and partitions are read."""

from __future__ import annotations

import pytest

from strandline.spark_lake.options.options import LakeOptions
from strandline.spark_lake.options.selection_options import Assign, Subscribe, SubscribePattern
from tests.unit.spark_lake.options.parsed import REQUIRED, parse, refused


def test_exactly_one_selection_is_needed() -> None:
    assert "given: none" in refused({"path": "s3://b"})
    assert "given: subscribe, assign" in refused({**REQUIRED, "assign": '{"t": [0]}'})


def test_selections_are_parsed() -> None:
    pattern = LakeOptions.parse({"path": "s3://b", "subscribePattern": "a.*"})
    assert pattern.selection == SubscribePattern("a.*")
    assigned = LakeOptions.parse({"path": "s3://b", "assign": '{"a": [2, 0], "b": [1]}'})
    assert assigned.selection == Assign({"a": (2, 0), "b": (1,)})


@pytest.mark.parametrize(
    "pattern", ["[a-z&&[^t]]", "[[:alpha:]]", "[a--b]", r"\p{Alpha}", "(", "*"]
)
def test_patterns_that_java_would_take_for_others_are_refused(pattern: str) -> None:
    said = refused({"path": REQUIRED["path"], "subscribePattern": pattern})
    assert "subscribePattern is no regular expression" in said


def test_empty_names_between_commas_are_passed_over_as_by_sparks_kafka_source() -> None:
    assert parse(subscribe=" t ,, u,").selection == Subscribe(("t", "u"))
    assert "option subscribe names no topic" in refused({**REQUIRED, "subscribe": " , "})
