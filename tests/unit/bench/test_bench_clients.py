"""The benchmark's consumer: where its threads run."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from types import ModuleType

import pytest

# Nobody answers there, and nobody has to.
NOWHERE = "127.0.0.1:1"


@pytest.fixture
def clients() -> ModuleType:
    # It compiles its loops when it is loaded, and every worker loads every test.
    from bench.clients import rdkafka

    return rdkafka


@pytest.fixture
def cores_of_the_taker(clients: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """The cores of the thread that takes records, each time that it begins to."""
    from bench.clients.librdkafka import rd_topic_new

    seen: list[set[int]] = []

    def take(*_: object) -> None:
        seen.append(os.sched_getaffinity(0))

    def topic_without_metadata(handle: int, name: str) -> int:
        return rd_topic_new(handle, name.encode(), 0)

    monkeypatch.setattr(clients, "new_topic", topic_without_metadata)
    monkeypatch.setattr(clients, "consume_loop", take)
    monkeypatch.setattr(clients, "latency_loop", lambda *_: 0)
    return seen


def threads() -> set[int]:
    return {int(task.name) for task in Path("/proc/self/task").iterdir()}


def cores_of(some: set[int]) -> list[set[int]]:
    """The cores of each that still runs: any thread of the process may end at any time."""
    found = []
    for thread in some:
        with contextlib.suppress(ProcessLookupError):
            found.append(os.sched_getaffinity(thread))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("on_one_core", [True, False])
def test_the_threads_of_a_consumer_share_one_core_if_asked_to_and_its_caller_goes_back(
    clients: ModuleType, cores_of_the_taker: list[set[int]], on_one_core: bool
) -> None:
    allowed = os.sched_getaffinity(0)
    wanted = {min(allowed)} if on_one_core else allowed
    load = clients.ConsumeLoad(topic="t", count=0, on_one_core=on_one_core)
    before = threads()
    with clients.consumer(NOWHERE, load) as consumer:
        of_the_client = cores_of(threads() - before)
        assert of_the_client
        assert all(cores == wanted for cores in of_the_client)
        assert os.sched_getaffinity(0) == allowed
        cores_of_the_taker.clear()
        consumer.run()
        assert cores_of_the_taker == [wanted]
        assert os.sched_getaffinity(0) == allowed


@pytest.mark.slow
def test_a_consumer_that_cannot_be_made_leaves_its_caller_where_it_was(
    clients: ModuleType,
) -> None:
    allowed = os.sched_getaffinity(0)
    load = clients.ConsumeLoad(topic="t", on_one_core=True, count=0, settings={"no.such.key": 1})
    with pytest.raises(clients.ClientError):
        clients.consumer(NOWHERE, load)
    assert os.sched_getaffinity(0) == allowed
