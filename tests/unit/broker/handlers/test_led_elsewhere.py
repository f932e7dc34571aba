"""Producers and consumers of a partition that another broker leads are told where it is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.replicas.partition import Partition
from strandline.broker.coordination.transactions.transaction_coordinator import (
    TransactionCoordinator,
)
from strandline.broker.handlers.fetch.fetch import FetchHandler
from strandline.broker.handlers.fetch.sessions import FetchSessionCache
from strandline.broker.handlers.produce.produce import ProduceHandler
from strandline.broker.handlers.services.services import Services
from strandline.broker.network.responses import Answer
from strandline.broker.protocol.codec.codec import decode, join
from strandline.broker.protocol.formats.metadata_records import BrokerEndpoint
from strandline.broker.protocol.header import RequestHeader
from strandline.broker.protocol.messages.fetch import FetchCurrentLeader, FetchResponse
from strandline.broker.protocol.messages.produce import (
    ProduceCurrentLeader,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.errors import ErrorCode
from tests.unit.broker.cluster.controlled import registered
from tests.unit.broker.cluster.served import leading
from tests.unit.broker.handlers.fetch.fetch_rig import fetch_of_one, services_over
from tests.unit.storage.local.builders import TOPIC_ID, batch, open_log

FETCH, PRODUCE = 17, 13


@pytest.fixture
def partition(tmp_path: Path) -> Iterator[Partition]:
    with leading(open_log(tmp_path / "t"), epoch=4) as made:
        made.end_leading(2, 5)
        yield made


def services_of(partition: Partition) -> Services:
    """Broker 2 has two listeners."""
    end_points = [
        BrokerEndpoint(name=name, host=host, port=port, security_protocol=0)
        for name, host, port in (("INSIDE", "10.0.0.2", 9093), ("OUTSIDE", "kafka.example", 19092))
    ]
    brokers = [registered(1), registered(2).replaced(end_points=end_points)]
    found = services_over(
        SimpleNamespace(
            partitions_of=lambda *_: {0: partition},
            leader=lambda *_: partition.refusal() or partition,
        )
    )
    image = MetadataImage().apply_entry(brokers)
    found.metadata = SimpleNamespace(image=image)  # type: ignore[misc, assignment]
    found.cold_pace.saw_live = lambda _: None  # type: ignore[method-assign, assignment]
    return found


def body_of(answer: Answer) -> memoryview:
    assert isinstance(answer, list)
    # Behind length, correlation id, and the tags of the header.
    return memoryview(join(answer))[9:]


def test_a_consumer_is_told_the_leader_and_its_address(partition: Partition) -> None:
    async def fetch() -> FetchResponse:
        handler = FetchHandler(services_of(partition), cast("FetchSessionCache", None))
        header = RequestHeader(ApiKey.FETCH, FETCH, 1, "", 0)
        answer = handler.handle(fetch_of_one(FETCH, 0, epoch=4), header, 0.0, None, "OUTSIDE")
        return decode(FetchResponse, FETCH, body_of(answer))

    response = asyncio.run(fetch())
    answered = response.topics[0].partitions[0]
    assert answered.error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert answered.current_leader == FetchCurrentLeader(leader_id=2, leader_epoch=5)
    (endpoint,) = response.node_endpoints
    assert (endpoint.node_id, endpoint.host, endpoint.port) == (2, "kafka.example", 19092)


def test_so_is_a_producer(partition: Partition) -> None:
    async def produce() -> ProduceResponse:
        services = services_of(partition)
        handler = ProduceHandler(services, cast("TransactionCoordinator", None))
        sent = ProducePartition(index=0, records=batch())
        request = ProduceRequest(
            transactional_id=None,
            acks=-1,
            timeout_ms=1000,
            topics=[ProduceTopic(topic_id=TOPIC_ID, partitions=[sent])],
        )
        header = RequestHeader(ApiKey.PRODUCE, PRODUCE, 1, "", 0)
        answer = handler.handle(request, header, 100, 0.0, "peer", None, "INSIDE")
        return decode(ProduceResponse, PRODUCE, body_of(answer))

    response = asyncio.run(produce())
    answered = response.topics[0].partitions[0]
    assert answered.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert answered.current_leader == ProduceCurrentLeader(leader_id=2, leader_epoch=5)
    (endpoint,) = response.node_endpoints
    assert (endpoint.node_id, endpoint.host, endpoint.port) == (2, "10.0.0.2", 9093)
