"""A fetch held back for live traffic: what is there does not wait for what is not."""

from __future__ import annotations

import asyncio
import gc
import itertools
import weakref
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from strandline.broker.cluster.replicas.partition import Partition
from strandline.broker.cluster.replicas.traffic import TopicTraffic
from strandline.broker.handlers.fetch.cold_fetches import ColdFetches
from strandline.broker.handlers.fetch.partition_answers import error_answer
from strandline.broker.handlers.fetch.plan import FetchPass
from strandline.broker.handlers.fetch.sessions import WantedPartition
from strandline.broker.handlers.fetch.unanswered import READERS_MAX, UnansweredReads
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.telemetry.requests import RemoteWaits
from strandline.storage.errors import AccessDenied, ObjectNotFound, TierUnavailable
from strandline.storage.model import TopicPartition
from strandline.storage.tiering.log.cold_read import RemoteRead
from strandline.storage.tiering.policy.quota import QuotaExceeded
from tests.support.manual_clock import ManualClock
from tests.unit.broker.handlers.fetch.fetch_rig import plan_of_nothing

STORAGE_ERROR = ErrorCode.KAFKA_STORAGE_ERROR
# Longer than any test: who waits for it fails.
HOURS_MS = 10 * 3_600_000


class _Watched:
    """A partition whose archive is read by `read_remote`."""

    def __init__(self, read_remote: object) -> None:
        self.log = SimpleNamespace(read_remote=read_remote, log_start_offset=0)
        self.traffic = TopicTraffic()
        self.topic_partition = TopicPartition("t", 0)
        self.high_watermark = self.last_stable_offset = 0


async def _never(*_: object, **__: object) -> None:
    await asyncio.Event().wait()


def _found(*, total_bytes: int) -> FetchPass:
    """A look that found so much, and a partition whose download does not begin."""
    wanted = WantedPartition("t", None, 0, 0, 1 << 20, -1, -1)
    partition = cast(Partition, _Watched(_never))
    found = FetchPass(total_bytes=total_bytes)
    found.answers.append((wanted, partition, error_answer(0, 0)))
    found.remote.append(0)
    return found


def _fetches(
    held_bytes_max: int | None,
    *,
    wait_ms_max: int = HOURS_MS,
    waits: RemoteWaits | None = None,
    clock: ManualClock | None = None,
) -> ColdFetches:
    return ColdFetches(
        lambda *_: error_answer(0, 0),
        wait_ms_max=lambda: wait_ms_max,
        bytes_max=lambda: held_bytes_max,
        waits=RemoteWaits() if waits is None else waits,
        clock=clock or ManualClock(),
    )


def _ends(fetches: ColdFetches, found: FetchPass, *, timeout_s: float = 60.0) -> bool:
    async def main() -> bool:
        coming = fetches.read(plan_of_nothing(), found)
        assert coming is not None
        reading = asyncio.ensure_future(coming)
        done, _ = await asyncio.wait([reading], timeout=timeout_s)
        reading.cancel()
        return bool(done)

    return asyncio.run(main())


def test_held_records_that_are_there_do_not_wait_for_a_download_that_may_not_begin() -> None:
    found = _found(total_bytes=1000)
    assert _ends(_fetches(held_bytes_max=1 << 20), found)
    ((_, _, answer),) = found.answers
    assert answer.records_bytes == 0


def test_held_with_nothing_there_it_waits_as_ever() -> None:
    assert not _ends(_fetches(held_bytes_max=1 << 20), _found(total_bytes=0), timeout_s=0.1)


def test_held_with_nothing_there_it_is_answered_empty_at_the_end_of_its_wait() -> None:
    found = _found(total_bytes=0)
    assert _ends(_fetches(held_bytes_max=1 << 20, wait_ms_max=1), found)
    ((_, _, answer),) = found.answers
    assert (answer.error_code, answer.records_bytes) == (0, 0)


def test_the_cold_partitions_of_a_fetch_are_read_at_the_same_time() -> None:
    """Each read ends when all have begun."""
    found = _found(total_bytes=0)
    ((wanted, _, answer),) = found.answers
    all_begun = asyncio.Event()
    begun: list[int] = []

    async def read_remote(*_: object, **__: object) -> RemoteRead:
        begun.append(1)
        if len(begun) == len(found.answers):
            all_begun.set()
        await all_begun.wait()
        return RemoteRead(buffers=(), size_bytes=0, next_offset=0)

    partition = _Watched(read_remote)
    found.answers[:] = [(wanted, cast(Partition, partition), answer)] * 3
    found.remote[:] = range(3)
    assert _ends(_fetches(held_bytes_max=None), found)
    assert len(begun) == 3


def test_a_fetch_that_waits_is_counted_until_it_ends_and_one_whose_time_was_over_for_ever() -> None:
    waits = RemoteWaits()
    fetches = _fetches(held_bytes_max=None, wait_ms_max=1, waits=waits)
    for expired in (1, 2):
        assert _ends(fetches, _found(total_bytes=0))
        assert (waits.waiting, waits.expired) == (0, expired)

    async def given_up() -> int:
        patient = _fetches(held_bytes_max=None, waits=waits)
        coming = patient.read(plan_of_nothing(), _found(total_bytes=0))
        assert coming is not None
        reading = asyncio.ensure_future(coming)
        await asyncio.sleep(0)
        waiting = waits.waiting
        reading.cancel()
        await asyncio.wait([reading])
        return waiting

    assert asyncio.run(given_up()) == 1
    assert (waits.waiting, waits.expired) == (0, 2)
    # What makes way for live traffic has not used up its time.
    assert _ends(_fetches(held_bytes_max=1 << 20, waits=waits), _found(total_bytes=1000))
    assert (waits.waiting, waits.expired) == (0, 2)


def test_a_held_answer_is_bounded_with_what_it_has_already() -> None:
    asked: list[int] = []

    async def nothing_there(_: int, *, bytes_max: int, **__: object) -> RemoteRead:
        asked.append(bytes_max)
        return RemoteRead(buffers=(), size_bytes=0, next_offset=0)

    async def main(held_bytes_max: int | None) -> None:
        found = _found(total_bytes=400)
        ((wanted, _, answer),) = found.answers
        partition = _Watched(nothing_there)
        found.answers[0] = (wanted, cast(Partition, partition), answer)
        assert _fetches(held_bytes_max).read(plan_of_nothing(), found) is None

    for held_bytes_max in (1000, None):
        asyncio.run(main(held_bytes_max))
    assert asked == [600, (1 << 20) - 400]


def test_reads_that_fail_in_turns_for_two_reasons_are_told_once_each(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Two consumers, of which one stands before an object that is gone."""
    errors = itertools.cycle(
        [ObjectNotFound("a.log", "get", "404"), AccessDenied("b.log", "get", "403")]
    )

    async def fail(*_: object, **__: object) -> None:
        raise next(errors)

    partition = SimpleNamespace(
        log=SimpleNamespace(read_remote=fail, log_start_offset=0),
        traffic=SimpleNamespace(remote_fetch_errors=0),
        topic_partition=TopicPartition("t", 0),
    )
    fetches = _fetches(held_bytes_max=None)
    for _ in range(6):
        found = _found(total_bytes=0)
        ((wanted, _, answer),) = found.answers
        found.answers[0] = (wanted, cast(Partition, partition), answer)
        assert _ends(fetches, found)
    assert partition.traffic.remote_fetch_errors == 6
    assert [record.message for record in caplog.records] == ["cold read failed"] * 2


async def _fails_at_once(*_: object, **__: object) -> None:
    raise TierUnavailable("t", "read", "over the quota")


async def _fails_later(*_: object, **__: object) -> None:
    await asyncio.sleep(0)
    raise ObjectNotFound("a.log", "get", "404")


@pytest.mark.parametrize("read_remote", [_fails_at_once, _fails_later, _never])
def test_a_read_that_fails_or_is_late_leaves_nothing_to_the_collector(read_remote: object) -> None:
    """What others of the same answer have read would keep its memory so long."""

    async def main() -> None:
        partition = _Watched(read_remote)
        watch = weakref.ref(partition)
        found = _found(total_bytes=0)
        ((wanted, _, answer),) = found.answers
        found.answers[0] = (wanted, cast(Partition, partition), answer)
        coming = _fetches(None, wait_ms_max=1).read(plan_of_nothing(), found)
        assert coming is not None
        await coming
        del coming, found, partition
        await asyncio.sleep(0)
        assert watch() is None

    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()


# --- reads in vain -------------------------------------------------------------------------------


def _codes(
    read_remote: object,
    *,
    times: int,
    every_ms: int,
    held_bytes_max: int | None = None,
    offsets: Iterable[int] = (0,),
) -> list[int]:
    """The error codes of a reader that asks again and again."""
    clock = ManualClock()
    fetches = _fetches(held_bytes_max, wait_ms_max=1, clock=clock)
    codes, at = [], itertools.cycle(offsets)
    for _ in range(times):
        found = _found(total_bytes=0)
        ((wanted, _, answer),) = found.answers
        wanted = replace(wanted, fetch_offset=next(at))
        found.answers[0] = (wanted, cast(Partition, _Watched(read_remote)), answer)
        assert _ends(fetches, found)
        codes.append(found.answers[0][2].error_code)
        clock.advance_ms(every_ms)
    return codes


async def _is_over_quota(*_: object, **__: object) -> None:
    await asyncio.sleep(0)
    raise QuotaExceeded("t-0", "read", "over the fetch quota")


def test_what_cannot_be_read_is_an_error_after_some_seconds_and_not_empty_for_ever() -> None:
    assert _codes(_fails_at_once, times=5, every_ms=2000) == [0, 0, 0, *[STORAGE_ERROR] * 2]


def test_a_store_that_never_answers_is_an_error_as_well_and_a_slow_one_is_not() -> None:
    assert _codes(_never, times=4, every_ms=14_000) == [0, 0, 0, STORAGE_ERROR]
    # Two readers in turns, each as slow: a reader is known by its offset.
    assert _codes(_never, times=4, every_ms=9_000, offsets=(0, 1)) == [0] * 4


def test_what_waits_for_a_quota_or_for_live_traffic_is_no_error_however_long_it_takes() -> None:
    assert _codes(_is_over_quota, times=4, every_ms=20_000) == [0] * 4
    assert _codes(_never, times=4, every_ms=20_000, held_bytes_max=1 << 20) == [0] * 4


def test_a_reader_that_comes_back_much_later_begins_anew() -> None:
    assert _codes(_fails_at_once, times=3, every_ms=61_000) == [0] * 3


def test_a_reader_that_got_its_records_begins_anew_and_few_readers_are_remembered() -> None:
    reads = UnansweredReads()
    where = TopicPartition("t", 0)
    assert [reads.unanswered((where, 5), now_s) for now_s in (0, 4, 9)] == [0, 4, 9]
    reads.answered((where, 5))
    assert reads.unanswered((where, 5), 10) == 0
    for offset in range(2 * READERS_MAX):
        reads.unanswered((where, offset), 11)
    assert len(reads) == READERS_MAX
