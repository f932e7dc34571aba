"""The local tier's tests do not wait for the disk."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def _no_fsync() -> Iterator[None]:
    """fsync is not needed to survive what these tests do; the order of syncs has its own test.

    Module-scoped, as hypothesis does not like function-scoped fixtures around its examples.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _descriptor: None)
        yield
