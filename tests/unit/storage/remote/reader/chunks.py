"""Chunks, their bytes in a cache, and segments in files of a folder."""

from __future__ import annotations


def content(number: int) -> bytes:
    return bytes([number]) * 1000
