"""What the active controller decides, by the type of the request.

The decisions are pure functions of the image, and of the configuration in force on the controller.
"""

from __future__ import annotations

from strandline.broker.authorization import changes as acl_changes
from strandline.broker.authorization.changes import CreateAcls, DeleteAcls
from strandline.broker.cluster.metadata import controller
from strandline.broker.cluster.metadata.active_controller import Decisions
from strandline.broker.cluster.metadata.controller_messages import (
    AllocateProducerIds,
    CreatePartitions,
    CreateTopics,
    Decision,
    DeleteTopics,
    FinishPurges,
    RaiseLeaderEpochs,
    UpdateFeatures,
)
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.config import config_changes
from strandline.broker.config.config_changes import AlterConfigs
from strandline.broker.config.running_config import RunningConfig
from strandline.broker.controller import assignments, heartbeats, producer_ids, registration
from strandline.broker.controller.attended_time import AttendedTime
from strandline.broker.controller.messages import (
    AllocateBlock,
    AssignDirectories,
    BalanceLeaders,
    ElectUncleanLeaders,
    FenceBroker,
    Heartbeat,
    RegisterBroker,
    Registered,
    UnregisterBroker,
)
from strandline.broker.controller.partitions import elections, in_sync, reassignments
from strandline.broker.controller.partitions.decided import Partitions
from strandline.broker.controller.partitions.index import PartitionIndex
from strandline.broker.controller.partitions.messages import (
    AlterInSync,
    ElectLeaders,
    ListReassignments,
    ReassignPartitions,
)
from strandline.broker.controller.sessions import BrokerSessions, Session
from strandline.broker.handlers.admin import scram_users
from strandline.broker.handlers.admin.scram_users import AlterScramUsers
from strandline.broker.quotas import changes
from strandline.broker.quotas.changes import AlterClientQuotas


def controller_decisions(
    running: RunningConfig, index: PartitionIndex, sessions: BrokerSessions, time: AttendedTime
) -> Decisions:
    """Returns those of a controller with brokers elsewhere, on what these ask of it."""

    def partitions(image: MetadataImage) -> Partitions:
        return Partitions(image=image, index=index, defaults=running.current.topics.properties)

    def register(image: MetadataImage, asked: RegisterBroker) -> Decision[Registered]:
        known = image.brokers.get(asked.request.broker_id)
        session = Session.NONE
        if known is not None:
            session = sessions.session((known.broker_id, known.broker_epoch), time.now_s())
        return registration.register(partitions(image), asked.request, session)

    return {
        RegisterBroker: register,
        Heartbeat: lambda image, asked: heartbeats.beat(partitions(image), asked.request, sessions),
        FenceBroker: lambda image, asked: heartbeats.fence(
            partitions(image),
            asked,
            heard_s=sessions.heard_s((asked.node_id, asked.broker_epoch)),
        ),
        UnregisterBroker: lambda image, asked: heartbeats.unregister(partitions(image), asked),
        AllocateBlock: producer_ids.allocate,
        AssignDirectories: lambda image, asked: assignments.assign(partitions(image), asked),
        AlterInSync: lambda image, asked: in_sync.alter(partitions(image), asked),
        ElectLeaders: lambda image, asked: elections.elect_leaders(partitions(image), asked),
        ReassignPartitions: lambda image, asked: reassignments.reassign(partitions(image), asked),
        ListReassignments: lambda image, asked: reassignments.list_reassignments(
            partitions(image), asked
        ),
        BalanceLeaders: lambda image, _: elections.balance(partitions(image)),
        ElectUncleanLeaders: lambda image, _: elections.elect_uncleanly(partitions(image)),
    }


def decisions(running: RunningConfig, *, notes_purges: bool = True) -> Decisions:
    """Returns the decision for each type of request.

    `notes_purges`: the metadata note which deleted topics the bucket may still have; the mirror of
    a cluster has notes of its own.
    """
    return {
        CreateTopics: lambda image, asked: controller.create_topics(
            image, asked.topics, defaults=running.current.topics, intent=asked.intent
        ),
        DeleteTopics: lambda image, asked: controller.delete_topics(
            image,
            asked.references,
            defaults=running.current.topics,
            notes_purges=notes_purges,
        ),
        CreatePartitions: lambda image, asked: controller.create_partitions(
            image, asked.topics, intent=asked.intent
        ),
        AlterConfigs: lambda image, asked: config_changes.alter(
            image, asked, static=running.static, current=running.current
        ),
        AlterClientQuotas: changes.alter,
        AlterScramUsers: scram_users.alter,
        CreateAcls: lambda image, asked: acl_changes.create(image, asked.rules),
        DeleteAcls: lambda image, asked: acl_changes.delete(image, asked.found),
        UpdateFeatures: lambda image, asked: controller.update_features(
            image, asked.updates, intent=asked.intent
        ),
        AllocateProducerIds: lambda image, asked: controller.allocate_producer_ids(
            image, asked.node_id
        ),
        FinishPurges: lambda image, asked: controller.finish_purges(image, asked.topic_ids),
        RaiseLeaderEpochs: lambda image, asked: controller.raise_leader_epochs(
            image, asked.node_id
        ),
    }
