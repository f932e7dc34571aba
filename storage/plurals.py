"""Pluralised counts for messages."""

from __future__ import annotations


def counted(count: int, what: str, many: str = "") -> str:
    """`1 record`, `1,200 records`; `many` is a plural that does not end in s alone."""
    return f"{count:,} {what if count == 1 else many or what + 's'}"
