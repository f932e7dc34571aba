"""The local tier's tests do not wait for the disk."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from strandline.storage.local.segment import segment as segment_module
from strandline.storage.local.segment.open_files import OpenSegments


@pytest.fixture(scope="module", autouse=True)
def _no_fsync() -> Iterator[None]:
    """fsync is not needed to survive what these tests do; the order of syncs has its own test.

    Module-scoped, as hypothesis does not like function-scoped fixtures around its examples.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _descriptor: None)
        yield


@pytest.fixture
def two_at_most(monkeypatch: pytest.MonkeyPatch) -> OpenSegments:
    bound = OpenSegments(2)
    monkeypatch.setattr(segment_module, "OPEN_SEALED", bound)
    return bound
