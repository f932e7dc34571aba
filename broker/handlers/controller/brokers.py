"""BrokerRegistration, BrokerHeartbeat and what else brokers ask of the controller for themselves.

BrokerRegistration    0-4  2 log folders; 3 the epoch before; 4 features of minimum 0
BrokerHeartbeat       0-2  1 log folders that failed; 2 log folders that take no new replicas
AllocateProducerIds   0
AssignReplicasToDirs  0

A heartbeat counts when it comes, before the controller has time for it. What only the controller
knows, how far brokers are and where a shutdown ends, follows the entry.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from strandline.broker.cluster.metadata.controller_messages import Controller
from strandline.broker.cluster.metadata.view import MetadataView
from strandline.broker.controller.attended_time import AttendedTime
from strandline.broker.controller.messages import (
    AllocateBlock,
    AssignDirectories,
    Heartbeat,
    RegisterBroker,
    ReplicaInFolder,
)
from strandline.broker.controller.partitions.lost import in_lost_folders
from strandline.broker.controller.sessions import BrokerSessions, Registration
from strandline.broker.handlers.services.limits import refuse_partition_flood
from strandline.broker.handlers.services.services import RequestContext
from strandline.broker.protocol.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from strandline.broker.protocol.messages.assign_replicas_to_dirs import (
    AssignedDirectoryResult,
    AssignedPartitionResult,
    AssignedTopicResult,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from strandline.broker.protocol.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from strandline.broker.protocol.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.errors import StorageError
from strandline.storage.quiet_log import QuietLog

log = logging.getLogger(__name__)


class BrokerHandlers:
    """Handlers of the requests of brokers, and the sessions that these keep."""

    def __init__(
        self,
        controller: Controller,
        view: MetadataView,
        sessions: BrokerSessions,
        time: AttendedTime,
    ) -> None:
        self._controller = controller
        self._view = view
        self._sessions = sessions
        self._time = time
        # By the other end of the connection, whose heartbeats come by it.
        self._heard_by: dict[str, Registration] = {}
        self._quiet_log = QuietLog(log)

    async def register(
        self, request: BrokerRegistrationRequest, context: RequestContext
    ) -> BrokerRegistrationResponse:
        try:
            (result,) = await self._controller.ask(RegisterBroker(request))
        except StorageError as error:
            return BrokerRegistrationResponse(error_code=error.kafka_code)
        node = request.broker_id
        if result.error_code is not ErrorCode.NONE:
            log.info(
                "broker not registered",
                extra={"fields": {"broker": node, "reason": result.error_message}},
            )
            return BrokerRegistrationResponse(error_code=result.error_code)
        self._sessions.note_registration(node, self._view.image.next_offset - 1)
        self._heard_by[context.peer] = node, result.broker_epoch
        log.info(
            "broker registered", extra={"fields": {"broker": node, "epoch": result.broker_epoch}}
        )
        self._tell_lost_folders(node)
        return BrokerRegistrationResponse(broker_epoch=result.broker_epoch)

    def _tell_lost_folders(self, node: int) -> None:
        image = self._view.image
        broker = image.brokers.get(node)
        lost = [] if broker is None else list(in_lost_folders(image, broker))
        if lost:
            topic, partition = lost[0]
            first = f"{topic.name}-{partition.partition}"
            self._quiet_log.say(
                logging.WARNING,
                "broker lacks log folders that have its partitions",
                node,
                {"broker": node, "partitions": len(lost), "first": first},
            )

    async def beat(
        self, request: BrokerHeartbeatRequest, context: RequestContext
    ) -> BrokerHeartbeatResponse:
        node, registration = request.broker_id, (request.broker_id, request.broker_epoch)
        known = self._view.image.brokers.get(node)
        if known is not None and known.broker_epoch == request.broker_epoch:
            self._sessions.heard(registration, self._time.now_s())
            self._heard_by[context.peer] = registration
        try:
            (answer,) = await self._controller.ask(Heartbeat(request))
        except StorageError as error:
            return BrokerHeartbeatResponse(error_code=error.kafka_code)
        if answer.error_code is not ErrorCode.NONE:
            return BrokerHeartbeatResponse(error_code=answer.error_code)
        self._sessions.note_progress(node, request.current_metadata_offset)
        if answer.in_controlled_shutdown:
            self._sessions.note_shutdown(node, self._view.image.next_offset - 1)
        return BrokerHeartbeatResponse(
            is_caught_up=answer.is_caught_up,
            is_fenced=answer.is_fenced,
            should_shut_down=answer.should_shut_down,
        )

    def disconnected(self, peer: str) -> None:
        """Notes that a connection was closed."""
        registration = self._heard_by.pop(peer, None)
        if registration is not None:
            self._sessions.closed(registration)

    async def allocate_producer_ids(
        self, request: AllocateProducerIdsRequest, _context: RequestContext
    ) -> AllocateProducerIdsResponse:
        try:
            (block,) = await self._controller.ask(
                AllocateBlock(request.broker_id, request.broker_epoch)
            )
        except StorageError as error:
            return AllocateProducerIdsResponse(error_code=error.kafka_code)
        return AllocateProducerIdsResponse(
            error_code=block.error_code,
            producer_id_start=block.first_id,
            producer_id_len=block.id_count,
        )

    async def assign_replicas_to_dirs(
        self, request: AssignReplicasToDirsRequest, _context: RequestContext
    ) -> AssignReplicasToDirsResponse:
        refuse_partition_flood(
            topic.partitions for directory in request.directories for topic in directory.topics
        )
        asked = AssignDirectories(request.broker_id, request.broker_epoch, request.directories)
        try:
            (result,) = await self._controller.ask(asked)
        except StorageError as error:
            return AssignReplicasToDirsResponse(error_code=error.kafka_code)
        if result.error_code is not ErrorCode.NONE:
            return AssignReplicasToDirsResponse(error_code=result.error_code)
        return _assigned(request, result.codes)


def _assigned(
    request: AssignReplicasToDirsRequest, codes: Mapping[ReplicaInFolder, ErrorCode]
) -> AssignReplicasToDirsResponse:
    return AssignReplicasToDirsResponse(
        directories=[
            AssignedDirectoryResult(
                id=directory.id,
                topics=[
                    AssignedTopicResult(
                        topic_id=topic.topic_id,
                        partitions=[
                            AssignedPartitionResult(
                                partition_index=one.partition_index,
                                error_code=codes[directory.id, topic.topic_id, one.partition_index],
                            )
                            for one in topic.partitions
                        ],
                    )
                    for topic in directory.topics
                ],
            )
            for directory in request.directories
        ]
    )
