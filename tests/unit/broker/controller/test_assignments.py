"""Brokers tell the controller in which log folders their replicas are."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.controller.assignments import assign
from strandline.broker.controller.messages import AssignDirectories
from strandline.broker.controller.partitions.change import Election
from strandline.broker.controller.partitions.elections import balance, elect_leaders
from strandline.broker.controller.partitions.messages import ElectLeaders
from strandline.broker.protocol.formats.metadata_records import (
    UNASSIGNED_DIRECTORY,
    PartitionChangeRecord,
)
from strandline.broker.protocol.messages.assign_replicas_to_dirs import (
    AssignedDirectory,
    AssignedPartition,
    AssignedTopic,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from tests.unit.broker.controller.cluster_of_brokers import (
    TOPIC_ID,
    broker,
    carried_out,
    cluster,
    folder,
    in_sync,
    leaders,
    partitions_of,
)


def asked(
    directory: uuid.UUID, *partitions: int, topic_id: uuid.UUID = TOPIC_ID, epoch: int = 0
) -> AssignDirectories:
    topic = AssignedTopic(
        topic_id=topic_id,
        partitions=[AssignedPartition(partition_index=number) for number in partitions],
    )
    return AssignDirectories(1, epoch, [AssignedDirectory(id=directory, topics=[topic])])


def image_of(*partitions: tuple[int, ...]) -> MetadataImage:
    two = broker(1, log_dirs=[folder(1), folder(2)])
    return cluster(two, broker(3), partitions=partitions)


def test_the_folder_of_a_replica_is_noted_and_no_other() -> None:
    image = image_of((1, 3), (3, 1))
    after, (result,) = carried_out(image, lambda one: assign(one, asked(folder(2), 0, 1)))
    assert set(result.codes.values()) == {ErrorCode.NONE}
    assert [one.directories for one in after.topics["t"].partitions] == [
        (folder(2), UNASSIGNED_DIRECTORY),
        (UNASSIGNED_DIRECTORY, folder(2)),
    ]
    assert (leaders(after), in_sync(after)) == ([1, 3], [(1, 3), (3, 1)])
    assert assign(partitions_of(after), asked(folder(2), 0, 1)).records == ()


def test_a_replica_in_a_folder_that_is_offline_leads_no_longer() -> None:
    image = image_of((1, 3), (1,))
    after, (result,) = carried_out(image, lambda one: assign(one, asked(folder(9), 0, 1)))
    assert set(result.codes.values()) == {ErrorCode.NONE}
    assert (leaders(after), in_sync(after)) == ([3, -1], [(3,), ()])


@pytest.mark.parametrize(
    "known",
    [
        # As the last leader, in the eligible set, or as metadata of before that set have it.
        {"isr": (), "last_known_elr": (1,)},
        {"isr": (), "eligible_leader_replicas": (1,)},
        {"isr": (1,)},
    ],
)
def test_a_replica_whose_folder_is_gone_does_not_lead_with_an_empty_log(
    known: dict[str, Any],
) -> None:
    image = image_of((1, 3), (1,)).apply_entry(
        PartitionChangeRecord(
            partition_id=number, topic_id=TOPIC_ID, leader=-1, directories=directories, **known
        )
        for number, directories in enumerate([(folder(8), folder(3)), (folder(8),)])
    )
    image, (result,) = carried_out(image, lambda one: assign(one, asked(folder(2), 0, 1)))
    assert set(result.codes.values()) == {ErrorCode.NONE}
    image, _ = carried_out(image, balance)
    assert leaders(image) == [-1, -1]
    # Who asks for it gets it.
    asked_for = ElectLeaders(election=Election.UNCLEAN, partitions=[("t", 1)])
    image, _ = carried_out(image, lambda one: elect_leaders(one, asked_for))
    assert leaders(image) == [-1, 1]


def test_a_replica_that_moved_between_two_folders_stays_what_it_was() -> None:
    image = image_of((1, 3)).apply_entry(
        [
            PartitionChangeRecord(
                partition_id=0,
                topic_id=TOPIC_ID,
                leader=-1,
                isr=(),
                last_known_elr=(1,),
                directories=(folder(1), folder(3)),
            )
        ]
    )
    image, _ = carried_out(image, lambda one: assign(one, asked(folder(2), 0)))
    assert leaders(image) == [1]


def test_what_is_unknown_or_elsewhere_has_its_error() -> None:
    image = image_of((1,), (3,))
    (result,) = assign(partitions_of(image), asked(folder(1), 0, 1, 2)).results
    assert result.codes == {
        (folder(1), TOPIC_ID, 0): ErrorCode.NONE,
        (folder(1), TOPIC_ID, 1): ErrorCode.NOT_LEADER_OR_FOLLOWER,
        (folder(1), TOPIC_ID, 2): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    (unknown,) = assign(
        partitions_of(image), asked(folder(1), 0, topic_id=uuid.UUID(int=7))
    ).results
    assert list(unknown.codes.values()) == [ErrorCode.UNKNOWN_TOPIC_ID]


def test_an_earlier_process_assigns_nothing() -> None:
    decision = assign(partitions_of(image_of((1,))), asked(folder(1), 0, epoch=5))
    (result,) = decision.results
    assert (result.error_code, decision.records) == (ErrorCode.STALE_BROKER_EPOCH, ())
