"""Brokers, leaders and coordinators are told as the image has them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

import pytest

from strandline.broker.cluster.metadata.controller_messages import CreateTopics, TopicResult
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.records import topic_records
from strandline.broker.config.listeners import Listener
from strandline.broker.config.loading import load_config
from strandline.broker.handlers.metadata.metadata import MetadataHandlers
from strandline.broker.handlers.services.services import RequestContext, Services
from strandline.broker.protocol.formats.metadata_records import (
    BrokerEndpoint,
    MetadataRecord,
    PartitionChangeRecord,
    RegisterBrokerRecord,
)
from strandline.broker.protocol.formats.offsets_topic import OFFSETS_TOPIC
from strandline.broker.protocol.messages.describe_cluster import DescribeClusterRequest
from strandline.broker.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
)
from strandline.broker.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.security.identity import ClientIdentity
from tests.support.manual_clock import ManualClock
from tests.unit.broker.cluster.controlled import registered

OWN = 1
SEAT = (
    "process.roles=broker",
    "controller.quorum.bootstrap.servers=c1:9093",
    "controller.listener.names=CONTROLLER",
    "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
)
OFFSETS_ID = uuid.UUID(int=5)


def broker(node_id: int, *, listener: str = "PLAINTEXT", fenced: bool = False) -> MetadataRecord:
    endpoint = BrokerEndpoint(name=listener, host=f"h{node_id}", port=9090, security_protocol=0)
    record: RegisterBrokerRecord = registered(node_id, fenced=fenced)
    return record.replaced(end_points=[endpoint], rack=f"r{node_id}")


@dataclass
class Creating:
    """A controller that gives each new topic to these leaders, and the image that it changes."""

    image: MetadataImage
    leaders: Sequence[int] = ()

    async def ask(self, request: CreateTopics) -> Sequence[TopicResult]:
        for topic in request.topics:
            replicas = [(leader,) for leader in self.leaders]
            self.image = self.image.apply_entry(
                topic_records(topic.name, uuid.uuid4(), replicas, {})
            )
        return ()


def handlers(*records: MetadataRecord, new_leaders: Sequence[int] = ()) -> MetadataHandlers:
    controller = Creating(MetadataImage().apply_entry(records), new_leaders)
    services = SimpleNamespace(
        config=load_config(None, [f"node.id={OWN}", *SEAT]),
        metadata=controller,
        controller=controller,
        clock=ManualClock(),
    )
    # The port of the own listener was chosen after the registration.
    return MetadataHandlers(
        cast(Services, services), lambda name: Listener(name=name, host="own", port=4711)
    )


def context(version: int = 2) -> RequestContext:
    return RequestContext(
        api_version=version, client_id="c", caller=ClientIdentity(listener="PLAINTEXT")
    )


def test_a_cluster_is_all_brokers_that_a_client_of_this_listener_can_reach() -> None:
    made = handlers(broker(3, fenced=True), broker(2), broker(OWN), broker(4, listener="INTERNAL"))
    answer = made.describe_cluster(DescribeClusterRequest(), context())
    found = [(one.broker_id, one.host, one.port, one.rack) for one in answer.brokers]
    assert found == [(OWN, "own", 4711, "r1"), (2, "h2", 9090, "r2")]
    with_fenced = made.describe_cluster(
        DescribeClusterRequest(include_fenced_brokers=True), context()
    )
    assert [(one.broker_id, one.is_fenced) for one in with_fenced.brokers] == [
        (OWN, False),
        (2, False),
        (3, True),
    ]


@pytest.mark.parametrize(
    ("fenced", "named"), [((), (OWN, 2, 3)), ((OWN, 3), (2,)), ((OWN, 2, 3), (OWN, 2, 3))]
)
def test_metadata_name_fenced_brokers_only_where_clients_would_be_left_without_any(
    fenced: tuple[int, ...], named: tuple[int, ...]
) -> None:
    brokers = [broker(number, fenced=number in fenced) for number in (OWN, 2, 3)]
    made = handlers(*brokers, broker(4, listener="INTERNAL"))
    answer = made.metadata(MetadataRequest(topics=()), context(12))
    assert isinstance(answer, MetadataResponse)
    assert tuple(one.node_id for one in answer.brokers) == named


def coordinators(made: MetadataHandlers, *groups: str) -> list[Coordinator]:
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=groups)
    return list(made.find_coordinator(request, context(4)).coordinators)


def test_a_coordinator_is_the_leader_of_the_groups_partition() -> None:
    topic = topic_records(OFFSETS_TOPIC, OFFSETS_ID, ((OWN,), (2,)), {})
    made = handlers(broker(OWN), broker(2), *topic)
    found = coordinators(made, *map(str, range(20)))
    assert {(one.node_id, one.host, one.port) for one in found} == {
        (OWN, "own", 4711),
        (2, "h2", 9090),
    }
    assert {one.error_code for one in found} == {ErrorCode.NONE}


def test_without_a_leader_or_a_way_to_it_there_is_no_coordinator() -> None:
    topic = topic_records(OFFSETS_TOPIC, OFFSETS_ID, ((2,), (4,)), {})
    lost = PartitionChangeRecord(partition_id=0, topic_id=OFFSETS_ID, leader=-1)
    made = handlers(broker(OWN), broker(2), broker(4, listener="INTERNAL"), *topic, lost)
    found = coordinators(made, *map(str, range(20)))
    assert {one.error_code for one in found} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}


def test_before_there_is_a_topic_of_groups_whoever_is_asked_coordinates() -> None:
    (found,) = coordinators(handlers(broker(OWN), broker(2)), "g")
    assert (found.node_id, found.error_code) == (OWN, ErrorCode.NONE)


def described(made: MetadataHandlers, version: int) -> list[MetadataResponsePartition]:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="orders")])
    answer = made.metadata(request, context(version))
    assert isinstance(answer, MetadataResponse)
    return list(answer.topics[0].partitions)


def orders(*replicas: tuple[int, ...]) -> list[MetadataRecord]:
    return list(topic_records("orders", uuid.UUID(int=9), replicas, {}))


@pytest.mark.parametrize("leaders", [(OWN, OWN), (OWN, 2)])
def test_a_topic_made_on_the_way_is_told_at_once_only_by_the_leader_of_all_of_it(
    leaders: tuple[int, ...],
) -> None:
    """The other leaders may not know it yet, and would refuse what a client sends them."""
    made = handlers(broker(OWN), broker(2), *orders((2,)), new_leaders=leaders)
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in ("new", "orders")],
        allow_auto_topic_creation=True,
    )
    creating = made.metadata(request, context(12))
    assert isinstance(creating, Coroutine)
    first = asyncio.run(creating)
    again = made.metadata(request, context(12))
    assert isinstance(again, MetadataResponse)
    is_told = leaders == (OWN, OWN)
    code = ErrorCode.NONE if is_told else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    found = [
        [(one.name, one.error_code, len(one.partitions)) for one in answer.topics]
        for answer in (first, again)
    ]
    known = ("orders", ErrorCode.NONE, 1)
    assert found == [
        [("new", code, 2 if is_told else 0), known],
        [("new", ErrorCode.NONE, 2), known],
    ]


def test_replicas_of_brokers_that_are_away_or_fenced_or_elsewhere_are_offline() -> None:
    brokers = broker(OWN), broker(2, fenced=True), broker(3, listener="INTERNAL")
    made = handlers(*brokers, *orders((OWN, 2, 3, 4)))
    (found,) = described(made, 12)
    assert (found.leader_id, found.error_code) == (OWN, ErrorCode.NONE)
    assert list(found.replica_nodes) == [OWN, 2, 3, 4]
    assert list(found.offline_replicas) == [2, 3, 4]


def test_a_replica_in_a_folder_that_failed_is_offline() -> None:
    good, failed = uuid.UUID(int=201), uuid.UUID(int=202)
    with_one_folder = cast(RegisterBrokerRecord, broker(2)).replaced(log_dirs=[good])
    told = [
        PartitionChangeRecord(partition_id=number, topic_id=uuid.UUID(int=9), directories=[folder])
        for number, folder in enumerate((good, failed))
    ]
    made = handlers(broker(OWN), with_one_folder, *orders((2,), (2,)), *told)
    assert [list(one.offline_replicas) for one in described(made, 12)] == [[], [2]]


@pytest.mark.parametrize(
    ("version", "code"), [(5, ErrorCode.LEADER_NOT_AVAILABLE), (6, ErrorCode.LISTENER_NOT_FOUND)]
)
def test_a_leader_without_the_listener_of_the_client_is_none_for_it(
    version: int, code: ErrorCode
) -> None:
    lost = PartitionChangeRecord(partition_id=1, topic_id=uuid.UUID(int=9), leader=-1)
    made = handlers(broker(OWN), broker(3, listener="INTERNAL"), *orders((3,), (3,)), lost)
    found = [(one.leader_id, one.error_code) for one in described(made, version)]
    assert found == [(-1, code), (-1, ErrorCode.LEADER_NOT_AVAILABLE)]
