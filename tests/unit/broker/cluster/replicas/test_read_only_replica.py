"""The controller of a read-only replica refuses what its origin alone may decide."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from strandline.broker.cluster.metadata.controller_messages import (
    AllocateProducerIds,
    ControllerRequest,
    CreateTopics,
    Intent,
    NewTopic,
    ResultT,
)
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.replicas.read_only_replica import (
    FollowingController,
    ReplicaRefuses,
)
from strandline.broker.config.config_changes import AlterConfigs
from strandline.broker.config.loading import load_config
from strandline.broker.config.running_config import RunningConfig
from strandline.broker.handlers.admin.scram_users import AlterScramUsers
from strandline.broker.protocol.formats.offsets_topic import OFFSETS_TOPIC
from strandline.broker.protocol.messages.alter_client_quotas import (
    AlterQuotaEntry,
    EntityData,
    QuotaOperation,
)
from strandline.broker.protocol.messages.alter_user_scram_credentials import (
    ScramCredentialUpsertion,
)
from strandline.broker.protocol.messages.incremental_alter_configs import (
    ConfigOperation,
    IncrementalAlterConfigsResource,
    IncrementalConfig,
)
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.quotas.changes import AlterClientQuotas
from strandline.broker.server.decisions import decisions
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
RETENTION = IncrementalAlterConfigsResource(
    resource_type=ConfigResourceType.BROKER,
    resource_name="",
    configs=[
        IncrementalConfig(name="log.retention.ms", config_operation=ConfigOperation.SET, value="1")
    ],
)
DECISIONS = decisions(RunningConfig(load_config()))


def changed(
    request: ControllerRequest[ResultT],
) -> tuple[Sequence[ResultT], MetadataImage, MetadataImage]:
    """The answer of a replica's controller, and the image before and after."""

    async def change() -> tuple[Sequence[ResultT], MetadataImage, MetadataImage]:
        with ThreadPoolExecutor(1) as executor:
            own = opened(MemoryStore())
            own.append([registered()])
            replica = FollowingController(
                opened(MemoryStore()), own, DECISIONS, node_id=1, executor=executor
            )
            before = replica.view.image
            return await replica.ask(request), before, replica.view.image

    return asyncio.run(change())


def create(*names: str) -> CreateTopics:
    return CreateTopics(
        [NewTopic(name=name, partition_count=1, replication_factor=1) for name in names]
    )


def test_each_topic_of_a_request_has_its_own_reason() -> None:
    results, before, after = changed(create("new", "no name"))
    codes = [result.error_code for result in results]
    assert codes == [ErrorCode.POLICY_VIOLATION, ErrorCode.INVALID_TOPIC_EXCEPTION]
    assert before == after


def test_a_configuration_is_refused_with_its_resource() -> None:
    results, before, after = changed(AlterConfigs([RETENTION]))
    assert [result.error_code for result in results] == [ErrorCode.POLICY_VIOLATION]
    assert before == after


def test_the_topics_of_its_own_groups_are_made() -> None:
    results, before, after = changed(create(OFFSETS_TOPIC))
    assert [result.error_code for result in results] == [ErrorCode.NONE]
    assert set(after.topics) - set(before.topics) == {OFFSETS_TOPIC}


@pytest.mark.parametrize(
    "request_",
    [AlterClientQuotas([QUOTA]), AlterScramUsers((), [PASSWORD]), AllocateProducerIds(1)],
    ids=["quotas", "users", "producer ids"],
)
def test_what_has_no_results_of_ours_is_refused_as_a_whole(
    request_: ControllerRequest[object],
) -> None:
    """Or a client were told that its change is made, or why it is not by a broken connection."""
    with pytest.raises(ReplicaRefuses, match="read-only replica"):
        changed(request_)


def test_what_changes_nothing_is_answered_as_anywhere() -> None:
    results, _, _ = changed(AlterClientQuotas([QUOTA], Intent.VALIDATE))
    assert [result.error_code for result in results] == [0]
