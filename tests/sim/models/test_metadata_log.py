"""The metadata log under every schedule of two brokers and one store, up to a bound.

The real `MetadataLog` runs, a request at a time (`stepped_store.py`). All orders of the requests of
both are tried, so each of them is paused everywhere and for any length of time. A request may also
be applied without an answer, be repeated by the client until it has one, or reach the store long
after its sender has given up. In each state

    a belief        who has appended or read has exactly the entries that were the first of their
                    names: the history that others may have applied
    the store       whoever opens the log has all of the history: a crash of both loses nothing

A snapshot follows each entry and only the newest is kept, so that names are freed soon. The faults
that are planted at the end are each found, so the bounds are large enough for them.
"""

from __future__ import annotations

import copy
import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache

import pytest

from strandline.broker.cluster.metadata import log_reader, metadata_log
from strandline.broker.cluster.metadata.log_format import encode_boundary
from strandline.broker.cluster.metadata.log_reader import first_kept, indexes, raise_boundary
from strandline.broker.cluster.metadata.metadata_log import MetadataLog, MetadataRaced
from strandline.broker.cluster.metadata.records import topic_records
from strandline.storage.errors import CorruptFile, ObjectNotFound, TierUnavailable
from strandline.storage.remote.keys import (
    METADATA_BOUNDARY_KEY,
    METADATA_LOG_PREFIX,
    METADATA_SNAPSHOT_PREFIX,
    metadata_log_key,
)
from strandline.storage.remote.object_store.interface import ObjectStore
from tests.sim.models.explorer import Explored, explore
from tests.sim.models.stepped_store import (
    Answer,
    Failure,
    Objects,
    Request,
    SteppedStore,
    answered,
)
from tests.support.heavy import heavy

pytestmark = pytest.mark.slow

CLUSTER = "c-1"
# Far more than there are: a model that grows beyond is no test of seconds any more.
STATES_MAX = 400_000


@dataclass(frozen=True, slots=True)
class Known:
    """What a broker believes: its image, told by the topics, of which each entry makes one."""

    version: int
    topics: tuple[str, ...]
    snapshot_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A user of the log. `call` is what it does ("" for nothing), `request` waits for an answer."""

    known: Known
    calls_left: int
    call: str = ""
    answers: tuple[Answer, ...] = field(default=(), hash=False)
    request: Request | None = None
    # The outcome of its last append is unknown.
    is_unsure: bool = False
    # How the last call failed, if not as it may.
    error: str = ""
    metadata: MetadataLog = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """All of the state. `history` has the entry that was first under each name, from 1 on."""

    objects: Objects
    history: tuple[bytes, ...]
    brokers: tuple[Broker, ...]
    # Requests that reach the store although nobody waits for them.
    late: frozenset[Request] = frozenset()
    losses_left: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The appends of each writer, and how many answers or requests are lost in all.

    A reader looks for new entries once, and its listings are those of the beginning. Beside it only
    entries are lost: they alone can mislead it.
    """

    appends: tuple[int, ...]
    losses: int = 0
    has_reader: bool = False


class Model:
    """The steps of a world within bounds."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._store = SteppedStore()
        self._runs: dict[tuple[Known, str, tuple[Answer, ...]], Broker] = {}
        self._opened: dict[Objects, str] = {}
        self._writer = ""
        self._errors: tuple[type[Exception], ...] = (MetadataRaced, TierUnavailable)
        if bounds.has_reader:
            # A listing that lags may hide what would explain a missing object.
            self._errors += (CorruptFile, ObjectNotFound)
        self.start = self._begin()

    def new_writer(self) -> str:
        """In place of the random id of an attempt to append."""
        return self._writer

    def _begin(self) -> World:
        objects: Objects = ()
        brokers: list[Broker] = []
        for calls in (*self._bounds.appends, *[1] * self._bounds.has_reader):
            metadata = self._fresh_log()
            objects, _ = self._store.run_alone(metadata.load, objects)
            brokers.append(Broker(known=_known(metadata), calls_left=calls, metadata=metadata))
        return World(
            objects=objects,
            history=(dict(objects)[metadata_log_key(1)],),
            brokers=tuple(brokers),
            losses_left=self._bounds.losses,
        )

    def _fresh_log(self) -> MetadataLog:
        store: ObjectStore = self._store  # type: ignore[assignment]  # the part that is used
        return MetadataLog(store, cluster_id=CLUSTER, snapshot_interval=1, intervals_max=1)

    # --- steps -------------------------------------------------------------------------------

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        for number, broker in enumerate(world.brokers):
            if broker.request is None:
                yield from self._calls(world, number, broker)
            else:
                yield from self._answers(world, number, broker, broker.request)
        for request in world.late:
            after = _applied(world, request)
            yield f"{request} arrives late", replace(after, late=world.late - {request})

    def _calls(self, world: World, number: int, broker: Broker) -> Iterator[tuple[str, World]]:
        calls = ["refresh"] if broker.is_unsure else []
        if broker.calls_left:
            is_reader = self._is_reader(number)
            calls.append("catch_up" if is_reader else f"append {number}.{broker.calls_left}")
        for call in calls:
            left = broker.calls_left - (call != "refresh")
            begun = replace(broker, call=call, calls_left=left, is_unsure=False)
            yield f"{number}: {call}", _with_broker(world, number, self._run(begun))

    def _answers(
        self, world: World, number: int, broker: Broker, request: Request
    ) -> Iterator[tuple[str, World]]:
        def told(answer: Answer) -> Broker:
            return self._run(replace(broker, answers=(*broker.answers, answer)))

        lags = self._is_reader(number) and request.operation == "list"
        _, answer = answered(self.start.objects if lags else world.objects, request)
        applied = _applied(world, request)
        result = f": {answer.error.__name__}" if isinstance(answer, Failure) else ""
        yield f"{number}: {request}{result}", _with_broker(applied, number, told(answer))
        is_entry = request.key.startswith(METADATA_LOG_PREFIX) and request.operation == "put"
        may_get_lost = is_entry if self._bounds.has_reader else request.is_write
        if not (may_get_lost and world.losses_left):
            return
        failed = told(Failure(error=TierUnavailable, key=request.key, operation=request.operation))
        left = world.losses_left - 1
        lost, kept = replace(applied, losses_left=left), replace(world, losses_left=left)
        yield f"{number}: {request} is applied, and sent again", lost
        yield f"{number}: {request} is applied, its answer lost", _with_broker(lost, number, failed)
        kept = replace(kept, late=world.late | {request})
        yield f"{number}: {request} is given up", _with_broker(kept, number, failed)

    def _is_reader(self, number: int) -> bool:
        return number == len(self._bounds.appends)

    def _run(self, broker: Broker) -> Broker:
        key = broker.known, broker.call, broker.answers
        if key not in self._runs:
            self._runs[key] = self._run_anew(broker)
        return replace(self._runs[key], calls_left=broker.calls_left)

    def _run_anew(self, broker: Broker) -> Broker:
        metadata = copy.copy(broker.metadata)
        self._writer = broker.call
        outcome = self._store.run(_call(metadata, broker.call), broker.answers)
        if isinstance(outcome, Request):
            return replace(broker, request=outcome)
        may_be = outcome.error is None or isinstance(outcome.error, self._errors)
        return replace(
            broker,
            known=_known(metadata),
            call="",
            answers=(),
            request=None,
            is_unsure=isinstance(outcome.error, TierUnavailable),
            error="" if may_be else f"{broker.call}: {outcome.error!r}",
            metadata=metadata,
        )

    # --- what must hold ----------------------------------------------------------------------

    def fault_of(self, world: World) -> str:
        names = [_topic_of(entry) for entry in world.history]
        for number, broker in enumerate(world.brokers):
            if broker.error:
                return f"{number} fails: {broker.error}"
            if broker.known.topics != tuple(names[1 : broker.known.version]):
                return f"{number} believes {broker.known}, the history is {names}"
        if world.objects not in self._opened:
            self._opened[world.objects] = self._look(world.objects, names)
        return self._opened[world.objects]

    def _look(self, objects: Objects, names: list[str]) -> str:
        metadata = self._fresh_log()
        _, ended = self._store.run_alone(metadata.refresh, objects)
        if ended.error is not None:
            return f"the log cannot be opened: {ended.error!r}"
        known = _known(metadata)
        is_whole = known.version == len(names) and known.topics == tuple(names[1:])
        return "" if is_whole else f"who opens the log has {known}, the history is {names}"


def _call(metadata: MetadataLog, call: str) -> Callable[[], object]:
    if not call.startswith("append"):
        return metadata.refresh if call == "refresh" else metadata.catch_up
    name = call.removeprefix("append ")
    topic_id = uuid.uuid5(uuid.NAMESPACE_OID, name)
    return lambda: metadata.append(topic_records(name, topic_id, ((1,),), {}))


def _known(metadata: MetadataLog) -> Known:
    image = metadata.image
    return Known(image.version, tuple(image.topics), metadata.statistics().snapshot_version)


def _with_broker(world: World, number: int, broker: Broker) -> World:
    brokers = (*world.brokers[:number], broker, *world.brokers[number + 1 :])
    return replace(world, brokers=brokers)


def _applied(world: World, request: Request) -> World:
    """The world after the store has carried the request out."""
    objects, _ = answered(world.objects, request)
    if request.key == metadata_log_key(len(world.history) + 1) and request.operation == "put":
        return replace(world, objects=objects, history=(*world.history, request.body))
    return replace(world, objects=objects)


@cache
def _topic_of(entry: bytes) -> str:
    first = json.loads(entry)["records"][0]
    return str(first["data"]["name"]) if first["type"] == "TOPIC_RECORD" else ""


def explored(monkeypatch: pytest.MonkeyPatch, bounds: Bounds) -> Explored:
    model = Model(bounds)
    monkeypatch.setattr(metadata_log, "new_unique", model.new_writer)
    monkeypatch.setattr(log_reader, "SNAPSHOTS_KEPT", 1)
    # Writers are overtaken by pruning as often as there are appends; the reader may give up.
    attempts = 1 if bounds.has_reader else 1 + sum(bounds.appends)
    monkeypatch.setattr(log_reader, "PRUNED_MEANWHILE_MAX", attempts)
    found = explore(model.start, model.steps, model.fault_of, states_max=STATES_MAX)
    print(found)
    return found


def check_every_state(monkeypatch: pytest.MonkeyPatch, bounds: Bounds) -> None:
    found = explored(monkeypatch, bounds)
    assert found.fault == "", found


# --- the log as it is --------------------------------------------------------------------------


@pytest.mark.parametrize("appends", [(2, 2), (1, 1, 1)])
def test_writers_agree_on_one_history_wherever_they_are_paused(
    monkeypatch: pytest.MonkeyPatch, appends: tuple[int, ...]
) -> None:
    check_every_state(monkeypatch, Bounds(appends=appends))


@pytest.mark.parametrize(("appends", "losses"), [((1, 2), 1), ((1, 1), 2)])
def test_they_agree_when_a_request_or_its_answer_is_lost_repeated_or_late(
    monkeypatch: pytest.MonkeyPatch, appends: tuple[int, ...], losses: int
) -> None:
    check_every_state(monkeypatch, Bounds(appends=appends, losses=losses))


def test_a_reader_whose_listings_lag_believes_no_late_entry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_every_state(monkeypatch, Bounds(appends=(4,), losses=1, has_reader=True))


# --- planted faults ----------------------------------------------------------------------------


def never_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log before there was a boundary."""
    monkeypatch.setattr(metadata_log, "counts", lambda *_: True)


def deletes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def prune(store: ObjectStore) -> None:
        first = first_kept(indexes(store, METADATA_SNAPSHOT_PREFIX))
        entries = [index for index in indexes(store, METADATA_LOG_PREFIX) if index < first]
        store.delete([metadata_log_key(index) for index in entries])
        raise_boundary(store, first - 1)

    monkeypatch.setattr(metadata_log, "prune", prune)


def is_one_too_low(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        log_reader, "raise_boundary", lambda store, index: raise_boundary(store, max(index - 1, 0))
    )


def may_fall(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(store: ObjectStore, index: int) -> None:
        store.put(METADATA_BOUNDARY_KEY, encode_boundary(index))

    monkeypatch.setattr(log_reader, "raise_boundary", write)


def reader_never_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "_check_not_freed", lambda *_: None)


@pytest.mark.parametrize(
    ("plant", "bounds"),
    [
        (never_asks, Bounds(appends=(1, 2))),
        (deletes_first, Bounds(appends=(1, 2))),
        (is_one_too_low, Bounds(appends=(1, 2))),
        (may_fall, Bounds(appends=(1, 2), losses=1)),
        # Without a loss it takes more appends to be seen.
        heavy(may_fall, Bounds(appends=(2, 3))),
        (reader_never_asks, Bounds(appends=(4,), losses=1, has_reader=True)),
    ],
)
def test_the_model_finds(
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[pytest.MonkeyPatch], None],
    bounds: Bounds,
) -> None:
    plant(monkeypatch)
    assert explored(monkeypatch, bounds).fault
