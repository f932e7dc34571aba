"""What /metrics says of the archive: a lag while there is one, and why, exactly while it is so."""

from __future__ import annotations

import pytest

from tests.support.broker import eventually
from tests.support.fault_proxy import Action, FaultProxy, Rule
from tests.support.metrics import METRICS_ON, metric, samples
from tests.tiers.conftest import MakeBroker
from tests.tiers.log_client import LATEST, make_batches
from tests.tiers.tiered_broker import SEGMENT_BYTES, TIERED, WAIT_S

pytestmark = [pytest.mark.slow, pytest.mark.s3]

TOPIC = "watched"
BROKER_TOPIC = "kafka_server_brokertopicmetrics_"
FAILING = "strandline_remote_copy_failing_seconds"
REFUSED = Rule(action=Action.STATUS, status=403, code="AccessDenied", times=-1)


def test_a_lag_and_its_reason_are_there_exactly_while_copying_fails(
    make_broker: MakeBroker, fault_proxy: FaultProxy
) -> None:
    broker = make_broker(endpoint_url=fault_proxy.endpoint_url, settings=METRICS_ON)
    with broker, broker.client(TOPIC) as client:
        client.create_topic(TIERED)
        client.produce(make_batches(size_bytes=5 * SEGMENT_BYTES // 2))
        broker.wait_until_archived(client)

        def lag_segments() -> float:
            return metric(broker, f"{BROKER_TOPIC}remotecopylagsegments", topic=TOPIC)

        assert eventually(lambda: lag_segments() == 0, timeout_s=WAIT_S)
        assert samples(broker, FAILING) == {}
        copied = metric(broker, f"{BROKER_TOPIC}remotecopyrequests_total", topic=TOPIC)
        assert copied >= 2
        assert metric(broker, f"{BROKER_TOPIC}remotelogsizebytes", topic=TOPIC) > SEGMENT_BYTES

        fault_proxy.add(REFUSED)
        client.produce(
            make_batches(base_offset=client.offset_at(LATEST), size_bytes=5 * SEGMENT_BYTES // 2)
        )
        assert eventually(lambda: samples(broker, FAILING), timeout_s=WAIT_S)
        (labels,) = (dict(key) for key in samples(broker, FAILING))
        assert (labels["topic"], labels["partition"]) == (TOPIC, "0")
        assert "Denied" in labels["error"] or "Forbidden" in labels["error"], labels
        assert lag_segments() >= 1
        assert metric(broker, f"{BROKER_TOPIC}remotecopylagbytes", topic=TOPIC) > 0
        assert metric(broker, f"{BROKER_TOPIC}remotecopyerrors_total", topic=TOPIC) >= 1

        fault_proxy.clear()
        assert eventually(lambda: samples(broker, FAILING) == {}, timeout_s=2 * WAIT_S)
        assert eventually(lambda: lag_segments() == 0, timeout_s=WAIT_S)
