"""Leaders say who is in sync. As ReplicationControlManagerTest's half about AlterPartition."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace

import pytest

from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.controller.partitions import turns
from strandline.broker.controller.partitions.in_sync import alter
from strandline.broker.controller.partitions.messages import (
    AlteredInSync,
    AlterInSync,
    InSync,
    InSyncResult,
    WantedInSync,
)
from strandline.broker.protocol.formats.metadata_records import PartitionChangeRecord
from strandline.broker.protocol.schema.errors import ErrorCode
from tests.unit.broker.controller.cluster_of_brokers import (
    TOPIC_ID,
    broker,
    carried_out,
    cluster,
    eligible,
    first,
    in_sync,
)

EPOCHS = {node: 100 + node for node in range(1, 5)}


def three(*partitions: tuple[int, ...], **properties: str) -> MetadataImage:
    """Three brokers, whose epochs are those of EPOCHS."""
    brokers = [broker(node, EPOCHS[node]) for node in (1, 2, 3)]
    return cluster(*brokers, partitions=partitions or [(1, 2, 3)], **properties)


def change(partition: int = 0, **what: object) -> PartitionChangeRecord:
    return PartitionChangeRecord(partition_id=partition, topic_id=TOPIC_ID, **what)  # type: ignore[arg-type]


def wanted(image: MetadataImage, *isr: int, number: int = 0, **what: object) -> WantedInSync:
    """What a leader asks that knows the partition as it is."""
    partition = image.topics["t"].partitions[number]
    asked = WantedInSync(
        place=(TOPIC_ID, number),
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        isr=[(node, EPOCHS[node]) for node in isr],
    )
    return replace(asked, **what)  # type: ignore[arg-type]


def answered(
    image: MetadataImage, *asked: WantedInSync, node: int = 1, epoch: int | None = None
) -> tuple[MetadataImage, AlteredInSync]:
    request = AlterInSync(
        node_id=node, broker_epoch=EPOCHS[node] if epoch is None else epoch, wanted=asked
    )
    after, (result,) = carried_out(image, lambda one: alter(one, request))
    return after, result


def one(
    image: MetadataImage, asked: WantedInSync, node: int = 1
) -> tuple[MetadataImage, InSyncResult]:
    after, answer = answered(image, asked, node=node)
    assert answer.error_code is ErrorCode.NONE
    (result,) = answer.results.values()
    return after, result


def refusal(image: MetadataImage, asked: WantedInSync, node: int = 1) -> ErrorCode:
    after, result = one(image, asked, node)
    assert after is image
    assert result.partition is None
    return result.error_code


def test_the_set_in_sync_shrinks_and_grows() -> None:
    image, result = one(three(), wanted(three(), 1, 2))
    assert (in_sync(image), result.partition) == ([(1, 2)], first(image))
    assert (first(image).leader_epoch, first(image).partition_epoch) == (0, 1)
    image, result = one(image, wanted(image, 1, 2, 3))
    assert (in_sync(image), result.partition) == ([(1, 2, 3)], first(image))
    assert (first(image).leader_epoch, first(image).partition_epoch) == (0, 2)


def test_who_leaves_below_the_minimum_stays_eligible_until_enough_are_back() -> None:
    image = three(min_insync_replicas="2")
    image, _ = one(image, wanted(image, 1, 2))
    assert eligible(image) == [()]
    image, _ = one(image, wanted(image, 1))
    assert (in_sync(image), eligible(image)) == ([(1,)], [(2,)])
    image, _ = one(image, wanted(image, 1, 3))
    assert (in_sync(image), eligible(image)) == ([(1, 3)], [()])


def test_nothing_to_change_is_answered_with_the_state() -> None:
    image = three()
    after, result = one(image, wanted(image, 1, 2, 3))
    assert after is image
    assert (result.error_code, result.partition) == (ErrorCode.NONE, first(image))


def test_a_broker_of_an_earlier_registration_is_refused_as_a_whole() -> None:
    image = three()
    for node, epoch in ((1, 100), (1, 102), (4, 104)):
        after, answer = answered(image, wanted(image, 1), node=node, epoch=epoch)
        assert after is image
        assert (answer.error_code, answer.results) == (ErrorCode.STALE_BROKER_EPOCH, {})


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ({"place": (uuid.UUID(int=0), 0)}, ErrorCode.UNKNOWN_TOPIC_ID),
        ({"place": (uuid.UUID(int=0xC), 0)}, ErrorCode.UNKNOWN_TOPIC_ID),
        ({"place": (TOPIC_ID, 1)}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"place": (TOPIC_ID, -1)}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"leader_epoch": 8}, ErrorCode.NOT_CONTROLLER),
        ({"partition_epoch": 3}, ErrorCode.NOT_CONTROLLER),
        ({"leader_epoch": 0}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"partition_epoch": 0}, ErrorCode.INVALID_UPDATE_VERSION),
        ({"isr": ()}, ErrorCode.INVALID_REQUEST),
        ({"isr": ((1, 101), (1, 101))}, ErrorCode.INVALID_REQUEST),
        ({"isr": ((1, 101), (4, 104))}, ErrorCode.INVALID_REQUEST),
        ({"isr": ((2, 102), (3, 103))}, ErrorCode.INVALID_REQUEST),
        ({"leader_recovery_state": 1}, ErrorCode.INVALID_REQUEST),
        ({"leader_recovery_state": 7}, ErrorCode.INVALID_REQUEST),
        ({"isr": ((1, 101), (2, 999))}, ErrorCode.INELIGIBLE_REPLICA),
    ],
)
def test_what_does_not_fit_the_partition_has_its_error(
    what: dict[str, object], code: ErrorCode
) -> None:
    # Under the leader's epoch 1 and the partition's epoch 1.
    image = three().apply_entry([change(leader=1)])
    assert refusal(image, wanted(image, 1, 2, **what)) is code


def test_another_than_the_leader_is_refused() -> None:
    image = three()
    assert refusal(image, wanted(image, 1, 2), node=2) is ErrorCode.INVALID_REQUEST


def test_the_epochs_are_looked_at_in_kafkas_order() -> None:
    image = three().apply_entry([change(leader=2), change(isr=[2])])
    stale = wanted(image, 1, 2, leader_epoch=0, partition_epoch=0)
    assert refusal(image, stale) is ErrorCode.FENCED_LEADER_EPOCH
    assert refusal(image, replace(stale, partition_epoch=9)) is ErrorCode.NOT_CONTROLLER


@pytest.mark.parametrize("isr", [((1, 101), (2, 102)), ((1, -1), (2, -1))])
def test_brokers_that_are_fenced_or_shut_down_are_not_in_sync(isr: Sequence[InSync]) -> None:
    image = three().apply_entry([change(isr=[1])])
    for other in (broker(2, 102, fenced=True), broker(2, 102, shuts_down=True)):
        changed = image.apply_entry([other])
        assert refusal(changed, wanted(changed, isr=isr)) is ErrorCode.INELIGIBLE_REPLICA
    back = image.apply_entry([broker(2, 102)])
    after, _ = one(back, wanted(back, isr=isr))
    assert in_sync(after) == [(1, 2)]


def test_a_broker_that_registered_again_is_in_sync_only_under_its_new_epoch() -> None:
    image = three().apply_entry([change(isr=[1]), broker(2, 222)])
    assert refusal(image, wanted(image, 1, 2)) is ErrorCode.INELIGIBLE_REPLICA
    for epoch in (222, -1):
        after, _ = one(image, wanted(image, isr=((1, 101), (2, epoch))))
        assert in_sync(after) == [(1, 2)]


def test_a_leader_that_recovers_is_alone_until_it_has() -> None:
    image = three().apply_entry([change(isr=[1], leader_recovery_state=1)])
    still = wanted(image, 1, 2, leader_recovery_state=1)
    assert refusal(image, still) is ErrorCode.INVALID_REQUEST
    after, _ = one(image, wanted(image, 1))
    assert first(after).leader_recovery_state == 0
    after, _ = one(image, wanted(image, 1, 2))
    assert (first(after).leader_recovery_state, in_sync(after)) == (0, [(1, 2)])


def test_the_last_replica_in_sync_completes_a_reassignment() -> None:
    image = three((1, 2, 3)).apply_entry([change(isr=[1, 2], adding_replicas=[3])])
    after, result = one(image, wanted(image, 1, 2, 3))
    assert (first(after).adding_replicas, result.partition) == ((), first(after))


def test_a_leader_that_a_completed_reassignment_takes_away_is_told_so() -> None:
    image = three((1, 2, 3)).apply_entry(
        [change(isr=[1, 2], adding_replicas=[3], removing_replicas=[1])]
    )
    after, result = one(image, wanted(image, 1, 2, 3))
    assert (result.error_code, result.partition) == (ErrorCode.NEW_LEADER_ELECTED, None)
    assert (first(after).leader, first(after).replicas, in_sync(after)) == (2, (2, 3), [(2, 3)])


def test_many_partitions_are_decided_on_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "ITEMS_PER_TURN", 2)
    image = three(*[(1, 2, 3)] * 5)
    asked = [wanted(image, 1, 2, number=number) for number in range(5)]
    # Named twice, it is changed once.
    after, answer = answered(image, *asked, asked[0])
    assert [result.partition for result in answer.results.values()] == list(
        after.topics["t"].partitions
    )
    assert in_sync(after) == [(1, 2)] * 5
    assert first(after).partition_epoch == 1
