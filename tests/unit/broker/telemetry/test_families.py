"""The table of metrics."""

from __future__ import annotations

from scripts.docs import metrics_docs
from strandline.broker.telemetry.exposition import (
    Kind,
)
from strandline.broker.telemetry.families import FAMILIES, SECTIONS


def test_names_follow_the_conventions() -> None:
    assert len(FAMILIES) == sum(len(section) for section in SECTIONS.values())
    for family in FAMILIES.values():
        assert family.name.endswith("_total") is (family.kind is Kind.COUNTER), family.name
        assert family.help.endswith("."), family.name


def test_every_metric_is_on_the_page() -> None:
    page = metrics_docs.render()
    for name in FAMILIES:
        assert f"| `{name}` |" in page
