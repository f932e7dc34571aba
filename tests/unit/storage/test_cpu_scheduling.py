"""A thread gets the slice that it asks for, alone, and only where nobody has chosen otherwise."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.storage.system.cpu_scheduling import SHORT_SLICE_NS, ask_for_slice, slice_ns_of
from tests.support.broker import BrokerProcess, eventually

# The first kernel whose scheduler has slices of single threads.
FIRST_RELEASE = (6, 12)


def kernel_has_slices() -> bool:
    major, minor = os.uname().release.split(".")[:2]
    return (int(major), int(minor.split("-")[0])) >= FIRST_RELEASE


def in_a_thread(work: Callable[[], None]) -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


def test_a_thread_has_its_slice_alone() -> None:
    before = slice_ns_of(0)

    def ask() -> None:
        assert ask_for_slice(SHORT_SLICE_NS)
        asked = SHORT_SLICE_NS if kernel_has_slices() else 0
        assert slice_ns_of(0) == asked
        assert slice_ns_of(os.getpid()) == before
        in_a_thread(started)

    def started() -> None:
        assert slice_ns_of(0) == before

    in_a_thread(ask)
    assert slice_ns_of(0) == before


def test_whoever_asks_for_a_short_slice_keeps_its_niceness() -> None:
    def ask() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 3)
        assert ask_for_slice(SHORT_SLICE_NS)
        assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == 3

    in_a_thread(ask)


def test_a_policy_that_somebody_chose_stays() -> None:
    def ask() -> None:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        assert not ask_for_slice(SHORT_SLICE_NS)
        assert os.sched_getscheduler(0) == os.SCHED_IDLE

    in_a_thread(ask)


@pytest.mark.slow
def test_the_brokers_loop_has_a_short_slice(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        expected = SHORT_SLICE_NS if kernel_has_slices() else 0
        eventually(lambda: slice_ns_of(broker.pid) == expected)
