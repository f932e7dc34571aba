"""Parses points in time and durations of the command line.

moment    2026-11-20T18:00:00Z  2026-11-20T18:00:00+01:00  2026-11-20 (UTC)  1763661600000 (ms)
duration  90s  15m  6h  7d  1h30m  PT1H30M  P7D (ISO 8601, as Kafka's tools take it)
"""

from __future__ import annotations

import re

from strandline.broker.tools.client.failures import WrongUse
from strandline.storage import moments
from strandline.storage.model import TimestampMs

# Timestamps are signed 64-bit numbers.
LAST_MOMENT_MS = 2**63 - 1
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_SHORT = re.compile(r"(?:\d{1,18}(?:ms|[smhdw]))+")
_SHORT_PART = re.compile(r"(\d{1,18})(ms|[smhdw])")
_ISO = re.compile(
    r"P(?:(\d{1,18})D)?(?:T(?:(\d{1,18})H)?(?:(\d{1,18})M)?(?:(\d{1,18})(?:\.\d+)?S)?)?"
)


def moment_ms(text: str) -> TimestampMs:
    """Milliseconds since the epoch; a moment without a zone is UTC. Raises WrongUse.

    Times before the epoch become the epoch: negative timestamps have special meanings on the wire.
    """
    if text.startswith("-"):
        raise WrongUse(f"{text!r} is no moment", remedy="write 2026-11-20T18:00:00Z")
    try:
        return max(0, moments.moment_ms(text))
    except ValueError as error:
        raise WrongUse(str(error)) from None


def moment_ago_ms(duration: str, now_ms: TimestampMs) -> TimestampMs:
    """Returns the moment that long before now, the epoch at the earliest. Raises WrongUse."""
    return max(0, now_ms - duration_ms(duration))


def duration_ms(text: str) -> int:
    """Parses a duration. Raises WrongUse."""
    if _SHORT.fullmatch(text):
        return sum(int(count) * _UNITS_MS[unit] for count, unit in _SHORT_PART.findall(text))
    iso = _ISO.fullmatch(text)
    if iso is not None and any(iso.groups()):
        counts = (int(part or 0) for part in iso.groups())
        return sum(c * _UNITS_MS[unit] for c, unit in zip(counts, "dhms", strict=True))
    raise WrongUse(f"{text!r} is no duration", remedy="write 90s, 15m, 6h, 7d or PT1H30M")
