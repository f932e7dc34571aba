"""A topic is removed while its partitions are at work."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from strandline.storage.errors import (
    AccessDenied,
)
from tests.support.memory_store import Fault
from tests.unit.storage.tiering.harness import (
    Rig,
    asynchronous,
)


@asynchronous
async def test_a_topic_that_is_deleted_during_a_copy_fails_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What is wrong with its files then is nobody's concern, and is not tried again."""
    async with Rig(tmp_path, grace_ms=0) as rig:
        rig.produce_segments(1)
        gate = threading.Event()
        rig.memory.add_fault(Fault(operation="put", key_pattern=r"\.log$", gate=gate))
        copying = asyncio.ensure_future(rig.manager.run_once())
        while not rig.memory.count_requests("put", r"\.log$"):
            await asyncio.sleep(0.001)
        rig.manager.delete_topic(rig.topic_info)
        rig.memory.add_fault(Fault(operation="put", key_pattern=r"\.meta$", error=AccessDenied))
        gate.set()
        await copying
        await rig.manager.run_once()
        assert "tiering does not succeed" not in caplog.text
        assert rig.memory.keys() == []
