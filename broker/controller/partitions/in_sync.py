"""A leader asks for another set of replicas in sync (AlterPartition; KIP-497, KIP-841, KIP-903).

It names the epochs of leader and partition that it knows. Who asks on an older state gets an error
that says so; who knows a newer one than this controller speaks with the wrong controller. A replica
is in sync only if its broker is unfenced, does not shut down, and is the process that the leader
means. As Kafka's ReplicationControlManager.alterPartition.
"""

from __future__ import annotations

from collections.abc import Sequence

from strandline.broker.cluster.metadata.controller_messages import Decision, Refusal
from strandline.broker.cluster.metadata.image import SAME_LEADER, MetadataImage, PartitionImage
from strandline.broker.cluster.metadata.records import Replicas
from strandline.broker.controller.broker_epoch import check_epoch
from strandline.broker.controller.partitions.change import RECOVERED, RECOVERING, PartitionTarget
from strandline.broker.controller.partitions.decided import Located, Partitions
from strandline.broker.controller.partitions.index import Place
from strandline.broker.controller.partitions.messages import (
    AlteredInSync,
    AlterInSync,
    InSync,
    InSyncResult,
    WantedInSync,
)
from strandline.broker.controller.partitions.turns import in_turns
from strandline.broker.protocol.formats.metadata_records import PartitionChangeRecord
from strandline.broker.protocol.schema.errors import ErrorCode

# A leader that does not know the epoch of a broker.
_ANY_EPOCH = -1


def alter(partitions: Partitions, asked: AlterInSync) -> Decision[AlteredInSync]:
    """Decides on each partition; a broker that is not registered so is refused as a whole."""
    try:
        check_epoch(partitions.image, asked.node_id, asked.broker_epoch)
    except Refusal as refusal:
        refused = AlteredInSync(error_code=refusal.error_code, error_message=refusal.message)
        return Decision(records=(), results=(refused,))
    results: dict[Place, InSyncResult] = {}

    def change(partitions: Partitions, one: WantedInSync) -> PartitionChangeRecord | None:
        try:
            topic, partition = _checked(partitions, asked, one)
        except Refusal as refusal:
            results[one.place] = InSyncResult(error_code=refusal.error_code)
            return None
        target = PartitionTarget(
            isr=_isr(one.isr),
            leader_recovery_state=one.leader_recovery_state,
            election=partitions.online_election(topic),
        )
        record = partitions.change((topic, partition), target)
        results[one.place] = _result(asked, partition, record)
        return record

    # Who names a partition twice knows its epoch only the first time.
    once: dict[Place, WantedInSync] = {}
    for one in asked.wanted:
        once.setdefault(one.place, one)
    done = Decision(records=(), results=(AlteredInSync(results=results),))
    return in_turns(partitions, list(once.values()), change, lambda _: done)


def _result(
    asked: AlterInSync, partition: PartitionImage, record: PartitionChangeRecord | None
) -> InSyncResult:
    if record is not None:
        if record.leader not in (SAME_LEADER, asked.node_id):
            # The change completed a reassignment, and the leader is none of the new replicas.
            return InSyncResult(error_code=ErrorCode.NEW_LEADER_ELECTED)
        partition = partition.changed_by(record)
    return InSyncResult(partition=partition)


def _checked(partitions: Partitions, asked: AlterInSync, one: WantedInSync) -> Located:
    """Returns the partition if it may become so. Raises Refusal."""
    topic_id, number = one.place
    topic = partitions.image.topics_by_id.get(topic_id)
    if topic is None:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_ID)
    if not 0 <= number < topic.partition_count:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    partition = topic.partitions[number]
    if one.leader_epoch > partition.leader_epoch or one.partition_epoch > partition.partition_epoch:
        raise Refusal(ErrorCode.NOT_CONTROLLER)
    if one.leader_epoch < partition.leader_epoch:
        raise Refusal(ErrorCode.FENCED_LEADER_EPOCH)
    if asked.node_id != partition.leader:
        raise Refusal(ErrorCode.INVALID_REQUEST)
    if one.partition_epoch < partition.partition_epoch:
        raise Refusal(ErrorCode.INVALID_UPDATE_VERSION)
    isr, recovery = _isr(one.isr), one.leader_recovery_state
    is_set = isr and len(set(isr)) == len(isr) and set(isr) <= set(partition.replicas)
    if not is_set or partition.leader not in isr:
        raise Refusal(ErrorCode.INVALID_REQUEST)
    if recovery not in (RECOVERED, RECOVERING):
        raise Refusal(ErrorCode.INVALID_REQUEST)
    if recovery == RECOVERING and (len(isr) > 1 or partition.leader_recovery_state == RECOVERED):
        raise Refusal(ErrorCode.INVALID_REQUEST)
    if not all(_is_eligible(partitions.image, replica) for replica in one.isr):
        raise Refusal(ErrorCode.INELIGIBLE_REPLICA)
    return topic, partition


def _isr(replicas: Sequence[InSync]) -> Replicas:
    return tuple(node for node, _ in replicas)


def _is_eligible(image: MetadataImage, replica: InSync) -> bool:
    node, epoch = replica
    broker = image.brokers.get(node)
    if broker is None or broker.fenced or broker.in_controlled_shutdown:
        return False
    return epoch in (_ANY_EPOCH, broker.broker_epoch)
