"""Random transactions: the lake, a replica and a restored broker see what a consumer sees."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import eventually
from tests.support.heavy import heavy
from tests.system.tiers.conftest import MakeBroker, archive, make_broker
from tests.system.tiers.replicas import start_replica
from tests.system.tiers.restoring import run_restore
from tests.system.tiers.tiered_broker import WAIT_S, Archive, TieredBroker
from tests.system.transactions.histories.random_transactions import (
    LOG,
    PARTITIONS,
    SETTINGS,
    RandomTransactions,
    Rows,
)
from tests.system.transactions.histories.same_rows import (
    ISOLATIONS,
    LakeStream,
    LakeTable,
    check_consumer,
    check_lake,
    consumed,
    scanned,
)

__all__ = ["archive", "make_broker"]

pytestmark = [pytest.mark.slow, pytest.mark.s3, pytest.mark.clients]

ROUNDS = 2


@pytest.fixture
def history(
    make_broker: MakeBroker, archive: Archive, request: pytest.FixtureRequest
) -> Iterator[RandomTransactions]:
    broker = make_broker(settings=SETTINGS)
    broker.start()
    made = RandomTransactions(broker, archive, request.param)
    yield made
    made.close()


@pytest.mark.parametrize("history", [heavy(1), heavy(2)], indirect=True)
def test_scans_streams_and_tables_see_of_random_transactions_what_a_consumer_sees(
    history: RandomTransactions, tmp_path: Path
) -> None:
    bucket = history.broker.bucket
    streams = [(one, LakeStream(bucket, one)) for one in ISOLATIONS]
    tables = [(one, LakeTable(bucket, one, tmp_path)) for one in ISOLATIONS]
    followers: list[tuple[str, LakeStream | LakeTable]] = [*streams, *tables]
    for is_settled in history.moments(ROUNDS):
        for _, follower in followers:
            follower.follow()
        if is_settled:
            check_consumer(history)
            check_lake(history, scanned(bucket))
    for isolation, follower in followers:
        everything = history.model.ever(LOG, committed=ISOLATIONS[isolation])
        # Once each, though transactions were open whenever it came by.
        assert sorted(follower.rows) == everything, (follower, isolation)


@pytest.mark.parametrize(
    ("history", "rounds"), [heavy(4, 1), heavy(4, ROUNDS)], indirect=["history"]
)
def test_a_replica_and_a_restored_broker_see_of_random_transactions_what_a_consumer_sees(
    history: RandomTransactions, make_broker: MakeBroker, rounds: int
) -> None:
    replica = start_replica(make_broker)
    seen: list[tuple[int, Rows]] = []
    for is_settled in history.moments(rounds):
        seen += [
            (partition, consumed(replica.bootstrap, (LOG, partition), "read_committed"))
            for partition in range(PARTITIONS[LOG])
        ]
        if is_settled:
            check_consumer(history)
    ever = history.model.ever(LOG, committed=True)
    for partition, rows in seen:
        # All that is committed between the first and the last of them, and nothing else.
        offsets = [offset for offset, _ in rows] or [0]
        assert not rows or offsets == [
            offset
            for one, offset in ever
            if one == partition and offsets[0] <= offset <= offsets[-1]
        ]
    wanted = rows_at(history.broker)
    eventually(lambda: rows_at(replica) == wanted, timeout_s=WAIT_S)
    replica.kill()
    history.broker.kill()
    restored = make_broker(name="restored", settings=SETTINGS)
    outcome = run_restore(restored)
    assert outcome.returncode == 0, outcome.stderr
    restored.start()
    assert rows_at(restored) == wanted


def rows_at(broker: TieredBroker) -> list[Rows]:
    """What consumers of either isolation get of each partition."""
    return [
        consumed(broker.bootstrap, (LOG, partition), isolation)
        for partition in range(PARTITIONS[LOG])
        for isolation in ISOLATIONS
    ]
