"""The checkers of the simulator find faults that are planted: in one of a few worlds, each."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from strandline.broker.coordination.classic.group import Group
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.local.log.log import LocalLog
from tests.sim import test_coordinators
from tests.sim.cluster import VirtualBroker, World, play
from tests.sim.test_coordinators import groups, transactions

WORLDS = 4


def check_complains(
    scenario: Callable[[World], Coroutine[Any, Any, None]], folder: Path, *words: str
) -> None:
    """The checker says one of the words in one of the worlds: the first such one is the last."""
    found: list[BaseException] = []
    for seed in range(WORLDS):
        try:
            play(seed, folder / str(seed), scenario)
        except* AssertionError as errors:
            found += errors.exceptions
        if any(word in str(error) for error in found for word in words):
            return
    pytest.fail(f"in no world one of {words}, but {found}")


def forgetful_broker(world: World) -> VirtualBroker:
    """It acknowledges before its logs are synced, as Kafka's own defaults do."""
    return world.broker(
        offsets_topic_num_partitions="2",
        transaction_state_log_num_partitions="2",
        group_initial_rebalance_delay_ms="0",
    )


@pytest.mark.slow
@pytest.mark.parametrize("scenario", [groups, transactions])
def test_acknowledged_before_the_sync(
    scenario: Callable[[World], Coroutine[Any, Any, None]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(test_coordinators, "durable_broker", forgetful_broker)
    check_complains(scenario, tmp_path, "lost")


@pytest.mark.slow
def test_a_commit_of_a_member_that_was_expelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Group, "check_commit", lambda *_, **__: ErrorCode.NONE)
    check_complains(groups, tmp_path, "two owners", "lost")


@pytest.mark.slow
def test_an_aborted_transaction_that_readers_are_not_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalLog, "aborted_transactions", lambda *_: [])
    check_complains(transactions, tmp_path, "aborted, and read")
