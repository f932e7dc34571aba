"""A line of the record: a JSON object in printable ASCII, of bounded size.

{"time":"2026-01-31T12:00:00.123Z","event":"login","result":"accepted","principal":"User:alice",...}
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import islice

# A group's name may have 32,767 characters.
TEXT_MAX = 2000
# Properties of one change.
ENTRIES_MAX = 200


def line_of(time_ms: int, event: str, fields: Mapping[str, object]) -> str:
    """Renders an event; names and values may come from clients."""
    when = datetime.fromtimestamp(time_ms / 1000, UTC)
    line: dict[str, object] = {
        "time": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "event": event,
    }
    for name, value in fields.items():
        line[name] = _bounded(value)
    return json.dumps(line, separators=(",", ":"), default=str)


def cut(text: str, length_max: int = TEXT_MAX) -> str:
    """Returns the text, or its beginning and its length."""
    if len(text) <= length_max:
        return text
    return f"{text[:length_max]}... ({len(text)} characters)"


def _bounded(value: object) -> object:
    if isinstance(value, str):
        return cut(value)
    if isinstance(value, float) and not math.isfinite(value):
        # JSON has no such numbers.
        return str(value)
    if isinstance(value, Mapping):
        shown = {cut(str(name)): _bounded(one) for name, one in islice(value.items(), ENTRIES_MAX)}
        if len(value) > ENTRIES_MAX:
            shown["..."] = f"{len(value)} in all"
        return shown
    return value
