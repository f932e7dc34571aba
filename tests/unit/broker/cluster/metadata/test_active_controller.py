"""Changes of the metadata, and those who follow them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import pytest

from strandline.broker.cluster.metadata.active_controller import ActiveController
from strandline.broker.cluster.metadata.controller_messages import (
    ControllerRequest,
    CreateTopics,
    Decision,
    NewTopic,
)
from strandline.broker.cluster.metadata.image import MetadataDelta, MetadataImage
from strandline.broker.cluster.metadata.view import MetadataView
from strandline.broker.config.loading import load_config
from strandline.broker.config.running_config import RunningConfig
from strandline.broker.protocol.formats.metadata_records import NoOpRecord
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.server.decisions import decisions
from strandline.storage.errors import DiskError
from strandline.storage.remote.object_store.interface import ObjectStore
from tests.support.memory_store import Fault, MemoryStore
from tests.unit.broker.cluster.controlled import registered
from tests.unit.broker.cluster.metadata_rig import opened

DECISIONS = decisions(RunningConfig(load_config()))


class Names:
    """A follower that knows the topics by what it was told of them."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.told: list[set[str]] = []
        self.failure: Exception | None = None

    async def follow(self, delta: MetadataDelta, image: MetadataImage) -> None:
        if self.failure is not None:
            raise self.failure
        self.told.append({topic.name for topic in delta.topics.changed()})
        self.names -= {topic.name for topic in delta.topics.gone()}
        self.names |= self.told[-1]
        assert self.names == set(image.topics)


def create(name: str) -> CreateTopics:
    return CreateTopics([NewTopic(name=name, partition_count=1, replication_factor=1)])


class Made(NamedTuple):
    """A view, and the controller that drives it."""

    view: MetadataView
    active: ActiveController


def play(
    scenario: Callable[[Callable[[], Made]], Coroutine[None, None, None]],
    store: ObjectStore | None = None,
) -> None:
    async def bounded() -> None:
        with ThreadPoolExecutor(1) as executor:
            shared = store or MemoryStore()

            def begin() -> Made:
                log = opened(shared)
                if not log.image.brokers:
                    log.append([registered()])
                view = MetadataView(log.image)
                return Made(view, ActiveController(view, log, DECISIONS, executor=executor))

            async with asyncio.timeout(60):
                await scenario(begin)

    asyncio.run(bounded())


def test_a_follower_gets_all_that_there_is_and_then_what_changes() -> None:
    async def scenario(begin: Callable[[], Made]) -> None:
        metadata, first, second = begin(), Names(), Names()
        await metadata.active.ask(create("a"))
        await metadata.view.publish_to(first.follow)
        await metadata.active.ask(create("b"))
        await metadata.view.publish_to(second.follow)
        await metadata.active.ask(create("c"))
        assert first.told == [{"a"}, {"b"}, {"c"}]
        assert second.told == [{"a", "b"}, {"c"}]

    play(scenario)


def test_a_follower_that_failed_gets_the_same_changes_with_the_next_ones() -> None:
    async def scenario(begin: Callable[[], Made]) -> None:
        metadata, before, failing = begin(), Names(), Names()
        await metadata.view.publish_to(before.follow, failing.follow)
        failing.failure = DiskError("full")
        with pytest.raises(DiskError):
            await metadata.active.ask(create("a"))
        failing.failure = None
        await metadata.active.ask(create("b"))
        assert failing.told == [set(), {"a", "b"}]
        assert before.told == [set(), {"a"}, {"a", "b"}]
        await metadata.active.ask(create("c"))
        assert failing.told[-1] == {"c"}

    play(scenario)


def test_what_another_broker_changed_first_is_followed_although_nothing_is_left_to_do() -> None:
    async def scenario(begin: Callable[[], Made]) -> None:
        late, quick, names = begin(), begin(), Names()
        await late.view.publish_to(names.follow)
        await quick.active.ask(create("a"))
        results = await late.active.ask(create("a"))
        assert [r.error_code for r in results] == [ErrorCode.TOPIC_ALREADY_EXISTS]
        assert names.names == {"a"}

    play(scenario)


def test_what_an_append_of_unknown_outcome_changed_is_followed_with_the_next_change() -> None:
    store = MemoryStore()

    async def scenario(begin: Callable[[], Made]) -> None:
        metadata, names = begin(), Names()
        await metadata.view.publish_to(names.follow)
        other = begin()
        await other.active.ask(create("a"))
        metadata.active._unsure = True
        await metadata.active.ask(create("b"))
        assert names.told == [set(), {"a"}, {"b"}]

    play(scenario, store)


def test_an_entry_is_followed_although_who_asked_for_it_went_away_meanwhile() -> None:
    appended: list[int] = []

    async def scenario(begin: Callable[[], Made]) -> None:
        metadata, names = begin(), Names()
        metadata.active._on_append = lambda records, _offset: appended.append(len(records))
        await metadata.view.publish_to(names.follow)
        asking = asyncio.create_task(metadata.active.ask(create("a")))
        while not metadata.active._changing.locked():
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert asking.cancelled()
        await metadata.active.finish()
        assert names.names == {"a"}
        assert appended == [2]

    play(scenario)


@dataclass(frozen=True, slots=True)
class Beat(ControllerRequest[int]):
    """The result is the version of the image that was decided on."""

    overtakes: ClassVar[bool] = True
    changes: bool = False


def beat(image: MetadataImage, asked: Beat) -> Decision[int]:
    records = (NoOpRecord(),) if asked.changes else ()
    return Decision(records=records, results=(image.version,))


def test_a_heartbeat_that_changes_nothing_does_not_wait_for_the_disk() -> None:
    store, synced = MemoryStore(), threading.Event()

    async def scenario(begin: Callable[[], Made]) -> None:
        active = begin().active
        active._decisions = {**active._decisions, Beat: beat}
        version = active.view.image.version
        store.add_fault(Fault(operation="put", gate=synced))
        creating = asyncio.create_task(active.ask(create("a")))
        while not active._changing.locked():
            await asyncio.sleep(0)
        try:
            assert await active.ask(Beat()) == (version,)
            changing = asyncio.create_task(active.ask(Beat(changes=True)))
            await asyncio.sleep(0)
            assert not changing.done()
        finally:
            synced.set()
        await creating
        assert await changing == (version + 1,)

    play(scenario, store)


def test_one_entry_is_in_flight_and_who_comes_meanwhile_decides_on_the_image_after_it() -> None:
    async def scenario(begin: Callable[[], Made]) -> None:
        metadata = begin()
        version = metadata.view.image.version
        names = [f"t{number % 5}" for number in range(10)]
        answers = await asyncio.gather(*(metadata.active.ask(create(name)) for name in names))
        codes = [result.error_code for answer in answers for result in answer]
        assert codes == [ErrorCode.NONE] * 5 + [ErrorCode.TOPIC_ALREADY_EXISTS] * 5
        assert metadata.view.image.version == version + 5

    play(scenario)
