"""A partition forgets a silent producer, whose transactional id lives longer.

The broker looks for silent producers every ten minutes. This one does all the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.broker.protocol.schema.errors import ErrorCode
from tests.support.broker import REPOSITORY, BrokerProcess, eventually
from tests.support.wire import WireClient
from tests.system.calls import KEEP_EVERYTHING, create_topic
from tests.system.transactions.admin_calls import producers_of
from tests.system.transactions.committed import committed_values
from tests.system.transactions.wire_producer import WireProducer

pytestmark = pytest.mark.slow

SITE_CUSTOMIZE = """
from strandline.broker.server.upkeep import background
background.PRODUCER_CHECK_S = 0.1
"""


@pytest.fixture
def forgetful(tmp_path: Path) -> Iterator[BrokerProcess]:
    (tmp_path / "sitecustomize.py").write_text(SITE_CUSTOMIZE)
    with BrokerProcess(
        tmp_path,
        settings={**KEEP_EVERYTHING, "producer.id.expiration.ms": "500"},
        environment={"PYTHONPATH": f"{tmp_path}:{REPOSITORY / '.namespace'}"},
    ) as broker:
        yield broker


@pytest.mark.parametrize("version", [1, 2])
def test_a_producer_whose_predecessor_was_forgotten_by_the_partition_keeps_its_id_and_commits(
    forgetful: BrokerProcess, version: int
) -> None:
    with WireClient(forgetful.port) as client:
        create_topic(client, "t", 2)
        first = WireProducer(client, "payer", version=version)
        first.begin()
        first.send("t", b"aborted")
        (before,) = producers_of(client, "t")
        assert before.producer_id == first.producer_id
        assert first.abort() is ErrorCode.NONE
        eventually(lambda: producers_of(client, "t") == [])

        second = WireProducer(client, "payer", version=version)
        second.begin()
        second.send("t", b"one")
        second.send("t", b"other", partition=1)
        # While it is open it is not forgotten. An abort of version 2 raises the epoch, too.
        (after,) = producers_of(client, "t")
        assert after.producer_id == before.producer_id
        assert after.producer_epoch == before.producer_epoch + version
        assert second.commit() is ErrorCode.NONE
        assert committed_values(client, "t") == [b"one"]
        assert committed_values(client, "t", partition=1) == [b"other"]
