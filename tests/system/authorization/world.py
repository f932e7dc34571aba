"""A broker with an authorizer: a super user who logs in, and a client that is nobody."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from strandline.broker.authorization.config import STANDARD_AUTHORIZER
from strandline.broker.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from strandline.broker.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from strandline.broker.protocol.messages.create_acls import (
    AclCreation,
    CreateAclsRequest,
    CreateAclsResponse,
)
from strandline.broker.protocol.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from strandline.broker.protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from strandline.broker.protocol.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from strandline.broker.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from strandline.broker.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from strandline.broker.protocol.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from strandline.broker.protocol.messages.sasl_handshake import (
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.security.acl import Acl, AclOperation, AclPermission, PatternType
from tests.support.broker import BrokerProcess, eventually, faultless_broker
from tests.support.ports import ReservedPort
from tests.support.users import ALICE, JAAS, PASSWORD
from tests.support.wire import WireClient
from tests.system.authorization.rights import CLIENT
from tests.system.calls import create_topic, produce

HOUR_MS = 900_000
MEMBER = str(uuid.uuid4())


def settings(super_port: int) -> dict[str, str]:
    return {
        "listeners": f"PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:{super_port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.clients.plain.sasl.jaas.config": JAAS,
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": f"User:{ALICE};User:other",
        "log.retention.ms": "-1",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
    }


def logged_in(port: int) -> WireClient:
    """A connection of the super user."""
    client = WireClient(port)
    client.ask(SaslHandshakeRequest(mechanism="PLAIN"), SaslHandshakeResponse, 1)
    token = f"\0{ALICE}\0{PASSWORD}".encode()
    answer = client.ask(SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse, 2)
    assert not answer.error_code, answer
    return client


class World:
    """The broker, and what is in it: topics t and u, group g, group c with a member, id x."""

    def __init__(self, broker: BrokerProcess, super_port: int) -> None:
        self.broker = broker
        self.super_port = super_port
        self.admin = logged_in(super_port)
        self.member_epoch = 0

    def fill(self) -> None:
        for topic in ("t", "u"):
            create_topic(self.admin, topic)
        produce(self.admin, "t", b"value")
        self._commit("g")
        self.keep_member()
        self._begin("x")

    # --- rights ------------------------------------------------------------------------------

    def allow_only(self, rules: Iterable[Acl], principal: str = CLIENT) -> None:
        """Gives the client these rights and no others."""
        everything = DeleteAclsFilter(
            resource_type_filter=1,
            pattern_type_filter=PatternType.ANY,
            principal_filter=principal,
            operation=AclOperation.ANY,
            permission_type=AclPermission.ANY,
        )
        self.admin.ask(DeleteAclsRequest(filters=[everything]), DeleteAclsResponse, 3)
        self.allow(rules)

    def allow(self, rules: Iterable[Acl]) -> None:
        creations = [
            AclCreation(
                resource_type=acl.kind,
                resource_name=acl.name,
                resource_pattern_type=acl.pattern,
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
            for acl in rules
        ]
        answer = self.admin.ask(CreateAclsRequest(creations=creations), CreateAclsResponse, 3)
        assert [one.error_code for one in answer.results] == [0] * len(creations), answer

    # --- what is there -----------------------------------------------------------------------

    def topic_id(self, name: str) -> uuid.UUID:
        asked = MetadataRequest(
            topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False
        )
        (topic,) = self.admin.ask(asked, MetadataResponse, 12).topics
        return topic.topic_id

    def make(self, name: str) -> uuid.UUID:
        """Creates the topic, unless it is there."""
        topic_id = self.topic_id(name)
        if not topic_id.int:
            create_topic(self.admin, name)
            topic_id = self.topic_id(name)
        return topic_id

    def drop(self, name: str) -> None:
        asked = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=1000)
        self.admin.ask(asked, DeleteTopicsResponse, 6)

    def keep_member(self) -> None:
        """Keeps the member of group c in it, which has t assigned."""

        def answered() -> bool:
            asked = ConsumerGroupHeartbeatRequest(
                group_id="c",
                member_id=MEMBER,
                member_epoch=self.member_epoch,
                rebalance_timeout_ms=60_000,
                subscribed_topic_names=None if self.member_epoch else ["t"],
                topic_partitions=None if self.member_epoch else [],
            )
            answer = self.admin.ask(asked, ConsumerGroupHeartbeatResponse, 1)
            # A member whose session has expired meanwhile joins again, as clients do.
            is_forgotten = answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID
            self.member_epoch = 0 if is_forgotten else answer.member_epoch
            return not answer.error_code

        assert eventually(answered)

    def _commit(self, group_id: str) -> None:
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
        topic = OffsetCommitRequestTopic(name="t", partitions=[partition])
        asked = OffsetCommitRequest(group_id=group_id, topics=[topic])

        def answered() -> bool:
            (done,) = self.admin.ask(asked, OffsetCommitResponse, 8).topics
            return not done.partitions[0].error_code

        assert eventually(answered)

    def _begin(self, transactional_id: str) -> None:
        asked = InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=HOUR_MS
        )

        def begun() -> InitProducerIdResponse | None:
            answer = self.admin.ask(asked, InitProducerIdResponse, 4)
            return None if answer.error_code else answer

        producer = eventually(begun)
        assert isinstance(producer, InitProducerIdResponse)
        added = self.admin.ask(
            AddPartitionsToTxnRequest(
                transactional_id=transactional_id,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                topics=[AddPartitionsToTxnTopic(name="t", partitions=[0])],
            ),
            AddPartitionsToTxnResponse,
            3,
        )
        assert not added.results_by_topic[0].results_by_partition[0].partition_error_code, added


@contextmanager
def ruled_broker(folder: Path, **more: str) -> Iterator[World]:
    port = ReservedPort()
    with faultless_broker(folder, settings={**settings(port.number), **more}) as broker:
        world = World(broker, port.number)
        yield world
        world.admin.close()
