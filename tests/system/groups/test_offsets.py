"""Offsets over sockets: every version, what is refused, what is forgotten, what is internal."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from strandline.broker.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from strandline.broker.protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from strandline.broker.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from strandline.broker.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from strandline.storage.model import ZERO_TOPIC_ID
from tests.support.broker import BrokerProcess, eventually
from tests.support.wire import WireClient
from tests.system.calls import (
    batch,
    create_topic,
    delete_records,
    delete_topic,
    describe_topic,
    produce,
    read_all,
)
from tests.system.group_calls import (
    GroupMember,
    commit,
    committed,
    fetch_groups,
    new_group,
)

UNKNOWN_TOPIC_OR_PARTITION = 3
OFFSET_METADATA_TOO_LARGE = 12
INVALID_TOPIC_EXCEPTION = 17
ILLEGAL_GENERATION = 22
UNKNOWN_MEMBER_ID = 25
GROUP_ID_NOT_FOUND = 69
GROUP_SUBSCRIBED_TO_TOPIC = 86
UNKNOWN_TOPIC_ID = 100
OFFSETS_TOPIC = "__consumer_offsets"

MakeTopic = Callable[..., str]
BROKER_SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "3",
    "offset.metadata.max.bytes": "10",
}


@pytest.mark.parametrize("version", range(2, 11))
def test_a_commit_of_every_version_is_fetched(
    client: WireClient, topic: str, group_id: str, version: int
) -> None:
    topic_id = describe_topic(client, topic).topic_id
    codes = commit(
        client, group_id, {(topic, 0): 41 + version}, version=version, topic_ids={topic: topic_id}
    )
    assert codes == [0]
    assert committed(client, group_id, topic) == 41 + version


@pytest.mark.parametrize("version", range(1, 8))
def test_offsets_are_fetched_in_every_version_of_one_group(
    client: WireClient, topic: str, group_id: str, version: int
) -> None:
    assert commit(client, group_id, {(topic, 0): 5}) == [0]
    assert committed(client, group_id, topic, version=version) == 5
    assert committed(client, group_id, topic, 1, version=version) == -1
    assert committed(client, group_id, "no-such-topic", version=version) == -1
    assert committed(client, "no-such-group", topic, version=version) == -1


@pytest.mark.parametrize("version", [8, 9, 10])
def test_offsets_of_several_groups_are_fetched_at_once(
    client: WireClient, topic: str, version: int
) -> None:
    first, second, third = new_group(), new_group(), new_group()
    topic_id = describe_topic(client, topic).topic_id
    assert commit(client, first, {(topic, 0): 5}) == [0]
    assert commit(client, second, {(topic, 0): 6}, metadata=None) == [0]
    wanted = OffsetFetchRequestTopics(name=topic, topic_id=topic_id, partition_indexes=[0, 7])
    answer = fetch_groups(client, {first: [wanted], second: None, third: None}, version=version)
    assert [group.error_code for group in answer.groups] == [0, 0, 0]
    named, everything, nothing = answer.groups
    assert [
        (p.partition_index, p.committed_offset, p.metadata) for p in named.topics[0].partitions
    ] == [(0, 5, "m"), (7, -1, "")]
    (fetched,) = everything.topics
    assert (fetched.topic_id, fetched.name) == (
        (topic_id, "") if version == 10 else (ZERO_TOPIC_ID, topic)
    )
    assert [(p.committed_offset, p.metadata) for p in fetched.partitions] == [(6, "")]
    assert not nothing.topics


def test_everything_of_one_group_is_fetched_at_once(
    client: WireClient, make_topic: MakeTopic, group_id: str
) -> None:
    one, two = make_topic(2), make_topic()
    assert commit(client, group_id, {(one, 0): 1, (one, 1): 2, (two, 0): 3}) == [0, 0, 0]
    answer = client.ask(OffsetFetchRequest(group_id=group_id, topics=None), OffsetFetchResponse, 2)
    found = {
        (topic.name, partition.partition_index): partition.committed_offset
        for topic in answer.topics
        for partition in topic.partitions
    }
    assert found == {(one, 0): 1, (one, 1): 2, (two, 0): 3}


def test_what_does_not_exist_cannot_be_committed_to(
    client: WireClient, topic: str, group_id: str
) -> None:
    codes = commit(client, group_id, {(topic, 0): 1, (topic, 9): 1, ("nowhere", 0): 1})
    assert codes == [0, UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_OR_PARTITION]
    assert commit(client, group_id, {(topic, 0): 1}, version=10) == [UNKNOWN_TOPIC_ID]
    wanted = OffsetFetchRequestTopics(topic_id=ZERO_TOPIC_ID, partition_indexes=[0])
    (group,) = fetch_groups(client, {group_id: [wanted]}, version=10).groups
    assert [p.error_code for p in group.topics[0].partitions] == [UNKNOWN_TOPIC_ID]


def test_too_much_metadata_is_refused(client: WireClient, topic: str, group_id: str) -> None:
    assert commit(client, group_id, {(topic, 0): 1}, metadata="x" * 11) == [
        OFFSET_METADATA_TOO_LARGE
    ]


def test_a_member_of_a_group_that_does_not_exist_cannot_commit(
    client: WireClient, topic: str, group_id: str
) -> None:
    as_member = {"member_id": "m", "generation": 1}
    old = commit(client, group_id, {(topic, 0): 1}, version=8, **as_member)  # type: ignore[arg-type]
    new = commit(client, group_id, {(topic, 0): 1}, version=9, **as_member)  # type: ignore[arg-type]
    assert (old, new) == ([ILLEGAL_GENERATION], [GROUP_ID_NOT_FOUND])


def test_members_commit_in_their_generation_and_strangers_not_at_all(
    broker: BrokerProcess, client: WireClient, topic: str, group_id: str
) -> None:
    member = GroupMember(broker.port, group_id, topics=[topic])
    member.join()
    member.sync({})

    def code(member_id: str, generation: int) -> int:
        (found,) = commit(
            client, group_id, {(topic, 0): 7}, member_id=member_id, generation=generation
        )
        return found

    assert code("", -1) == UNKNOWN_MEMBER_ID
    assert code("stranger", 1) == UNKNOWN_MEMBER_ID
    assert code(member.member_id, 2) == ILLEGAL_GENERATION
    assert committed(client, group_id, topic) == -1
    assert code(member.member_id, 1) == 0
    assert committed(client, group_id, topic) == 7
    member.close()


def test_offsets_are_deleted_unless_members_read_the_topic(
    broker: BrokerProcess, client: WireClient, make_topic: MakeTopic, group_id: str
) -> None:
    read, other = make_topic(), make_topic()
    assert commit(client, group_id, {(read, 0): 1, (other, 0): 2}) == [0, 0]
    member = GroupMember(broker.port, group_id, topics=[read])
    member.join()
    request = OffsetDeleteRequest(
        group_id=group_id,
        topics=[
            OffsetDeleteRequestTopic(
                name=name, partitions=[OffsetDeleteRequestPartition(partition_index=0)]
            )
            for name in (read, other, "nowhere")
        ],
    )
    answer = client.ask(request, OffsetDeleteResponse, 0)
    assert answer.error_code == 0
    assert [topic.partitions[0].error_code for topic in answer.topics] == [
        GROUP_SUBSCRIBED_TO_TOPIC,
        0,
        UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert committed(client, group_id, read) == 1
    assert committed(client, group_id, other) == -1
    member.close()


def test_offsets_of_a_group_that_does_not_exist_cannot_be_deleted(
    client: WireClient, group_id: str
) -> None:
    answer = client.ask(OffsetDeleteRequest(group_id=group_id, topics=[]), OffsetDeleteResponse, 0)
    assert answer.error_code == GROUP_ID_NOT_FOUND


def test_the_offsets_of_a_deleted_topic_do_not_come_back_with_its_name(
    client: WireClient, topic: str, group_id: str
) -> None:
    assert commit(client, group_id, {(topic, 0): 99}) == [0]
    delete_topic(client, topic)
    assert eventually(lambda: committed(client, group_id, topic) == -1)
    create_topic(client, topic)
    assert committed(client, group_id, topic) == -1


# --- the internal topic ----------------------------------------------------------------------


@pytest.fixture
def offsets_topic(client: WireClient, topic: str) -> str:
    assert commit(client, new_group(), {(topic, 0): 1}) == [0]
    return OFFSETS_TOPIC


def test_the_offsets_topic_is_internal_and_has_the_partitions_asked_for(
    client: WireClient, offsets_topic: str
) -> None:
    found = describe_topic(client, offsets_topic)
    assert found.is_internal
    assert len(found.partitions) == 3


def test_clients_read_the_offsets_topic_and_cannot_write_it(
    client: WireClient, offsets_topic: str
) -> None:
    records = [
        record
        for partition in range(3)
        for record in read_all(client, offsets_topic, partition=partition)
    ]
    assert records
    assert all(record.key is not None for record in records)
    assert produce(client, offsets_topic, batch()).error_code == INVALID_TOPIC_EXCEPTION


def test_clients_can_neither_delete_nor_grow_nor_empty_the_offsets_topic(
    client: WireClient, offsets_topic: str
) -> None:
    deleted = client.ask(
        DeleteTopicsRequest(topic_names=[offsets_topic], timeout_ms=1000), DeleteTopicsResponse, 5
    )
    assert [r.error_code for r in deleted.responses] == [INVALID_TOPIC_EXCEPTION]
    grown = client.ask(
        CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name=offsets_topic, count=60, assignments=None)],
            timeout_ms=1000,
            validate_only=False,
        ),
        CreatePartitionsResponse,
        3,
    )
    assert [r.error_code for r in grown.results] == [INVALID_TOPIC_EXCEPTION]
    assert len(describe_topic(client, offsets_topic).partitions) == 3
    for partition in range(3):
        refused = delete_records(client, offsets_topic, -1, partition=partition)
        assert refused.error_code == INVALID_TOPIC_EXCEPTION
