"""Compiled kernels and the folder that they are kept in."""

from __future__ import annotations

import numba
import pytest

from strandline.storage.records.kernels import parts as kernel_parts


def test_without_a_cache_folder_kernels_are_compiled_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[dict[str, bool]] = []

    def njit(**options: bool) -> object:
        asked.append(options)
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: function

    monkeypatch.setattr(numba, "njit", njit)
    assert kernel_parts.compiled(max) is max
    assert asked == [{"cache": True, "nogil": True}, {"nogil": True}]
