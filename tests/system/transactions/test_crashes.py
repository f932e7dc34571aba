"""The broker dies at each step of a transaction's end, and the outcome is the one decided.

1  PREPARE is in the log     2  some partitions have their marker     3  COMPLETE is in the log
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.crash_points import (
    EXIT_STATUS_KILLED,
    TRANSACTION_AFTER_COMPLETE,
    TRANSACTION_AFTER_MARKER,
    TRANSACTION_AFTER_PREPARE,
)
from tests.support.broker import BrokerProcess, eventually
from tests.support.heavy import heavy
from tests.support.wire import WireClient
from tests.system.calls import create_topic
from tests.system.group_calls import committed
from tests.system.transactions.committed import committed_values, is_stable
from tests.system.transactions.wire_producer import WireProducer

pytestmark = [pytest.mark.slow, pytest.mark.crash]

POINTS = [TRANSACTION_AFTER_PREPARE, TRANSACTION_AFTER_MARKER, TRANSACTION_AFTER_COMPLETE]
PARTITIONS = 3
GROUP = "g"


@pytest.fixture
def dying(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker with a topic; it does not die before it is told where."""
    with BrokerProcess(tmp_path) as broker:
        with WireClient(broker.port) as client:
            create_topic(client, "t", PARTITIONS)
        yield broker


def restart(broker: BrokerProcess, *, dies_at: str = "") -> None:
    broker.kill()
    broker.environment = {"STRANDLINE_CRASH_AT": dies_at} if dies_at else {}
    broker.start()


def write_everywhere(producer: WireProducer, value: bytes) -> None:
    for partition in range(PARTITIONS):
        producer.send("t", value, partition=partition)
    assert producer.send_offset(GROUP, "t", 5) is ErrorCode.NONE


@pytest.mark.parametrize("version", [heavy(1), 2])
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("is_commit", [True, heavy(False)])
def test_a_kill_at_any_step_leaves_the_outcome_as_it_was_decided(
    dying: BrokerProcess, point: str, version: int, is_commit: bool
) -> None:
    restart(dying, dies_at=point)
    with WireClient(dying.port) as client:
        producer = WireProducer(client, "tx", version=version)
        producer.begin()
        write_everywhere(producer, b"v")
        with pytest.raises(ConnectionError):
            producer.end(is_commit=is_commit)
    assert dying.wait_for_exit(60) == EXIT_STATUS_KILLED
    restart(dying)
    with WireClient(dying.port) as client:
        # It ends by itself: nobody asks for it again.
        assert eventually(
            lambda: all(is_stable(client, "t", partition=n) for n in range(PARTITIONS))
        )
        seen = [committed_values(client, "t", partition=index) for index in range(PARTITIONS)]
        assert seen == [[b"v"] if is_commit else []] * PARTITIONS
        assert eventually(lambda: committed(client, GROUP, "t") == (5 if is_commit else -1))
        successor = WireProducer(client, "tx", version=version)
        successor.begin()
        write_everywhere(successor, b"w")
        assert successor.commit() is ErrorCode.NONE
        seen = [committed_values(client, "t", partition=index) for index in range(PARTITIONS)]
        assert seen == [[b"v", b"w"] if is_commit else [b"w"]] * PARTITIONS


@pytest.mark.parametrize("version", [heavy(1), 2])
def test_an_open_transaction_survives_a_kill_of_the_broker(
    dying: BrokerProcess, version: int
) -> None:
    with WireClient(dying.port) as client:
        producer = WireProducer(client, "tx", version=version)
        producer.begin()
        write_everywhere(producer, b"before")
    restart(dying)
    with WireClient(dying.port) as client:
        producer.client = client
        assert committed_values(client, "t") == []
        assert eventually(lambda: producer.add("t", 0) is ErrorCode.NONE)
        write_everywhere(producer, b"after")
        assert producer.commit() is ErrorCode.NONE
        assert committed_values(client, "t") == [b"before", b"after"]
        assert eventually(lambda: committed(client, GROUP, "t") == 5)
