"""A transaction that no coordinator knows of: the broker says whose it is and what to do.

The broker looks for such transactions once a minute, and calls them late five minutes after the
longest timeout. This one does both at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.broker.protocol.schema.errors import ErrorCode
from tests.support.broker import REPOSITORY, BrokerProcess, eventually
from tests.support.metrics import METRICS_ON, metric
from tests.support.wire import WireClient
from tests.system.calls import KEEP_EVERYTHING, create_topic
from tests.system.transactions.admin_calls import producers_of, write_marker
from tests.system.transactions.committed import committed_values
from tests.system.transactions.wire_producer import WireProducer

pytestmark = pytest.mark.slow

SITE_CUSTOMIZE = """
from strandline.broker.server.upkeep import late_transactions
late_transactions.CHECK_S = 0.1
late_transactions.LATE_AFTER_MS = 0
"""
LATE_PARTITIONS = "kafka_server_replicamanager_partitionswithlatetransactionscount"


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that lets clients write without asking the coordinator, as Kafka before 3.6 did."""
    (tmp_path / "sitecustomize.py").write_text(SITE_CUSTOMIZE)
    settings = {
        **KEEP_EVERYTHING,
        **METRICS_ON,
        "transaction.partition.verification.enable": "false",
        "transaction.max.timeout.ms": "1000",
    }
    with BrokerProcess(
        tmp_path,
        settings=settings,
        environment={"PYTHONPATH": f"{tmp_path}:{REPOSITORY / '.namespace'}"},
    ) as broker:
        yield broker


def test_a_transaction_that_hangs_is_named_with_its_producer_and_start_and_can_be_ended(
    impatient: BrokerProcess,
) -> None:
    with WireClient(impatient.port) as client:
        create_topic(client, "t", 2)
        assert metric(impatient, LATE_PARTITIONS) == 0
        known = WireProducer(client, "known", version=2)
        known.begin(timeout_ms=1000)
        known.send("t", b"before", partition=1)
        assert known.commit() is ErrorCode.NONE
        stranger = WireProducer(client, "stranger", version=1)
        stranger.begin(timeout_ms=1000)
        assert stranger.write("t", b"hangs", partition=1) is ErrorCode.NONE

        eventually(lambda: metric(impatient, LATE_PARTITIONS) == 1)
        line = next(x for x in impatient.log_text().splitlines() if "transaction hangs" in x)
        assert "end it with kafka-transactions.sh abort" in line
        found = dict(re.findall(r"(\w+)=(\S+)", line))
        assert found["partition"] == "t-1"
        assert found["start_offset"] == "2"
        assert found["producer_id"] == str(stranger.producer_id)

        # What `abort --start-offset` does: it looks the producer up, and sends its marker.
        (hanging,) = [
            one
            for one in producers_of(client, "t", 1)
            if one.current_txn_start_offset == int(found["start_offset"])
        ]
        assert write_marker(client, hanging, "t", partition=1) is ErrorCode.NONE
        eventually(lambda: metric(impatient, LATE_PARTITIONS) == 0)
        known.send("t", b"behind", partition=1)
        assert known.commit() is ErrorCode.NONE
        assert committed_values(client, "t", partition=1) == [b"before", b"behind"]
