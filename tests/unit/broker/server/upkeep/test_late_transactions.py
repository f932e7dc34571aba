"""Since when a transaction is open: by its coordinator, by its records, or by what was seen."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from types import SimpleNamespace

from strandline.broker.coordination.transactions.transaction import Transaction, TransactionState
from strandline.broker.server.upkeep.late_transactions import LateTransactions
from strandline.storage.local.formats.producer_state import ProducerState
from strandline.storage.model import TopicPartition
from tests.support.manual_clock import ManualClock

P = TopicPartition("t", 0)
PRODUCER_ID = 7
OLD_MS = 1_000_000_000_000
TIMEOUT_MS_MAX = 60_000
MINUTE_MS = 60_000


@dataclass
class Watched:
    """A partition in which a producer has a transaction open since offset 10."""

    clock: ManualClock
    record_ms: int
    opened_end_offset: int
    coordinated: dict[int, Transaction] | None

    def led(self) -> Iterable[SimpleNamespace]:
        producers = ProducerState()
        producers.record_batch(PRODUCER_ID, 0, 0, 10, 0, self.record_ms, True)
        local = SimpleNamespace(producers=producers, opened_end_offset=self.opened_end_offset)
        return [SimpleNamespace(topic_partition=P, log=SimpleNamespace(local=local))]


def seen(watched: Watched, *, after_ms: int) -> LateTransactions:
    """What a watch knows that began now and looked again later."""
    late = LateTransactions(
        watched,  # type: ignore[arg-type]  # a fake of what is used of it
        timeout_ms_max=lambda: TIMEOUT_MS_MAX,
        coordinated=lambda: watched.coordinated,
        clock=watched.clock,
    )

    async def watch() -> None:
        for pause_ms in (0, after_ms):
            watched.clock.advance_ms(pause_ms)
            task = asyncio.create_task(late.watch_forever())
            for _ in range(10):
                await asyncio.sleep(0)
            task.cancel()

    asyncio.run(watch())
    return late


def transaction(begin_ms: int, partition: TopicPartition = P) -> dict[int, Transaction]:
    return {
        PRODUCER_ID: Transaction(
            transactional_id="x",
            producer_id=PRODUCER_ID,
            timeout_ms=TIMEOUT_MS_MAX,
            state=TransactionState.ONGOING,
            partitions=frozenset({partition}),
            started_ms=begin_ms,
            updated_ms=begin_ms,
        )
    }


def test_the_age_of_a_transaction_counts_from_its_begin_also_after_a_restart() -> None:
    clock = ManualClock()
    watched = Watched(clock, OLD_MS, 11, transaction(clock.now_ms() - 3000))
    late = seen(watched, after_ms=1000)
    assert late.open_s(P, 10) == 4
    assert late.partition_count == 0


def test_one_that_no_coordinator_knows_is_late_by_its_records_after_a_restart() -> None:
    clock = ManualClock()
    watched = Watched(clock, clock.now_ms() - 20 * MINUTE_MS, 11, {})
    late = seen(watched, after_ms=1000)
    assert late.open_s(P, 10) == 20 * 60 + 1
    assert late.partition_count == 1


def test_a_transaction_elsewhere_of_the_same_producer_says_nothing() -> None:
    clock = ManualClock()
    elsewhere = transaction(clock.now_ms(), TopicPartition("elsewhere", 0))
    watched = Watched(clock, clock.now_ms() - 20 * MINUTE_MS, 11, elsewhere)
    assert seen(watched, after_ms=1000).partition_count == 1


def test_a_program_that_writes_old_records_is_not_late_before_its_time() -> None:
    clock = ManualClock()
    watched = Watched(clock, OLD_MS, 5, {})
    assert seen(watched, after_ms=5 * MINUTE_MS).partition_count == 0
    late = seen(watched, after_ms=7 * MINUTE_MS)
    assert late.open_s(P, 10) == 7 * 60
    assert late.partition_count == 1


def test_nothing_is_late_while_the_coordinator_loads() -> None:
    clock = ManualClock()
    watched = Watched(clock, OLD_MS, 11, None)
    late = seen(watched, after_ms=7 * MINUTE_MS)
    assert late.partition_count == 0
    assert late.open_s(P, 10) == 0
