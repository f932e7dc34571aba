"""The fixture of the change list: its writer and its reader."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.storage.tiering.changes.change_rig import World


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.thread.shutdown()
