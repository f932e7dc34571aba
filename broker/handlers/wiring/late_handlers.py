"""What serves the APIs that few clients ask first: groups, topics, offsets by time, administration.

This module brings all that a start leaves out, a tenth of its time. `serving` imports it
in a thread soon after the start, `wiring` for the first such request if that comes sooner.
"""

from __future__ import annotations

from collections.abc import Mapping

from strandline.broker.cluster.replicas.replica_moves import ReplicaMoves
from strandline.broker.coordination.runtime.runtime import GroupCoordinator
from strandline.broker.handlers.admin.admin import make_admin_handlers
from strandline.broker.handlers.admin.configs import ConfigHandlers
from strandline.broker.handlers.admin.topics import TopicHandlers
from strandline.broker.handlers.auth.sasl import no_authenticate, no_handshake
from strandline.broker.handlers.dispatch.dispatch import Handler
from strandline.broker.handlers.groups.groups import make_group_handlers
from strandline.broker.handlers.metadata.offsets import OffsetHandlers
from strandline.broker.handlers.metadata.producer_ids import ProducerIdHandler
from strandline.broker.handlers.services.services import Services
from strandline.broker.protocol.schema.api import ApiKey
from strandline.storage.local.log_dirs.log_dirs import LogDirs


def make_late_handlers(
    services: Services, groups: GroupCoordinator, log_dirs: LogDirs, moves: ReplicaMoves
) -> Mapping[ApiKey, Handler]:
    """One handler for each API that `wiring` promises."""
    topics = TopicHandlers(services)
    offsets = OffsetHandlers(services)
    return {
        ApiKey.CREATE_TOPICS: topics.create_topics,
        ApiKey.DELETE_TOPICS: topics.delete_topics,
        ApiKey.CREATE_PARTITIONS: topics.create_partitions,
        ApiKey.DESCRIBE_CONFIGS: ConfigHandlers(services).describe_configs,
        ApiKey.INIT_PRODUCER_ID: ProducerIdHandler(services).init_producer_id,
        ApiKey.LIST_OFFSETS: offsets.list_offsets,
        ApiKey.OFFSET_FOR_LEADER_EPOCH: offsets.offset_for_leader_epoch,
        ApiKey.DELETE_RECORDS: offsets.delete_records,
        ApiKey.SASL_HANDSHAKE: no_handshake,
        ApiKey.SASL_AUTHENTICATE: no_authenticate,
        **make_group_handlers(services, groups),
        **make_admin_handlers(services, log_dirs, moves),
    }
