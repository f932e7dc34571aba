"""The lake beside a broker with random transactions: a consumer and the lake see the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.tiers.conftest import MakeBroker, archive, make_broker
from tests.system.tiers.tiered_broker import Archive
from tests.system.transactions.random_transactions import LOG, SETTINGS, RandomTransactions
from tests.system.transactions.same_rows import (
    ISOLATIONS,
    LakeStream,
    LakeTable,
    check_consumer,
    check_lake,
    scanned,
)

__all__ = ["archive", "make_broker"]

pytestmark = [pytest.mark.slow, pytest.mark.s3, pytest.mark.clients]

ROUNDS = 2


@pytest.fixture(params=[1, 2])
def history(
    make_broker: MakeBroker, archive: Archive, request: pytest.FixtureRequest
) -> Iterator[RandomTransactions]:
    broker = make_broker(settings=SETTINGS)
    broker.start()
    made = RandomTransactions(broker, archive, request.param)
    yield made
    made.close()


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
