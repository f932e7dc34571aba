"""Records of KIP-848 groups mean what they meant when they were written."""

from __future__ import annotations

import uuid

import pytest

from strandline.broker.coordination.model.consumer_messages import (
    CurrentAssignment,
    CurrentRecord,
    MemberState,
)
from strandline.broker.coordination.records.consumer_records import (
    decode_consumer_record,
    encode_consumer_record,
)
from strandline.broker.protocol.formats.consumer_group_records import (
    CURRENT_ASSIGNMENT_TYPE,
    ConsumerGroupKey,
    CurrentAssignmentValue,
    CurrentPartitions,
    encode_consumer_key,
    encode_consumer_value,
)

TOPIC_ID = uuid.UUID(int=7)


def current_record(partitions: list[int], epochs: list[int], *, epoch: int = 9) -> CurrentRecord:
    """What is read of a record with these epochs beside its partitions."""
    row = CurrentPartitions(topic_id=TOPIC_ID, partitions=partitions, assignment_epochs=epochs)
    value = CurrentAssignmentValue(
        epoch=epoch, previous_epoch=8, state=0, assigned=[row], revoking=[]
    )
    key = ConsumerGroupKey(record_type=CURRENT_ASSIGNMENT_TYPE, group="g", name="m")
    found = decode_consumer_record(encode_consumer_key(key), encode_consumer_value(value))
    assert isinstance(found, CurrentRecord)
    return found


def test_each_partitions_epoch_is_in_the_record_also_of_those_to_be_given_back() -> None:
    current = CurrentAssignment(
        epoch=9,
        previous_epoch=8,
        state=MemberState.UNREVOKED,
        assigned={TOPIC_ID: {2: 9, 0: 5}},
        revoking={TOPIC_ID: {1: 7}},
    )
    record = CurrentRecord("g", "m", current)
    key, value = encode_consumer_record(record)
    assert decode_consumer_record(key, value) == record
    assert [current.assignment_epoch(TOPIC_ID, p) for p in range(4)] == [5, 7, 9, None]


@pytest.mark.parametrize("epochs", [[], [5], [5, 6, 7]])
def test_partitions_without_their_epochs_were_given_in_the_members_as_in_kafka(
    epochs: list[int],
) -> None:
    record = current_record([0, 2], epochs)
    assert record.current is not None
    assert record.current.assigned == {TOPIC_ID: {0: 9, 2: 9}}


def test_partitions_without_their_epochs_of_a_static_member_that_is_away_count_from_zero() -> None:
    record = current_record([0], [], epoch=-2)
    assert record.current is not None
    assert record.current.assigned == {TOPIC_ID: {0: 0}}
