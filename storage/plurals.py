"""Counts, sizes and times in messages."""

from __future__ import annotations


def counted(count: int, what: str, many: str = "") -> str:
    """`1 record`, `1,200 records`; `many` is a plural that does not end in s alone."""
    return f"{count:,} {what if count == 1 else many or what + 's'}"


def human_bytes(size_bytes: int) -> str:
    """`1023 B`, `1.5 MiB`."""
    size, unit = float(size_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"


def human_seconds(seconds: float) -> str:
    """`3 d 4 h`, `12 min`, `30 s`: the two largest units at most."""
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86_400)
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min" if minutes else f"{int(seconds)} s"
