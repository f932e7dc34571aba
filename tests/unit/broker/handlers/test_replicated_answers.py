"""Answers that tell of a coordinator's state leave when that state is replicated."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from strandline.broker.handlers.groups.groups import make_group_handlers
from strandline.broker.handlers.services.services import RequestContext, Services
from strandline.broker.handlers.transactions.listings import TransactionListingHandlers
from strandline.broker.handlers.transactions.producers import TransactionHandlers
from strandline.broker.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from strandline.broker.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTransaction,
)
from strandline.broker.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
)
from strandline.broker.protocol.messages.describe_groups import DescribeGroupsRequest
from strandline.broker.protocol.messages.describe_transactions import DescribeTransactionsRequest
from strandline.broker.protocol.messages.heartbeat import HeartbeatRequest
from strandline.broker.protocol.messages.list_groups import ListGroupsRequest
from strandline.broker.protocol.messages.list_transactions import ListTransactionsRequest
from strandline.broker.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.protocol.schema.schema import Request
from tests.unit.broker.coordination.coordinator_world import World, commit_request, play
from tests.unit.broker.coordination.groups.test_consumer_coordinator import joining
from tests.unit.broker.coordination.transactions import test_transaction_coordinator as transactions
from tests.unit.broker.coordination.transactions.test_transaction_coordinator import (
    A,
    TransactionWorld,
)


async def _answered_once_replicated(
    world: World, handler: Any, request: Request, version: int
) -> None:
    context = RequestContext(api_version=version, client_id="")
    at_once = await handler(request, context)
    for partition in world.partitions.values():
        partition.hold()
        partition.end_offset += 1
    asking = asyncio.create_task(handler(request, context))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not asking.done()
    for partition in world.partitions.values():
        partition.release()
    assert await asking == at_once


@pytest.mark.parametrize(
    ("key", "request_", "version"),
    [
        (ApiKey.HEARTBEAT, HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 4),
        (ApiKey.LIST_GROUPS, ListGroupsRequest(), 4),
        (ApiKey.CONSUMER_GROUP_DESCRIBE, ConsumerGroupDescribeRequest(group_ids=["new"]), 1),
        (ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest(groups=["g"]), 5),
        (ApiKey.OFFSET_FETCH, OffsetFetchRequest(group_id="g", topics=None), 7),
        (
            ApiKey.OFFSET_FETCH,
            OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)]),
            8,
        ),
    ],
)
def test_what_is_read_of_groups_is_answered_once_it_is_replicated(
    key: ApiKey, request_: Request, version: int
) -> None:
    async def scenario(world: World) -> None:
        coordinator = world.coordinator()
        await coordinator.commit("g", commit_request(1))
        await coordinator.consumer_heartbeat(replace(joining(), group_id="new"))
        handlers: Mapping[ApiKey, Any] = make_group_handlers(
            cast(Services, SimpleNamespace(metadata=world)), coordinator
        )
        await _answered_once_replicated(world, handlers[key], request_, version)

    play(scenario)


@pytest.mark.parametrize("version", [1, 2, 7])
def test_offsets_that_cannot_be_read_now_are_refused_for_each_partition(version: int) -> None:
    """aiokafka looks at these codes alone, and takes what is not there for not committed."""

    async def scenario(world: World) -> None:
        await world.coordinator().commit("g", commit_request(1))
        handlers: Mapping[ApiKey, Any] = make_group_handlers(
            cast(Services, SimpleNamespace(metadata=world)), world.coordinator()
        )
        wanted = [OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])]
        answer = await handlers[ApiKey.OFFSET_FETCH](
            OffsetFetchRequest(group_id="g", topics=wanted),
            RequestContext(api_version=version, client_id=""),
        )
        loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert answer.error_code == (loading if version >= 2 else ErrorCode.NONE)
        assert [one.error_code for one in answer.topics[0].partitions] == [loading, loading]

    play(scenario)


@pytest.mark.parametrize(
    ("name", "request_", "version"),
    [
        ("list_transactions", ListTransactionsRequest(state_filters=(), producer_id_filters=()), 1),
        ("describe_transactions", DescribeTransactionsRequest(transactional_ids=["tx"]), 0),
        (
            "add_partitions",
            AddPartitionsToTxnRequest(
                transactions=[
                    AddPartitionsToTxnTransaction(
                        transactional_id="tx",
                        producer_id=0,
                        producer_epoch=0,
                        verify_only=True,
                        topics=(),
                    )
                ]
            ),
            4,
        ),
        (
            "add_offsets",
            AddOffsetsToTxnRequest(
                transactional_id="tx", producer_id=0, producer_epoch=0, group_id="g"
            ),
            3,
        ),
    ],
)
def test_what_is_read_of_transactions_is_answered_once_it_is_replicated(
    name: str, request_: Request, version: int
) -> None:
    async def scenario(world: TransactionWorld) -> None:
        coordinator = world.transactions()
        groups = world.coordinator()
        await transactions.begun(coordinator, A)
        await groups.partition_of("g")
        services = cast(
            Services, SimpleNamespace(metadata=world, clock=world.clock, records=world.executor)
        )
        listings = TransactionListingHandlers(services, coordinator)
        producers = TransactionHandlers(services, coordinator, groups, cast(Any, world.markers))
        handler = getattr(listings, name, None) or getattr(producers, name)
        await _answered_once_replicated(world, handler, request_, version)

    transactions.play(scenario)
