"""What /metrics says of the archive: a lag while there is one, and why, exactly while it is so."""

from __future__ import annotations

import pytest

from strandline.broker.protocol.messages.incremental_alter_configs import ConfigOperation
from tests.support.broker import eventually
from tests.support.fault_proxy import Action, FaultProxy, Rule
from tests.support.metrics import METRICS_ON, metric, samples
from tests.support.wire import WireClient
from tests.system.config_calls import alter
from tests.system.tiers.conftest import MakeBroker
from tests.system.tiers.log_client import EARLIEST_LOCAL, LATEST, make_batches
from tests.system.tiers.tiered_broker import (
    FREE_LOCALLY,
    SEGMENT_BYTES,
    TIERED,
    WAIT_S,
    TieredBroker,
)

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


def test_pools_and_the_index_cache_follow_what_is_altered(make_broker: MakeBroker) -> None:
    pool_size = "strandline_remote_pool_size"
    broker = make_broker(settings=METRICS_ON)
    with broker, broker.client(TOPIC) as client, WireClient(broker.port) as wire:
        client.create_topic({**TIERED, **FREE_LOCALLY})
        client.produce(make_batches(size_bytes=9 * SEGMENT_BYTES // 2))
        broker.wait_until_archived(client)
        assert eventually(lambda: client.offset_at(EARLIEST_LOCAL) > 0, timeout_s=WAIT_S)
        client.read(0, client.offset_at(EARLIEST_LOCAL))
        bytes_before = metric(broker, "strandline_cold_index_bytes")
        assert bytes_before > 0
        assert metric(broker, "strandline_cold_index_evictions_total") == 0

        for key, value in (
            ("remote.log.manager.copier.thread.pool.size", "20"),
            ("remote.log.manager.expiration.thread.pool.size", "6"),
            ("remote.log.reader.threads", "5"),
            ("remote.log.index.file.cache.total.size.bytes", str(int(bytes_before) // 2)),
        ):
            assert alter(wire, "", (key, ConfigOperation.SET, value)).error_code == 0
        assert metric(broker, pool_size, pool="copier") == 20
        assert metric(broker, pool_size, pool="reader") == 5
        assert metric(broker, pool_size, pool="expiration") == 6
        assert metric(broker, "strandline_cold_index_bytes") <= bytes_before // 2
        assert metric(broker, "strandline_cold_index_evictions_total") > 0
        for pool in (
            "remotelogmanager_remotelogmanagertasksavgidlepercent",
            "remotestoragethreadpool_remotelogreaderavgidlepercent",
        ):
            assert 0 <= metric(broker, f"kafka_log_remote_{pool}") <= 1
        queue = "kafka_log_remote_remotestoragethreadpool_remotelogreadertaskqueuesize"
        assert metric(broker, queue) >= 0
        # Both pools do their work as before.
        client.read(0, client.offset_at(EARLIEST_LOCAL))
        assert metric(broker, "strandline_cold_index_bytes") <= bytes_before // 2
        end = client.offset_at(LATEST)
        client.produce(make_batches(base_offset=end, size_bytes=5 * SEGMENT_BYTES // 2))
        broker.wait_until_archived(client)


def test_what_waits_to_be_deleted_is_a_lag_until_it_is_deleted(make_broker: MakeBroker) -> None:
    settings = {**METRICS_ON, "strandline.remote.delete.grace.ms": "5000"}
    broker = make_broker(settings=settings)
    with broker, broker.client(TOPIC) as client:
        client.create_topic(TIERED)
        client.produce(make_batches(size_bytes=7 * SEGMENT_BYTES // 2))
        broker.wait_until_archived(client)

        def lag(unit: str) -> float:
            return metric(broker, f"{BROKER_TOPIC}remotedeletelag{unit}", topic=TOPIC)

        assert eventually(lambda: lag("bytes") == 0 == lag("segments"), timeout_s=WAIT_S)
        archived_bytes = metric(broker, f"{BROKER_TOPIC}remotelogsizebytes", topic=TOPIC)
        client.delete_records(client.offset_at(LATEST))
        assert eventually(lambda: lag("segments") >= 2, timeout_s=WAIT_S)
        assert lag("bytes") == archived_bytes
        assert eventually(lambda: lag("bytes") == 0 == lag("segments"), timeout_s=WAIT_S)


def test_how_full_a_log_is_in_percent_of_its_limits(make_broker: MakeBroker) -> None:
    """KIP-1257: of both tiers together, and of the local one."""
    broker = make_broker(settings=METRICS_ON)
    tiered_gauge = "kafka_log_remote_remotelogmanager_"
    local_topic, unlimited = "local", "unlimited"
    with broker, broker.client(TOPIC) as client, broker.client(local_topic) as local:
        limit = 20 * SEGMENT_BYTES
        client.create_topic({**TIERED, "retention.bytes": str(limit), "local.retention.bytes": "1"})
        local.create_topic({"retention.bytes": str(limit)})
        with broker.client(unlimited) as other:
            other.create_topic({**TIERED, **FREE_LOCALLY})
        batches = make_batches(size_bytes=9 * SEGMENT_BYTES // 2)
        client.produce(batches)
        local.produce(batches)
        broker.wait_until_archived(client)
        broker.wait_until_freed(client)
        size_bytes = sum(map(len, batches))
        percent = 100 * size_bytes // limit
        assert percent > 10
        assert in_percent(broker, "kafka_log_log_retentionsizeinpercent", local_topic) == percent
        assert in_percent(broker, "kafka_log_log_retentionsizeinpercent", TOPIC) == 0
        assert in_percent(broker, f"{tiered_gauge}retentionsizeinpercent", TOPIC) == percent
        active_bytes = broker.segment_files(TOPIC)[-1].stat().st_size
        found = in_percent(broker, f"{tiered_gauge}localretentionsizeinpercent", TOPIC)
        assert found == 100 * active_bytes
        for name in ("retentionsizeinpercent", "localretentionsizeinpercent"):
            shown = samples(broker, tiered_gauge + name)
            topics = {dict(labels)["topic"]: value for labels, value in shown.items()}
            assert local_topic not in topics
        assert in_percent(broker, f"{tiered_gauge}retentionsizeinpercent", unlimited) == 0


def in_percent(broker: TieredBroker, name: str, topic: str) -> float:
    return metric(broker, name, topic=topic, partition="0")
