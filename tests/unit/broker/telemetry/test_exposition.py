"""Pages that Prometheus' own parsers read."""

from __future__ import annotations

import math

import prometheus_client.openmetrics.parser
import prometheus_client.parser
import pytest

from strandline.broker.telemetry.exposition import (
    Family,
    Kind,
    LabelTexts,
    PageFormat,
    Sample,
    end_of,
    write_family,
)
from strandline.broker.telemetry.families import FAMILIES


def parsed(text: str, wanted: PageFormat) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Samples by name and labels, as the reference implementation of each format reads them."""
    parse = (
        prometheus_client.openmetrics.parser.text_string_to_metric_families
        if wanted is PageFormat.OPENMETRICS
        else prometheus_client.parser.text_string_to_metric_families
    )
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in parse(text):
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


@pytest.mark.parametrize("wanted", PageFormat)
def test_every_kind_is_read_by_the_reference_parser(wanted: PageFormat) -> None:
    rows = [
        (Family(name="a_total", kind=Kind.COUNTER, help='say "a"\\'), [Sample(3)]),
        (
            Family(name="b", kind=Kind.GAUGE, help="b", labels=("x", "y")),
            [Sample(1.5, ("", "1")), Sample(math.nan, ('"\\\n', "2"))],
        ),
        (
            Family(name="c", kind=Kind.SUMMARY, help="c", labels=("x",)),
            [
                Sample(0.5, ("r",), quantile=0.99),
                Sample(7.0, ("r",), "_sum"),
                Sample(2, ("r",), "_count"),
            ],
        ),
        (Family(name="none", kind=Kind.GAUGE, help="nothing"), []),
    ]
    text = "".join("".join(write_family(f, samples, wanted)) for f, samples in rows)
    found = parsed(text + end_of(wanted), wanted)
    assert found["a_total"][()] == 3
    assert found["b"][(("y", "1"),)] == 1.5
    assert math.isnan(found["b"][(("x", '"\\\n'), ("y", "2"))])
    assert found["c"][(("quantile", "0.99"), ("x", "r"))] == 0.5
    assert (found["c_sum"][(("x", "r"),)], found["c_count"][(("x", "r"),)]) == (7, 2)
    assert "none" not in text


def test_labels_that_families_share_are_written_as_each_names_them() -> None:
    texts: LabelTexts = {}
    bytes_in = FAMILIES["kafka_server_brokertopicmetrics_bytesin_total"]
    size = FAMILIES["kafka_log_log_size"]
    for _ in range(2):
        (line,) = write_family(size, [Sample(1, ("a", "0"))], PageFormat.TEXT, texts)
        assert line.endswith('kafka_log_log_size{topic="a",partition="0"} 1\n')
        (line,) = write_family(bytes_in, [Sample(2, ("a",))], PageFormat.TEXT, texts)
        assert line.endswith('bytesin_total{topic="a"} 2\n')
