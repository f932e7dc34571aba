"""The child process that inspects: it answers, is replaced when it dies, and ends when idle."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from strandline.storage.errors import CorruptRecords
from strandline.storage.records.compression import Codec
from strandline.storage.system import child_process
from strandline.storage.system.child_process import IDLE_S
from strandline.storage.tiering.copy.inspection import (
    inspect_segment,
)
from strandline.storage.tiering.copy.inspector import (
    InspectionFailed,
    InspectionRequest,
    SegmentInspector,
)
from tests.support.manual_clock import ManualClock
from tests.unit.storage.tiering.copy.inspected import BASE_MS, batch

# Of a child on a loaded machine, which starts in a second on another one.
PATIENCE_S = 120.0

# --- the child process ------------------------------------------------------------------------


@pytest.mark.slow
def test_the_child_process_answers_facts_and_errors_and_ends_when_idle(path: Path) -> None:
    clock = ManualClock()
    inspector = SegmentInspector(clock)
    try:
        content = batch(0, [BASE_MS], codec=Codec.GZIP)
        path.write_bytes(content)
        request = InspectionRequest(path=path, base_offset=0, end_offset=1)
        expected = inspect_segment(path, base_offset=0, end_offset=1)
        assert inspector.inspect(request, timeout_s=PATIENCE_S) == expected
        path.write_bytes(content[:-1])
        with pytest.raises(CorruptRecords):
            inspector.inspect(request, timeout_s=PATIENCE_S)
        path.write_bytes(content)
        assert inspector.inspect(request, timeout_s=PATIENCE_S) == expected
        inspector.end_if_idle()
        assert "pid" in repr(inspector)
        clock.advance_ms(int(IDLE_S * 1000))
        inspector.end_if_idle()
        assert "pid" not in repr(inspector)
    finally:
        inspector.close()


@pytest.mark.slow
def test_a_child_that_is_too_slow_is_killed_and_replaced(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inspector = SegmentInspector(ManualClock())
    path.write_bytes(batch(0, [BASE_MS]))
    request = InspectionRequest(path=path, base_offset=0, end_offset=1)
    try:
        with pytest.raises(InspectionFailed, match="longer than 0 s"):
            inspector.inspect(request, timeout_s=0)
        assert inspector.inspect(request, timeout_s=PATIENCE_S).record_count == 1
    finally:
        inspector.close()


@pytest.mark.slow
def test_a_child_that_dies_is_replaced(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inspector = SegmentInspector(ManualClock())
    path.write_bytes(batch(0, [BASE_MS]))
    request = InspectionRequest(path=path, base_offset=0, end_offset=1)
    try:
        monkeypatch.setattr(sys, "executable", "/bin/false")
        with pytest.raises(InspectionFailed, match="died with status 1"):
            inspector.inspect(request, timeout_s=PATIENCE_S)
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
        with pytest.raises(InspectionFailed, match="cannot start"):
            inspector.inspect(request, timeout_s=PATIENCE_S)
        monkeypatch.undo()
        assert inspector.inspect(request, timeout_s=PATIENCE_S).record_count == 1
    finally:
        inspector.close()


@pytest.mark.slow
def test_closing_does_not_wait_for_an_inspection(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A child that never answers.
    monkeypatch.setattr(
        child_process, "program_of", lambda _module: f"import time; time.sleep({2 * PATIENCE_S})"
    )
    inspector = SegmentInspector(ManualClock())
    path.write_bytes(batch(0, [BASE_MS]))
    request = InspectionRequest(path=path, base_offset=0, end_offset=1)
    with ThreadPoolExecutor(1) as executor:
        running = executor.submit(inspector.inspect, request, timeout_s=PATIENCE_S)
        while "pid" not in repr(inspector):
            assert not running.done(), running.exception()
        inspector.close()
        with pytest.raises(InspectionFailed, match="ended by SIGKILL"):
            running.result(timeout=PATIENCE_S)
    with pytest.raises(InspectionFailed, match="stops"):
        inspector.inspect(request, timeout_s=PATIENCE_S)
