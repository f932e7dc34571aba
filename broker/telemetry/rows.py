"""A row of the metrics page: a family of `families.py` with its samples."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from strandline.broker.telemetry.exposition import Family, Sample
from strandline.broker.telemetry.families import FAMILIES

# Partitions and groups whose state is computed between two checks of the time: a page must not
# delay clients.
LOOKED_UP_PER_STEP = 5
# Items that are only summed between two checks of the time.
ADDED_UP_PER_STEP = 500

# The value of label `topic` in the sum over all of them.
ALL_TOPICS = ""

Row: TypeAlias = tuple[Family, Iterable[Sample]]
# A family with its samples, or None: a step of lookups is done, let others run.
Step: TypeAlias = Row | None


def row_of(name: str, samples: Iterable[Sample]) -> Row:
    """Builds a row, one sample for each set of labels. Raises KeyError for an unknown family."""
    return FAMILIES[name], samples


def single(name: str, value: float) -> Row:
    """Builds the row of a family without labels."""
    return FAMILIES[name], [Sample(value)]
