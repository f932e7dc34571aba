"""Writes metrics as text: Prometheus' format 0.0.4, and OpenMetrics 1.0 on request.

    # HELP name what it is            a family: one name, one kind, samples with labels
    # TYPE name counter
    name{label="value"} 12

A counter's samples end in `_total`; in OpenMetrics the family's name does not. Pure: values in,
lines out, one family at a time, so that a page of a hundred thousand lines is never in memory as a
whole. Only the texts of labels are cached: ten families have the same partitions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias

_ESCAPES = {"\\": r"\\", '"': r"\"", "\n": r"\n"}
_TO_ESCAPE = re.compile(r'[\\"\n]')


class Kind(StrEnum):
    """The type of a metric family."""

    COUNTER = "counter"
    GAUGE = "gauge"
    SUMMARY = "summary"


class PageFormat(StrEnum):
    """The format of a page; the value is its content type."""

    TEXT = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One row of the table of metrics. `labels` are in the order in which samples have them."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


class Sample(NamedTuple):
    """One number. `suffix` is `_sum` or `_count` of a summary; `quantile` that of its quantiles.

    A label that does not apply is empty, and not written.
    """

    value: float
    labels: tuple[str, ...] = ()
    suffix: str = ""
    quantile: float | None = None


# Label sets as text, by their names and then by their values.
LabelTexts: TypeAlias = dict[tuple[str, ...], dict[tuple[str, ...], str]]


def write_family(
    family: Family, samples: Iterable[Sample], wanted: PageFormat, texts: LabelTexts | None = None
) -> Iterator[str]:
    """Yields the lines of one family, its head first; nothing if it has no samples.

    `texts` is a cache shared by the families of one page, empty for the first of them.
    """
    name = family.name
    if family.kind is Kind.COUNTER and wanted is PageFormat.OPENMETRICS:
        name = name.removesuffix("_total")
    head = f"# HELP {name} {_help(family.help, wanted)}\n# TYPE {name} {family.kind}\n"
    known = {} if texts is None else texts.setdefault(family.labels, {})
    name = family.name
    for value, labels, suffix, quantile in samples:
        text = known.get(labels)
        if text is None:
            text = known[labels] = _label_text(family, labels)
        if quantile is not None:
            text = f'{text[:-1]},quantile="{quantile}"}}' if text else f'{{quantile="{quantile}"}}'
        # Most numbers are whole.
        number = value if type(value) is int else _number(value)
        yield f"{head}{name}{suffix}{text} {number}\n"
        head = ""


def end_of(wanted: PageFormat) -> str:
    """Returns the end of a complete page."""
    return "# EOF\n" if wanted is PageFormat.OPENMETRICS else ""


def _label_text(family: Family, labels: tuple[str, ...]) -> str:
    assert len(labels) == len(family.labels), (family, labels)
    pairs = [
        f'{name}="{_escaped(value)}"'
        for name, value in zip(family.labels, labels, strict=True)
        if value
    ]
    return "{" + ",".join(pairs) + "}" if pairs else ""


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


def _help(text: str, wanted: PageFormat) -> str:
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return text.replace('"', r"\"") if wanted is PageFormat.OPENMETRICS else text
