"""Requests to the controller are data, and a controller elsewhere decides the same on them."""

from __future__ import annotations

import asyncio
import pickle
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from strandline.broker.authorization.changes import CreateAcls, DeleteAcls
from strandline.broker.cluster.metadata.controller_messages import (
    AllocateProducerIds,
    ControllerRequest,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    FeatureChange,
    FinishPurges,
    NewLevel,
    NewPartitions,
    NewTopic,
    RaiseLeaderEpochs,
    TopicReference,
    UpdateFeatures,
)
from strandline.broker.cluster.metadata.features import TRANSACTION_VERSION, first_levels
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.records import (
    DeletedTopic,
    acl_record,
    pending_purge_record,
    topic_records,
)
from strandline.broker.cluster.replicas.read_only_replica import FollowingController, ReplicaRefuses
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
from strandline.broker.protocol.messages.alter_configs import AlterableConfig, AlterConfigsResource
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
from strandline.broker.security.acl import Acl
from strandline.broker.server.decisions import decisions
from tests.support.memory_store import MemoryStore
from tests.unit.broker.cluster.controlled import registered
from tests.unit.broker.cluster.metadata_rig import opened

DECISIONS = decisions(RunningConfig(load_config()))
TOPIC_ID = uuid.UUID(int=9)
RULE = Acl(2, "t", 3, "User:u", "*", 3, 3)

REQUESTS: list[ControllerRequest[Any]] = [
    CreateTopics([NewTopic(name="new", properties={"retention.ms": "7"})]),
    DeleteTopics([TopicReference(name="t")]),
    CreatePartitions([NewPartitions(name="t", partition_count=3)]),
    AlterConfigs(
        [
            AlterConfigsResource(
                resource_type=ConfigResourceType.TOPIC,
                resource_name="t",
                configs=[AlterableConfig(name="retention.ms", value="7")],
            ),
            IncrementalAlterConfigsResource(
                resource_type=ConfigResourceType.BROKER,
                resource_name="",
                configs=[
                    IncrementalConfig(
                        name="log.retention.ms", config_operation=ConfigOperation.SET, value="7"
                    )
                ],
            ),
        ]
    ),
    AlterClientQuotas(
        [
            AlterQuotaEntry(
                entity=[EntityData(entity_type="user", entity_name="u")],
                ops=[QuotaOperation(key="producer_byte_rate", value=7.0)],
            )
        ]
    ),
    AlterScramUsers(
        (),
        [
            ScramCredentialUpsertion(
                name="u", mechanism=1, iterations=4096, salt=b"salt", salted_password=b"secret"
            )
        ],
    ),
    UpdateFeatures(
        [NewLevel(feature=TRANSACTION_VERSION, level=0, change=FeatureChange.DOWNGRADE)]
    ),
    CreateAcls([RULE._replace(name="new")]),
    DeleteAcls([[RULE]]),
    AllocateProducerIds(1),
    FinishPurges([TOPIC_ID]),
    RaiseLeaderEpochs(1),
]

TIERED = {"remote.storage.enable": "true"}
RECORDS = [
    registered(),
    *topic_records("t", TOPIC_ID, ((1,),), TIERED),
    acl_record(uuid.UUID(int=5), RULE),
    pending_purge_record(DeletedTopic(name="gone", topic_id=TOPIC_ID, partition_count=1)),
]


def test_there_is_a_request_of_each_type_here() -> None:
    assert {type(request) for request in REQUESTS} == set(DECISIONS)


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda one: type(one).__name__)
def test_a_request_that_came_over_a_wire_is_decided_as_it_was(
    request_: ControllerRequest[Any],
) -> None:
    image = MetadataImage().apply_entry([*first_levels(), *RECORDS])
    received = pickle.loads(pickle.dumps(request_))
    assert received == request_
    here, there = (DECISIONS[type(one)](image, one) for one in (request_, received))
    assert here.records
    # New topics get random ids.
    assert list(map(type, there.records)) == list(map(type, here.records))
    assert len(there.results) == len(here.results)


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda one: type(one).__name__)
def test_a_read_only_replica_refuses_all_but_its_own_topics(
    request_: ControllerRequest[Any],
) -> None:
    async def ask() -> None:
        store = MemoryStore()
        opened(store).append(RECORDS)
        own = opened(MemoryStore())
        own.append([registered()])
        version = own.image.version
        with ThreadPoolExecutor(1) as executor:
            replica = FollowingController(
                opened(store), own, DECISIONS, node_id=1, executor=executor
            )
            assert set(replica.view.image.topics) == {"t"}
            try:
                results = await replica.ask(request_)
            except ReplicaRefuses:
                results = ()
            assert ErrorCode.NONE not in [one.error_code for one in results]
            assert own.image.version == version
            await replica.ask(CreateTopics([NewTopic(name=OFFSETS_TOPIC)]))
            assert set(replica.view.image.topics) == {"t", OFFSETS_TOPIC}

    asyncio.run(ask())
