"""Who leads when brokers come and go, and when a leader is asked for (KIP-460).

    a broker leaves      it is in sync nowhere any more, and others lead what it led
    it ended uncleanly   it is no eligible leader replica any more either
    it comes back        it leads what has no leader, and waits for it
    a request, or time   the first replicas lead again; or, where allowed, an unclean election

As Kafka's ReplicationControlManager.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TypeVar

from strandline.broker.cluster.metadata.controller_messages import Decision, Outcome, Refusal
from strandline.broker.cluster.metadata.image import NO_LEADER, MetadataImage
from strandline.broker.cluster.metadata.records import NodeId
from strandline.broker.controller.partitions.change import Election, PartitionTarget
from strandline.broker.controller.partitions.decided import Candidates, Partitions
from strandline.broker.controller.partitions.index import Place
from strandline.broker.controller.partitions.messages import (
    ElectedLeaders,
    ElectLeaders,
    PartitionNumber,
)
from strandline.broker.controller.partitions.reassigned import without
from strandline.broker.controller.partitions.turns import Finish, in_turns
from strandline.broker.protocol.formats.metadata_records import (
    MetadataRecord,
    PartitionChangeRecord,
)
from strandline.broker.protocol.schema.errors import ErrorCode

ResultT = TypeVar("ResultT")


# --- brokers come and go -------------------------------------------------------------------------


def leave(
    partitions: Partitions,
    node_id: NodeId,
    finish: Finish[ResultT],
    *,
    places: Sequence[Place] | None = None,
    first: Sequence[MetadataRecord] = (),
) -> Decision[ResultT]:
    """A broker is in sync nowhere any more: of the partitions at `places`, or of all."""
    places = partitions.index.in_sync(node_id) if places is None else places
    return in_turns(partitions, places, partial(_without, node_id, None), finish, first=first)


def crash(partitions: Partitions, node_id: NodeId, finish: Finish[ResultT]) -> Decision[ResultT]:
    """A broker ended, and may not have all that was acknowledged: it is eligible nowhere."""
    index = partitions.index
    places = [*index.in_sync(node_id), *index.eligible(node_id)]
    return in_turns(partitions, places, partial(_without, node_id, node_id), finish)


def _without(
    node_id: NodeId, crashed: NodeId | None, partitions: Partitions, place: Place
) -> PartitionChangeRecord | None:
    topic, partition = partitions.get(place)
    target = PartitionTarget(
        isr=without(partition.isr, (node_id,)),
        crashed=crashed,
        election=partitions.online_election(topic),
    )
    return partitions.change((topic, partition), target, Candidates(removed=(node_id,)))


def come_back(
    partitions: Partitions,
    node_id: NodeId,
    finish: Finish[ResultT],
    *,
    first: Sequence[MetadataRecord] = (),
) -> Decision[ResultT]:
    """A broker leads what has no leader, as far as it can."""
    candidates = Candidates(added=(node_id,))

    def elect(partitions: Partitions, place: Place) -> PartitionChangeRecord | None:
        topic, partition = partitions.get(place)
        target = PartitionTarget(election=partitions.online_election(topic))
        return partitions.change((topic, partition), target, candidates)

    return in_turns(partitions, partitions.index.leaderless(), elect, finish, first=first)


# --- elections that are asked for ----------------------------------------------------------------


def elect_leaders(partitions: Partitions, asked: ElectLeaders) -> Decision[ElectedLeaders]:
    """Elects a leader for each of the partitions; for all of them if none is named.

    An answer for all lists those that needed an election.
    """
    wanted: Iterable[PartitionNumber] | None = asked.partitions
    if wanted is None:
        wanted = (
            (topic.name, number)
            for topic in partitions.image.topics.values()
            for number in range(topic.partition_count)
        )
    outcomes: dict[PartitionNumber, Outcome] = {}

    def elect(partitions: Partitions, one: PartitionNumber) -> PartitionChangeRecord | None:
        try:
            record = _elected(partitions, one, asked.election)
        except Refusal as refusal:
            code = refusal.error_code
            if asked.partitions is not None or code is not ErrorCode.ELECTION_NOT_NEEDED:
                outcomes[one] = Outcome(error_code=code, error_message=refusal.message)
            return None
        outcomes[one] = Outcome()
        return record

    done = Decision(records=(), results=(ElectedLeaders(outcomes),))
    return in_turns(partitions, list(dict.fromkeys(wanted)), elect, lambda _: done)


def _elected(
    partitions: Partitions, one: PartitionNumber, election: Election
) -> PartitionChangeRecord:
    """Raises Refusal."""
    name, number = one
    topic = partitions.image.topics.get(name)
    if topic is None:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
    if not 0 <= number < topic.partition_count:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{number}")
    partition = topic.partitions[number]
    is_preferred = election is Election.PREFERRED
    present = partition.leader
    if present == partition.replicas[0] if is_preferred else present != NO_LEADER:
        raise Refusal(ErrorCode.ELECTION_NOT_NEEDED)
    record = partitions.change((topic, partition), PartitionTarget(election=election))
    if record is None:
        raise Refusal(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
            if is_preferred
            else ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        )
    return record


def balance(partitions: Partitions) -> Decision[None]:
    """Lets the first replicas lead where others do, as far as they can."""

    def elect(partitions: Partitions, place: Place) -> PartitionChangeRecord | None:
        return partitions.change(
            partitions.get(place), PartitionTarget(election=Election.PREFERRED)
        )

    places = partitions.index.not_preferred()
    return in_turns(partitions, places, elect, _nothing_more)


def elect_uncleanly(partitions: Partitions) -> Decision[None]:
    """Elects leaders where there are none, and the topic allows that records are lost."""

    def elect(partitions: Partitions, place: Place) -> PartitionChangeRecord | None:
        topic, partition = partitions.get(place)
        election = partitions.online_election(topic)
        if election is not Election.UNCLEAN:
            return None
        return partitions.change((topic, partition), PartitionTarget(election=election))

    places = partitions.index.leaderless()
    return in_turns(partitions, places, elect, _nothing_more)


def _nothing_more(_image: MetadataImage) -> Decision[None]:
    return Decision(records=(), results=())
