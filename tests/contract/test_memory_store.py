"""The store in memory fails, waits and answers late to order."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from strandline.storage.errors import (
    AccessDenied,
    ObjectNotFound,
    TierUnavailable,
)
from tests.support.memory_store import Fault, MemoryStore, Timing

# --- the fake --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "call"),
    [
        ("put", lambda s: s.put("a", b"y")),
        ("get", lambda s: s.get("a")),
        ("get", lambda s: s.get_object("a")),
        ("get", lambda s: s.get_into("a", memoryview(bytearray(1)), start=0)),
        ("head", lambda s: s.head("a")),
        ("list", lambda s: s.list("")),
        ("list", lambda s: s.list_folders("")),
        ("delete", lambda s: s.delete(["a"])),
        ("check", lambda s: s.check()),
        ("abort_uploads", lambda s: s.abort_uploads("", older_than_ms=0)),
    ],
)
def test_every_operation_can_fail_to_order(
    operation: str, call: Callable[[MemoryStore], object]
) -> None:
    store = MemoryStore()
    store.put("a", b"x")
    fault = store.add_fault(Fault(operation=operation, error=AccessDenied))
    with pytest.raises(AccessDenied):
        call(store)
    assert fault.hit_count == 1
    call(store)
    assert store.count_requests(operation) >= 2


def test_a_fault_after_the_deed_leaves_the_deed_done() -> None:
    store = MemoryStore()
    store.add_fault(Fault(operation="put", error=TierUnavailable, moment=Timing.AFTER))
    with pytest.raises(TierUnavailable):
        store.put("a", b"x")
    assert store.get("a") == b"x"
    store.add_fault(Fault(operation="delete", error=TierUnavailable, moment=Timing.AFTER))
    with pytest.raises(TierUnavailable):
        store.delete(["a"])
    with pytest.raises(ObjectNotFound):
        store.get("a")


def test_faults_count_skip_and_choose_their_keys() -> None:
    store = MemoryStore()
    store.put("a", b"x")
    store.put("b", b"x")
    store.add_fault(Fault(key_pattern="a", error=TierUnavailable, skip=1, times=2))
    outcomes = []
    for key in ("a", "b", "a", "a", "a"):
        try:
            outcomes.append(store.get(key))
        except TierUnavailable:
            outcomes.append(b"!")
    assert outcomes == [b"x", b"x", b"!", b"!", b"x"]
    store.add_fault(Fault(error=TierUnavailable, times=-1))
    store.clear_faults()
    store.get("a")


def test_a_gate_holds_an_operation_until_it_is_opened() -> None:
    store = MemoryStore()
    gate = threading.Event()
    store.add_fault(Fault(operation="put", gate=gate))
    thread = threading.Thread(target=store.put, args=("a", b"x"))
    thread.start()
    assert store.keys() == []
    gate.set()
    thread.join(60)
    assert store.keys() == ["a"]
