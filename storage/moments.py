"""Points in time as people type them: ISO 8601, or milliseconds since 1970.

    2026-11-20T18:00:00Z  2026-11-20T18:00:00+01:00  2026-11-20 (UTC)  1763661600000

Kafka's tools and Spark's options take any number for milliseconds. Seconds would be a time in 1970,
before all records: a range would end before the first of them, or begin there.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from strandline.storage.model import TimestampMs

# Ten digits: as seconds the years 2001 to 2286, as milliseconds January to April 1970.
_SECONDS = range(10**9, 10**10)


def moment_ms(text: str) -> TimestampMs:
    """Milliseconds since 1970, of 64 bits; a time without a zone is UTC.

    Raises ValueError, whose message says what to write.
    """
    if re.fullmatch("[+-]?[0-9]{1,19}", text) and -(2**63) <= int(text) < 2**63:
        return checked_ms(int(text))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text[:100]!r} is no moment: write 2026-11-20T18:00:00Z or milliseconds since 1970"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def checked_ms(number: int) -> TimestampMs:
    """The number, if it may be meant as milliseconds. Raises ValueError for seconds."""
    if number in _SECONDS:
        moment = datetime.fromtimestamp(number / 1000, UTC)
        raise ValueError(
            f"{number} looks like seconds: in milliseconds write {number}000; the time in 1970 is"
            f" {moment.isoformat(timespec='milliseconds')}"
        )
    return number
