"""Random histories of producers that do not know of each other and have one transactional id.

Some speak version 1 and some version 2; `transaction.version` goes up and down and the broker is
killed meanwhile. Whoever was told that a commit is done finds its records, and nobody finds others.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from strandline.broker.protocol.messages.update_features import (
    FeatureUpdate,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
    UpgradeType,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from tests.support.broker import BrokerProcess, faultless_broker
from tests.support.heavy import first
from tests.support.wire import WireClient
from tests.system.calls import KEEP_EVERYTHING, create_topic
from tests.system.transactions.committed import committed_values
from tests.system.transactions.histories.random_transactions import patiently
from tests.system.transactions.wire_producer import WireProducer

pytestmark = pytest.mark.slow

NONE = ErrorCode.NONE
PARTITIONS = 3
IDS = ("a", "b")
STEPS = 700


@pytest.fixture
def own(tmp_path: Path) -> Iterator[BrokerProcess]:
    settings = {**KEEP_EVERYTHING, "transaction.state.log.num.partitions": "2"}
    with faultless_broker(tmp_path, settings=settings) as broker:
        yield broker


@dataclass(eq=False)
class Rival:
    """One of several producers of an id, and what it has written since its last end."""

    producer: WireProducer
    written: list[tuple[int, bytes]] = field(default_factory=list)
    # Another producer began since: what was written aborts.
    is_cut_off: bool = False


class Rivals:
    """Takes random steps, and notes by partition which values must be read."""

    def __init__(self, broker: BrokerProcess, seed: int) -> None:
        self.committed: dict[int, list[bytes]] = {index: [] for index in range(PARTITIONS)}
        self.client = WireClient(broker.port)
        self._broker = broker
        self._chance = random.Random(seed)
        self._count = 0
        self._rivals = [
            Rival(WireProducer(self.client, name, version=version))
            for name in IDS
            for version in (1, 2, 1, 2)
        ]
        create_topic(self.client, "t", PARTITIONS)

    def step(self) -> None:
        rival = self._chance.choice(self._rivals)
        steps = {self._begin: 4, self._write: 55, self._end: 30, self._level: 5, self._kill: 1}
        (step,) = self._chance.choices(list(steps), weights=list(steps.values()))
        if rival.producer.producer_id < 0:
            step = self._begin
        step(rival)

    def _begin(self, rival: Rival) -> None:
        assert patiently(rival.producer.init) is NONE
        for other in self._rivals:
            other.is_cut_off |= other.producer.transactional_id == rival.producer.transactional_id
        rival.written, rival.is_cut_off = [], False

    def _write(self, rival: Rival) -> None:
        self._count += 1
        value, partition = b"%d" % self._count, self._chance.randrange(PARTITIONS)
        code = patiently(lambda: rival.producer.try_send("t", value, partition=partition))
        if code is NONE:
            assert not rival.is_cut_off, (rival, "writes with the identity of another")
            rival.written.append((partition, value))

    def _end(self, rival: Rival) -> None:
        is_commit = self._chance.random() < 0.6
        code = patiently(lambda: rival.producer.end(is_commit=is_commit))
        if code is NONE and is_commit:
            assert not (rival.is_cut_off and rival.written), (rival, "was aborted")
            for partition, value in rival.written:
                self.committed[partition].append(value)
        if code is not NONE:
            # As clients do: whoever is refused begins again.
            rival.producer.producer_id = -1
        rival.written = []

    def _level(self, _rival: Rival) -> None:
        level = self._chance.choice((0, 1, 2))
        codes = []
        for kind in (UpgradeType.UPGRADE, UpgradeType.SAFE_DOWNGRADE):
            update = FeatureUpdate(
                feature="transaction.version", max_version_level=level, upgrade_type=kind
            )
            request = UpdateFeaturesRequest(feature_updates=[update])
            codes.append(self.client.ask(request, UpdateFeaturesResponse, 1).error_code)
        assert NONE in codes, codes

    def _kill(self, _rival: Rival) -> None:
        self.client.close()
        self._broker.kill()
        self._broker.start()
        self.client = WireClient(self._broker.port)
        for one in self._rivals:
            one.producer.client = self.client

    def begin_anew(self) -> None:
        """Whatever is open aborts."""
        for rival in self._rivals:
            self._begin(rival)


@pytest.mark.parametrize("seed", first(1, [122, 7, 8]))
def test_of_producers_with_one_id_nobody_reads_what_was_not_committed(
    own: BrokerProcess, seed: int
) -> None:
    rivals = Rivals(own, seed)
    for _ in range(STEPS):
        rivals.step()
    rivals.begin_anew()
    for partition, committed in rivals.committed.items():
        found = committed_values(rivals.client, "t", partition=partition)
        assert sorted(found) == sorted(committed), (seed, partition)
    assert any(rivals.committed.values())
    rivals.client.close()
