"""A store for a metadata log."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.remote.open_store import open_store
from tests.support.memory_store import MemoryStore


@pytest.fixture(params=["memory", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "memory":
        return MemoryStore()
    (tmp_path / "store").mkdir()
    return open_store(f"file://{tmp_path / 'store'}")
