"""Metrics as text: Prometheus' format 0.0.4, and OpenMetrics 1.0 for who asks for it.

    # HELP name what it is            a family: one name, one kind, samples with labels
    # TYPE name counter
    name{label="value"} 12

A counter's samples end in `_total`; OpenMetrics wants the family's name without it. Pure: values
in, lines out, a family at a time: a page of a hundred thousand lines need not be in memory.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple

from strandline.storage.values import dataclass

TEXT_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_ESCAPES = {"\\": r"\\", '"': r"\"", "\n": r"\n"}
_TO_ESCAPE = re.compile(r'[\\"\n]')


class Kind(StrEnum):
    """What may be done with a family's numbers."""

    COUNTER = "counter"
    GAUGE = "gauge"
    SUMMARY = "summary"


class Format(StrEnum):
    """How a page is written."""

    TEXT = TEXT_CONTENT_TYPE
    OPENMETRICS = OPENMETRICS_CONTENT_TYPE


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One row of the table of metrics. `labels` are in the order in which samples give them."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


class Sample(NamedTuple):
    """One number. `suffix` is `_sum` or `_count` of a summary; `quantile` that of its quantiles.

    A label that does not apply is the empty text, and not written.
    """

    value: float
    labels: tuple[str, ...] = ()
    suffix: str = ""
    quantile: float | None = None


def write_family(family: Family, samples: Iterable[Sample], wanted: Format) -> Iterator[str]:
    """The lines of one family, its head first; nothing if it has no samples."""
    name = family.name
    if family.kind is Kind.COUNTER and wanted is Format.OPENMETRICS:
        name = name.removesuffix("_total")
    head = f"# HELP {name} {_help(family.help, wanted)}\n# TYPE {name} {family.kind}\n"
    for sample in samples:
        yield head + _line(family, sample)
        head = ""


def end_of(wanted: Format) -> str:
    """What a whole page ends with."""
    return "# EOF\n" if wanted is Format.OPENMETRICS else ""


def _line(family: Family, sample: Sample) -> str:
    assert len(sample.labels) == len(family.labels), (family, sample)
    pairs = [
        f'{name}="{_escaped(value)}"'
        for name, value in zip(family.labels, sample.labels, strict=True)
        if value
    ]
    if sample.quantile is not None:
        pairs.append(f'quantile="{sample.quantile}"')
    labels = "{" + ",".join(pairs) + "}" if pairs else ""
    return f"{family.name}{sample.suffix}{labels} {_number(sample.value)}\n"


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)


def _escaped(text: str) -> str:
    return _TO_ESCAPE.sub(lambda match: _ESCAPES[match[0]], text)


def _help(text: str, wanted: Format) -> str:
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return text.replace('"', r"\"") if wanted is Format.OPENMETRICS else text
