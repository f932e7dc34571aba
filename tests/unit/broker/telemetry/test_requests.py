"""What requests cost is what happened, and errors are counted wherever an answer has them."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.broker.protocol.messages.describe_cluster import DescribeClusterResponse
from strandline.broker.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.telemetry.collector import metrics_page
from strandline.broker.telemetry.exposition import PageFormat
from strandline.broker.telemetry.requests import (
    ERRORS_LOOKED_AT_MAX,
    Durations,
    RequestTraffic,
    count_errors,
)


@given(st.lists(st.floats(1e-6, 1e4), min_size=1, max_size=200))
def test_quantiles_are_right_to_a_factor_of_two(elapsed: list[float]) -> None:
    durations = Durations()
    for one in elapsed:
        durations.record(one)
    for quantile in (0.5, 0.99):
        exact = sorted(elapsed)[max(0, math.ceil(quantile * len(elapsed)) - 1)]
        assert exact / 2.01 <= durations.quantile_s(quantile) <= exact * 2.01
    assert durations.count == len(elapsed)
    assert durations.sum_s == pytest.approx(sum(elapsed))


def test_quantiles_are_of_late_and_sums_for_ever() -> None:
    requests = RequestTraffic()
    traffic = requests.apis[ApiKey.METADATA]
    traffic.started(9, 100, 0.0)
    traffic.answered_late([b"\x00\x00\x00\x10", b"x" * 16], local_s=0.001, remote_s=0.5)
    requests.turn()
    assert not math.isnan(traffic.total.quantile_s(0.5))
    requests.turn()
    assert math.isnan(traffic.total.quantile_s(0.5))
    assert (traffic.total.count, traffic.response_bytes) == (1, 20)
    assert list(traffic.versions()) == [(9, 1)]


def test_a_page_that_is_seldom_read_tells_of_the_last_minutes() -> None:
    requests = RequestTraffic()
    sources = SimpleNamespace(
        requests=requests,
        metadata=SimpleNamespace(image=SimpleNamespace(topics={})),
        replicas=SimpleNamespace(topic_names=tuple),
        partitions_max=0,
    )
    requests.apis[ApiKey.METADATA].started(9, 100, 0.3)
    requests.apis[ApiKey.METADATA].answered([b"\x00\x00\x00\x10", b"x" * 16], 0.001)
    name = "kafka_network_requestmetrics_requestqueuetimems"
    # As much of the sources as is asked for.
    pieces = metrics_page(sources, PageFormat.TEXT)  # type: ignore[arg-type]
    page = next(one for one in pieces if f"# TYPE {name} " in one)
    [(_, waited_ms)] = re.findall(rf'^{name}{{(.*),quantile="0.99"}} (.*)$', page, re.MULTILINE)
    assert 150 < float(waited_ms) < 600


def test_errors_are_counted_wherever_an_answer_has_them() -> None:
    traffic = RequestTraffic().apis[ApiKey.METADATA]
    broken = MetadataResponsePartition(
        error_code=ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=0,
        leader_id=1,
        replica_nodes=[],
        isr_nodes=[],
    )
    response = MetadataResponse(
        brokers=[],
        topics=[
            MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name="a"),
            MetadataResponseTopic(name="b", partitions=[broken, broken]),
        ],
    )
    count_errors(response, traffic)
    assert traffic.errors == {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: 1,
        ErrorCode.LEADER_NOT_AVAILABLE: 2,
    }
    count_errors(DescribeClusterResponse(cluster_id="c", brokers=()), traffic)
    assert traffic.failed_answers == 1


def test_of_a_huge_answer_only_so_many_elements_are_looked_at() -> None:
    traffic = RequestTraffic().apis[ApiKey.METADATA]
    topics = [MetadataResponseTopic(error_code=3, name="a") for _ in range(50_000)]
    count_errors(MetadataResponse(brokers=[], topics=topics), traffic)
    assert 0 < traffic.errors[3] <= ERRORS_LOOKED_AT_MAX
