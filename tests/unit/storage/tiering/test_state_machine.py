"""Any order of what can happen to a tiered partition keeps every promise: see state_machine.py."""

from __future__ import annotations

import pytest

from tests.unit.storage.tiering.state_machine import (
    TieredPartition,
)


@pytest.mark.slow
class TestTieredPartition(TieredPartition.TestCase):  # type: ignore[misc]  # made by Hypothesis
    """The machine as pytest runs it."""
