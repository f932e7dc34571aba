"""controller_mutation_rate: what one request may do, and what it costs (KIP-599)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from strandline.broker.cluster.metadata.controller_messages import (
    USE_DEFAULT,
    NewPartitions,
    NewTopic,
    TopicDefaults,
)
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.records import QuotaEntity, quota_records
from strandline.broker.handlers.admin.mutation_quota import Admission, addition_cost, creation_cost
from strandline.broker.handlers.services.services import RequestContext, Services
from strandline.broker.quotas.quotas import ClientQuotas, QuotaWindows
from strandline.broker.security.identity import ClientIdentity
from tests.support.manual_clock import ManualClock
from tests.unit.broker.cluster.controlled import assigned, since_nothing, with_topic

STRICT_FROM = 6


def admission(version: int, **quotas: float) -> Admission:
    held = ClientQuotas(ManualClock(), QuotaWindows())
    entity = QuotaEntity.of({"user": ""})
    held.follow(*since_nothing(MetadataImage().apply_entry(quota_records(entity, {}, quotas))))
    caller = ClientIdentity(user="alice")
    context = SimpleNamespace(caller=caller, client_id="app", api_version=version)
    return Admission(
        cast(Services, SimpleNamespace(quotas=held)),
        cast(RequestContext, context),
        strict_from=STRICT_FROM,
    )


def test_versions_that_know_the_error_are_refused_what_older_ones_wait_for() -> None:
    # Its burst lets the first one through; what costs nothing is done, whatever came before it.
    wanted = [13, 5, 0]
    strict = admission(STRICT_FROM, controller_mutation_rate=1)
    assert strict.split(wanted, int) == ([13, 0], [5])
    permissive = admission(STRICT_FROM - 1, controller_mutation_rate=1)
    assert permissive.split(wanted, int) == (wanted, [])
    assert permissive.throttle_ms > 0


def test_without_a_quota_of_this_kind_everything_is_done_at_once() -> None:
    for quotas in ({}, {"producer_byte_rate": 1.0}):
        free = admission(STRICT_FROM, **quotas)
        assert free.split([10**6], int) == ([10**6], [])
        assert free.throttle_ms == 0


@pytest.mark.parametrize(
    ("topic", "cost"),
    [
        (NewTopic(name="new", partition_count=3, replication_factor=1), 3),
        (NewTopic(name="new", partition_count=USE_DEFAULT, replication_factor=1), 4),
        (NewTopic(name="new", assignments=assigned((1,), (1,))), 2),
        # Refused anyway.
        (NewTopic(name="a", partition_count=3, replication_factor=1), 0),
        (NewTopic(name="new", partition_count=-7, replication_factor=1), 0),
    ],
)
def test_a_topic_costs_its_partitions_and_one_that_is_refused_nothing(
    topic: NewTopic, cost: int
) -> None:
    assert creation_cost(with_topic("a"), topic, TopicDefaults(partition_count=4)) == cost


@pytest.mark.parametrize(("name", "count", "cost"), [("a", 5, 3), ("a", 1, 0), ("none", 5, 0)])
def test_partitions_cost_what_is_added(name: str, count: int, cost: int) -> None:
    wanted = NewPartitions(name=name, partition_count=count)
    assert addition_cost(with_topic("a", partitions=2), wanted) == cost
