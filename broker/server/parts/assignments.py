"""Tells the controllers elsewhere in which log folders the replicas of this broker are."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from strandline.broker.cluster.membership.folder_assignments import (
    FULL_S,
    FolderAssignments,
    told_when_full,
)
from strandline.broker.cluster.replicas.replica_manager import ReplicaManager
from strandline.broker.server.environment import Environment
from strandline.broker.server.parts.membership import MembershipParts
from strandline.broker.server.parts.part import Part
from strandline.broker.server.parts.storage import StorageParts
from strandline.storage.local.formats.checkpoint import decode_id
from strandline.storage.model import TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentParts(Part):
    """The folders of replicas, as the controllers know them."""

    assignments: FolderAssignments

    @classmethod
    async def make(
        cls,
        environment: Environment,
        storage: StorageParts,
        membership: MembershipParts,
        replicas: ReplicaManager,
    ) -> AssignmentParts:
        """`replicas` follow the metadata already."""
        folders = {
            one.path: (decode_id(one.directory_id), one) for one in storage.log_dirs.directories
        }

        def folder_of(topic_id: TopicId, number: int) -> uuid.UUID | None:
            replica = replicas.partitions_of(topic_id).get(number)
            if replica is None:
                return None
            directory_id, folder = folders[replica.log.local.directory.parent]
            if folder.failure is not None:
                return None
            is_full = environment.clock.monotonic_s() - folder.refused_s < FULL_S
            if not is_full:
                return directory_id
            topic = membership.view.image.topics_by_id.get(topic_id)
            if topic is None or number >= topic.partition_count:
                return directory_id
            return told_when_full(directory_id, topic.partitions[number], membership.node_id)

        assignments = FolderAssignments(
            membership.channel(),
            membership.view,
            environment.clock,
            node_id=membership.node_id,
            broker_epoch=lambda: membership.manager.epoch,
            folder_of=folder_of,
        )
        await membership.view.publish_to(assignments.follow)
        return cls(assignments=assignments, loops={"folder assignments": assignments.run})
