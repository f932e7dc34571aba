"""Other replicas for a partition: asked for, cancelled, listed (KIP-455, KIP-860).

What is asked for adds the new replicas at once, and takes the old ones away when all new ones are
in sync, with the change of that set (change.py). As Kafka's ReplicationControlManager.

One thing more than Kafka's: a partition none of whose replicas is on a registered broker gets the
new ones at once, because nobody is left that they could copy. Whoever unregistered the last of them
has said so. The first new one leads under the next epoch, with what it finds in the archive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strandline.broker.cluster.metadata.controller_messages import Decision, Outcome, Refusal
from strandline.broker.cluster.metadata.image import (
    NO_LEADER,
    SAME_LEADER,
    PartitionImage,
)
from strandline.broker.cluster.metadata.placement import check_assignments
from strandline.broker.cluster.metadata.records import Replicas
from strandline.broker.controller.partitions.change import Election, PartitionTarget
from strandline.broker.controller.partitions.decided import Located, Partitions
from strandline.broker.controller.partitions.index import Place
from strandline.broker.controller.partitions.messages import (
    ListReassignments,
    PartitionNumber,
    Reassigned,
    ReassignPartitions,
)
from strandline.broker.controller.partitions.reassigned import Reassignment, Revert, without
from strandline.broker.controller.partitions.turns import in_turns
from strandline.broker.protocol.formats.metadata_records import PartitionChangeRecord
from strandline.broker.protocol.schema.errors import ErrorCode


def reassign(partitions: Partitions, asked: ReassignPartitions) -> Decision[Reassigned]:
    """Begins or cancels the reassignment of each partition, or refuses it."""
    outcomes: dict[PartitionNumber, Outcome] = {}

    def change(partitions: Partitions, one: PartitionNumber) -> PartitionChangeRecord | None:
        try:
            record = _reassigned(partitions, one, asked)
        except Refusal as refusal:
            outcomes[one] = Outcome(error_code=refusal.error_code, error_message=refusal.message)
            return None
        outcomes[one] = Outcome()
        return record

    done = Decision(records=(), results=(Reassigned(outcomes),))
    return in_turns(partitions, list(asked.replicas), change, lambda _: done)


def _reassigned(
    partitions: Partitions, one: PartitionNumber, asked: ReassignPartitions
) -> PartitionChangeRecord | None:
    """Raises Refusal."""
    name, number = one
    topic = partitions.image.topics.get(name)
    if topic is None:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    if not 0 <= number < topic.partition_count:
        raise Refusal(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{number}."
        )
    located, replicas = (topic, topic.partitions[number]), asked.replicas[one]
    if replicas is None:
        return _cancelled(partitions, located)
    return _begun(partitions, located, replicas, asked)


def _cancelled(partitions: Partitions, located: Located) -> PartitionChangeRecord | None:
    topic, partition = located
    if not Reassignment.of(partition).is_in_progress:
        raise Refusal(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    revert, election = Revert.of(partition), partitions.online_election(topic)
    if revert.is_unclean and election is not Election.UNCLEAN:
        raise Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Unable to revert partition assignment for {topic.name}:{partition.partition} because"
            " it would require an unclean leader election.",
        )
    target = PartitionTarget(
        isr=revert.isr, replicas=revert.replicas, adding=(), removing=(), election=election
    )
    return partitions.change(located, target)


def _begun(
    partitions: Partitions, located: Located, replicas: Replicas, asked: ReassignPartitions
) -> PartitionChangeRecord | None:
    _, partition = located
    brokers = partitions.image.brokers
    check_assignments([replicas], brokers)
    if not asked.allows_other_factor:
        _check_factor(partition, replicas)
    if partition.leader == NO_LEADER and brokers.keys().isdisjoint(partition.replicas):
        return _taken_over(partitions, located, replicas)
    begun = Reassignment.towards(partition.replicas, replicas)
    # What came for an earlier reassignment stays a replica that came: it goes if this one is
    # cancelled. What was to go for it stays if it is wanted again.
    target = PartitionTarget(
        replicas=begun.replicas, adding=begun.adding or None, removing=begun.removing
    )
    return partitions.change(located, target)


def _taken_over(
    partitions: Partitions, located: Located, replicas: Replicas
) -> PartitionChangeRecord | None:
    """The replicas of a partition whose brokers are gone for good. Raises Refusal."""
    target = PartitionTarget(isr=replicas[:1], replicas=replicas, adding=(), removing=())
    record = partitions.change(located, target)
    if record is None or record.leader in (NO_LEADER, SAME_LEADER):
        raise Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Broker {replicas[0]} is to take over a partition of which no replica is left, and"
            " cannot lead now.",
        )
    return record.replaced(eligible_leader_replicas=[], last_known_elr=[])


def _check_factor(partition: PartitionImage, replicas: Replicas) -> None:
    """Raises Refusal unless there will be as many replicas as after the present reassignment."""
    factor = len(without(partition.replicas, partition.removing_replicas))
    if factor != len(replicas):
        raise Refusal(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is changed from {factor} to {len(replicas)}",
        )


def list_reassignments(
    partitions: Partitions, asked: ListReassignments
) -> Decision[Mapping[str, Sequence[PartitionImage]]]:
    """Finds those that go on among the partitions asked for, or all."""
    places: Sequence[Place]
    if asked.partitions is None:
        places = partitions.index.reassigned()
    else:
        topics = partitions.image.topics
        places = [
            (topics[name].topic_id, number) for name, number in asked.partitions if name in topics
        ]
    found: dict[str, list[PartitionImage]] = {}
    for place in places:
        located = partitions.find(place)
        if located is not None and Reassignment.of(located[1]).is_in_progress:
            found.setdefault(located[0].name, []).append(located[1])
    return Decision(records=(), results=(found,))
