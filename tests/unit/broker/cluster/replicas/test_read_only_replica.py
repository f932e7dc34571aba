"""The controller of a read-only replica refuses what its origin alone may decide."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from strandline.broker.cluster.metadata import controller
from strandline.broker.cluster.metadata.controller_messages import (
    Decision,
    Intent,
    NewTopic,
    ResultT,
    TopicDefaults,
)
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.replicas.read_only_replica import (
    FollowingController,
    ReplicaRefuses,
)
from strandline.broker.handlers.admin import scram_users
from strandline.broker.protocol.formats.metadata_records import ConfigRecord, ResourceType
from strandline.broker.protocol.formats.offsets_topic import OFFSETS_TOPIC
from strandline.broker.protocol.messages.alter_client_quotas import (
    AlterQuotaEntry,
    EntityData,
    QuotaOperation,
)
from strandline.broker.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.quotas import changes
from tests.support.memory_store import MemoryStore
from tests.unit.broker.cluster.controlled import registered
from tests.unit.broker.cluster.metadata_rig import opened

QUOTA = AlterQuotaEntry(
    entity=[EntityData(entity_type="user", entity_name="ann")],
    ops=[QuotaOperation(key="producer_byte_rate", value=1000.0)],
)
PASSWORD = ScramCredentialUpsertion(
    name="ann", mechanism=1, iterations=4096, salt=b"salt", salted_password=b"p" * 32
)
ALTERED = ConfigRecord(
    resource_type=ResourceType.BROKER, resource_name="", name="log.retention.ms", value="1"
)


def changed(
    decide: Callable[[MetadataImage], Decision[ResultT]],
) -> tuple[Decision[ResultT], MetadataImage, MetadataImage]:
    """The decision of a replica's controller, and the image before and after."""

    async def change() -> tuple[Decision[ResultT], MetadataImage, MetadataImage]:
        with ThreadPoolExecutor(1) as executor:
            own = opened(MemoryStore())
            own.append([registered()])
            replica = FollowingController(opened(MemoryStore()), own, node_id=1, executor=executor)
            before = replica.view.image
            return await replica.change(decide), before, replica.view.image

    return asyncio.run(change())


def create(*names: str) -> Callable[[MetadataImage], Decision[controller.TopicResult]]:
    topics = [NewTopic(name=name, partition_count=1, replication_factor=1) for name in names]
    return partial(controller.create_topics, topics=topics, defaults=TopicDefaults())


def test_each_topic_of_a_request_has_its_own_reason() -> None:
    decision, before, after = changed(create("new", "no name"))
    codes = [result.error_code for result in decision.results]
    assert codes == [ErrorCode.POLICY_VIOLATION, ErrorCode.INVALID_TOPIC_EXCEPTION]
    assert before == after


def test_the_topics_of_its_own_groups_are_made() -> None:
    decision, before, after = changed(create(OFFSETS_TOPIC))
    assert [result.error_code for result in decision.results] == [ErrorCode.NONE]
    assert set(after.topics) - set(before.topics) == {OFFSETS_TOPIC}


@pytest.mark.parametrize(
    "decide",
    [
        partial(changes.alter, entries=[QUOTA], intent=Intent.APPLY),
        partial(scram_users.alter, request=AlterUserScramCredentialsRequest(upsertions=[PASSWORD])),
        partial(controller.allocate_producer_ids, node_id=1),
        lambda _image: Decision(records=(ALTERED,), results=()),
    ],
    ids=["quotas", "users", "producer ids", "configuration"],
)
def test_what_has_no_results_of_topics_is_refused_as_a_whole(
    decide: Callable[[MetadataImage], Decision[object]],
) -> None:
    """Or a client were told that its change is made, or why it is not by a broken connection."""
    with pytest.raises(ReplicaRefuses, match="read-only replica"):
        changed(decide)


def test_what_changes_nothing_is_answered_as_anywhere() -> None:
    decision, _, _ = changed(partial(changes.alter, entries=[QUOTA], intent=Intent.VALIDATE))
    assert [result.error_code for result in decision.results] == [0]
