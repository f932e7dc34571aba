"""What /metrics tells of transactions."""

from __future__ import annotations

import pytest

from strandline.broker.protocol.schema.errors import ErrorCode
from tests.support.broker import BrokerProcess, eventually
from tests.support.metrics import METRICS_ON, metric
from tests.support.wire import WireClient
from tests.system.calls import KEEP_EVERYTHING
from tests.system.transactions.wire_producer import WireProducer

pytestmark = pytest.mark.slow

BROKER_SETTINGS = {
    **KEEP_EVERYTHING,
    **METRICS_ON,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
}
NONE = ErrorCode.NONE
ENDED = "strandline_transactions_ended_total"
OLDEST = "strandline_transactions_oldest_open_seconds"
REFUSED = "kafka_server_addpartitionstotxnmanager_verificationfailure_total"


def ids_in(broker: BrokerProcess, state: str) -> float:
    return metric(broker, "strandline_transactional_ids", state=state)


def test_ids_are_counted_by_state_and_ends_by_outcome(
    broker: BrokerProcess, client: WireClient, topic: str
) -> None:
    assert metric(broker, OLDEST) == 0
    first, second = (WireProducer(client, name, version=2) for name in ("first", "second"))
    first.begin()
    second.begin()
    assert ids_in(broker, "Empty") == 2
    first.send(topic, b"v")
    second.send(topic, b"v")
    assert (ids_in(broker, "Empty"), ids_in(broker, "Ongoing")) == (0, 2)
    eventually(lambda: metric(broker, OLDEST) > 0)
    assert metric(broker, "kafka_server_replicamanager_produceridcount") == 2
    assert first.commit() is NONE
    assert second.abort() is NONE
    states = ("Ongoing", "CompleteCommit", "CompleteAbort")
    assert [ids_in(broker, state) for state in states] == [0, 1, 1]
    assert metric(broker, OLDEST) == 0
    outcomes = ("committed", "aborted", "timed_out")
    assert [metric(broker, ENDED, outcome=name) for name in outcomes] == [1, 1, 0]
    impatient = WireProducer(client, "impatient", version=2)
    impatient.begin(timeout_ms=100)
    impatient.send(topic, b"v")
    eventually(lambda: metric(broker, ENDED, outcome="timed_out") == 1)
    assert metric(broker, ENDED, outcome="aborted") == 1


def test_what_is_no_part_of_the_transaction_counts_as_refused(
    broker: BrokerProcess, client: WireClient, topic: str
) -> None:
    before = metric(broker, REFUSED)
    producer = WireProducer(client, f"stranger of {topic}", version=1)
    producer.begin()
    assert producer.write(topic, b"v") is ErrorCode.TRANSACTION_ABORTABLE
    assert metric(broker, REFUSED) == before + 1
    producer.send(topic, b"v")
    assert producer.abort() is NONE
    assert metric(broker, REFUSED) == before + 1
