"""A file of which a full disk takes a half."""

from __future__ import annotations

import errno
import os

import pytest


def half_then_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk takes half of the next write, and nothing more."""
    write, took = os.write, 0

    def fills_up(descriptor: int, data: bytes) -> int:
        nonlocal took
        if took:
            raise OSError(errno.ENOSPC, "No space left on device")
        took = write(descriptor, data[: len(data) // 2 - 1])
        return took

    monkeypatch.setattr(os, "write", fills_up)
