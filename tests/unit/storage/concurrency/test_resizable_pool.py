"""A pool of threads whose bound changes while it works."""

from __future__ import annotations

import asyncio
import gc
import queue
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from pathlib import Path

import pytest

from strandline.broker.config.loading import load_config
from strandline.broker.server.workers import (
    LOOKUP_THREADS,
    RECORD_THREADS,
    SYNC_THREADS,
    FolderPools,
    Workers,
)
from strandline.storage.concurrency import resizable_pool
from strandline.storage.concurrency.resizable_pool import ResizablePool
from strandline.storage.errors import OutOfResources
from tests.support.broker import eventually

WAIT_S = 60.0


class Jobs:
    """Jobs that last until they are told to end, and how many ran at once."""

    def __init__(self, pool: ResizablePool) -> None:
        self._pool = pool
        self._changed = threading.Condition()
        self._running = 0
        self._ends = 0
        self.most = 0

    def start(self, count: int) -> list[Future[None]]:
        return [self._pool.submit(self._last) for _ in range(count)]

    def end(self, count: int) -> None:
        with self._changed:
            self._ends += count
            self._changed.notify_all()

    def await_running(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._running == count, WAIT_S), self._running

    def _last(self) -> None:
        with self._changed:
            self._running += 1
            self.most = max(self.most, self._running)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._ends > 0, WAIT_S)
            self._ends -= 1
            self._running -= 1
            self._changed.notify_all()


@pytest.fixture
def pool() -> Iterator[ResizablePool]:
    made = ResizablePool(2, "tried")
    yield made
    made.shutdown(cancel_futures=True)


def test_a_pool_that_was_refused_its_threads_works_on_as_soon_as_it_gets_one(
    pool: ResizablePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ulimit -u` reached for a while: as often as the pool is large, and then once more."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    ran: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for number in range(3):
            with pytest.raises(OutOfResources, match="can't start new thread"):
                pool.submit(ran.append, number)
    assert (pool.waiting_count, pool.idle_part) == (0, 1.0)
    pool.submit(ran.append, 3).result(WAIT_S)
    jobs = Jobs(pool)
    futures = jobs.start(3)
    jobs.await_running(2)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        # Those that run take it when they have time.
        pool.resize(5)
        futures += jobs.start(1)
    jobs.end(4)
    for future in futures:
        future.result(WAIT_S)
    # What was refused was not done behind the caller's back.
    assert ran == [3]


def test_a_thread_that_finds_no_memory_to_begin_with_is_one_that_was_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`Thread.start` waits for it for ever; here until it begins after all, which is too late."""
    pool = ResizablePool(1, "memory")
    start, found, began = threading.Thread.start, threading.Event(), threading.Event()

    def wait(thread: threading.Thread) -> None:
        assert found.wait(WAIT_S)
        start(thread)
        began.set()

    ran: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(resizable_pool, "BEGIN_TURN_S", 0.01)
        patch.setattr(threading.Thread, "start", wait)
        with pytest.raises(OutOfResources, match=r"cannot begin another thread: .* no memory"):
            pool.submit(ran.append, 1)
    found.set()
    assert began.wait(WAIT_S)
    pool.submit(ran.append, 2).result(WAIT_S)
    jobs = Jobs(pool)
    futures = jobs.start(2)
    jobs.await_running(1)
    jobs.end(2)
    for future in futures:
        future.result(WAIT_S)
    assert (ran, jobs.most) == ([2], 1)
    pool.shutdown()


def test_a_pool_that_was_refused_threads_while_it_worked_has_all_of_them_later(
    pool: ResizablePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    jobs = Jobs(pool)
    futures = jobs.start(1)
    jobs.await_running(1)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        futures += jobs.start(3)
    jobs.end(4)
    for future in futures:
        future.result(WAIT_S)
    # It does with less as long as it must, and no longer.
    futures = jobs.start(2)
    jobs.await_running(2)
    jobs.end(2)
    for future in futures:
        future.result(WAIT_S)


LATER = {
    "syncs": SYNC_THREADS,
    "lookups": LOOKUP_THREADS,
    "records": RECORD_THREADS,
    "cleaner": 3,
    "decoding": 1,
    "moves": 1,
}


@pytest.mark.parametrize("name", LATER)
def test_a_pool_of_the_broker_gets_over_a_thread_that_it_was_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    workers = Workers.make(load_config(None, ["log.cleaner.threads=3"]), ResizablePool)
    ran: list[int] = []
    try:
        found = getattr(workers, name)
        pool: ResizablePool = found.of(Path("a")) if isinstance(found, FolderPools) else found
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises((OutOfResources, RuntimeError)):
                pool.submit(ran.append, 1)
        jobs = Jobs(pool)
        futures = jobs.start(1)
        jobs.await_running(1)
        jobs.end(1)
        futures += jobs.start(LATER[name])
        jobs.await_running(LATER[name])
        jobs.end(LATER[name])
        for future in futures:
            future.result(WAIT_S)
        assert ran == [], "what was refused was not done"
    finally:
        workers.stop()


class GatedQueue(queue.SimpleQueue[object]):
    """One whose readers come to it late."""

    def __init__(self, gate: threading.Event) -> None:
        super().__init__()
        self._gate = gate

    def get(self, block: bool = True, timeout: float | None = None) -> object:
        assert self._gate.wait(WAIT_S)
        return super().get(block, timeout)


def test_what_no_thread_has_taken_yet_is_done_though_another_thread_is_refused(
    pool: ResizablePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine a thread that was begun comes to its work much later."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    gate = threading.Event()
    monkeypatch.setattr(pool, "_tokens", GatedQueue(gate))
    done: list[int] = []
    futures = [pool.submit(done.append, 1)]
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        futures.append(pool.submit(done.append, 2))
    gate.set()
    for future in futures:
        future.result(WAIT_S)
    pool.shutdown(wait=True)
    assert (done, pool.idle_part) == ([1, 2], 1.0)


def test_a_shutdown_that_waits_waits_for_what_began_before_threads_were_refused(
    pool: ResizablePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    jobs = Jobs(pool)
    (running,) = jobs.start(1)
    jobs.await_running(1)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        (waiting,) = jobs.start(1)
    ending = threading.Timer(0.05, jobs.end, (2,))
    ending.start()
    pool.shutdown(wait=True)
    assert running.done()
    assert waiting.done()
    ending.join()


def test_no_more_jobs_run_than_the_pool_has_room_for(pool: ResizablePool) -> None:
    jobs = Jobs(pool)
    futures = jobs.start(5)
    jobs.await_running(2)
    jobs.end(5)
    for future in futures:
        future.result(WAIT_S)
    assert jobs.most == 2


def test_what_waits_and_what_is_idle_is_told(pool: ResizablePool) -> None:
    jobs = Jobs(pool)
    assert pool.idle_part == 1
    futures = jobs.start(5)
    jobs.await_running(2)
    assert (pool.waiting_count, pool.idle_part) == (3, 0)
    pool.resize(8)
    jobs.await_running(5)
    assert (pool.waiting_count, pool.idle_part) == (0, 3 / 8)
    jobs.end(5)
    for future in futures:
        future.result(WAIT_S)


def test_a_pool_that_grows_starts_what_waits_at_once(pool: ResizablePool) -> None:
    jobs = Jobs(pool)
    futures = jobs.start(5)
    jobs.await_running(2)
    pool.resize(4)
    jobs.await_running(4)
    jobs.end(5)
    for future in futures:
        future.result(WAIT_S)
    assert jobs.most == 4


def test_a_pool_that_shrinks_ends_what_runs_and_holds_the_new_bound(pool: ResizablePool) -> None:
    jobs = Jobs(pool)
    futures = jobs.start(6)
    jobs.await_running(2)
    pool.resize(1)
    jobs.end(2)
    jobs.await_running(1)
    jobs.most = 0
    jobs.end(4)
    for future in futures:
        future.result(WAIT_S)
    assert jobs.most <= 1


def test_a_job_that_fails_tells_who_asked_and_takes_no_room(pool: ResizablePool) -> None:
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            pool.submit(lambda: 1 // 0).result(WAIT_S)
    assert pool.submit(lambda: 7).result(WAIT_S) == 7


def test_arguments_of_a_job_that_failed_are_free_without_a_garbage_collection(
    pool: ResizablePool,
) -> None:
    """They may be the memory that other jobs wait for."""

    class Argument:
        pass

    def fail(given: Argument) -> None:
        raise ValueError(given)

    async def failed() -> weakref.ref[Argument]:
        argument = Argument()
        failing = asyncio.get_running_loop().run_in_executor(pool, fail, argument)
        await asyncio.wait((failing,))
        error = failing.exception()
        assert isinstance(error, ValueError)
        # What an owner of the error does.
        error.__traceback__ = None
        error.args = ()
        return weakref.ref(argument)

    gc.disable()
    try:
        left = asyncio.run(failed())
        eventually(lambda: left() is None)
    finally:
        gc.enable()


def test_what_waits_is_cancelled_by_a_shutdown_that_says_so() -> None:
    pool = ResizablePool(1, "ended")
    jobs = Jobs(pool)
    running, waiting = jobs.start(2)
    jobs.await_running(1)
    pool.shutdown(wait=False, cancel_futures=True)
    with pytest.raises(CancelledError):
        waiting.result(WAIT_S)
    jobs.end(1)
    running.result(WAIT_S)
    with pytest.raises(RuntimeError):
        pool.submit(lambda: None)
