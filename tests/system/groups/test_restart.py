"""What groups know is known again after a restart, clean or not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.broker.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from strandline.broker.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tests.support.broker import BrokerProcess, eventually
from tests.support.wire import WireClient
from tests.system.calls import create_topic, delete_topic
from tests.system.group_calls import (
    GroupMember,
    commit,
    committed,
    describe,
    wait_until_loaded,
)

SETTINGS = {"group.initial.rebalance.delay.ms": "0"}


@pytest.mark.parametrize("end", [BrokerProcess.stop, BrokerProcess.kill])
def test_offsets_and_members_outlive_the_broker(
    tmp_path: Path, end: Callable[[BrokerProcess], object]
) -> None:
    broker = BrokerProcess(tmp_path, settings=SETTINGS).start()
    with WireClient(broker.port) as client:
        create_topic(client, "t")
        create_topic(client, "again")
        member = GroupMember(broker.port, "members", instance_id="i", topics=["t"])
        member.join()
        member.sync({member.member_id: b"all"})
        assert commit(client, "alone", {("t", 0): 3}) == [0]
        assert commit(client, "alone", {("t", 0): 4}) == [0]
        assert commit(
            client, "members", {("t", 0): 5}, member_id=member.member_id, generation=1
        ) == [0]
        assert commit(client, "alone", {("again", 0): 9}) == [0]
        # Another topic of this name, which has none of these records.
        delete_topic(client, "again")
        create_topic(client, "again")
    member.close()
    end(broker)
    broker.start()
    try:
        with WireClient(broker.port) as client:
            wait_until_loaded(client)
            assert committed(client, "alone", "t") == 4
            assert committed(client, "alone", "again") == -1
            assert committed(client, "members", "t") == 5
            described = describe(client, "members")
            assert described.group_state == "Stable"
            assert [one.member_id for one in described.members] == [member.member_id]
            back = GroupMember(broker.port, "members", instance_id="i", topics=["t"])
            back.member_id, back.generation = member.member_id, 1
            assert back.beat() == 0
            assert bytes(back.sync().assignment) == b"all"
            back.close()
    finally:
        broker.stop()
    assert "Traceback" not in broker.log_text()


def test_deleted_offsets_stay_deleted(tmp_path: Path) -> None:
    broker = BrokerProcess(
        tmp_path,
        settings={
            **SETTINGS,
            "offsets.retention.minutes": "1",
            "offsets.retention.check.interval.ms": "100",
        },
    ).start()
    old = OffsetCommitRequest(
        group_id="g",
        retention_time_ms=300,
        topics=[
            OffsetCommitRequestTopic(
                name="t",
                partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=9)],
            )
        ],
    )
    try:
        with WireClient(broker.port) as client:
            create_topic(client, "t")
            (answer,) = client.ask(old, OffsetCommitResponse, 4).topics
            assert [partition.error_code for partition in answer.partitions] == [0]
            # It may be gone by now: on a busy machine its time is soon over.
            assert committed(client, "g", "t") in (9, -1)
            assert eventually(lambda: committed(client, "g", "t") == -1)
            assert eventually(lambda: describe(client, "g", version=5).group_state == "Dead")
        broker.stop()
        broker.start()
        with WireClient(broker.port) as client:
            wait_until_loaded(client)
            assert committed(client, "g", "t") == -1
            assert describe(client, "g", version=5).group_state == "Dead"
    finally:
        broker.stop()


@pytest.mark.slow
@pytest.mark.heavy
def test_ten_thousand_groups_come_back_after_a_restart(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, settings=SETTINGS).start()
    try:
        with WireClient(broker.port) as client:
            create_topic(client, "t", 10)
            for group in range(10_000):
                request = OffsetCommitRequest(
                    group_id=f"group-{group}",
                    topics=[
                        OffsetCommitRequestTopic(
                            name="t",
                            partitions=[
                                OffsetCommitRequestPartition(
                                    partition_index=partition, committed_offset=group
                                )
                                for partition in range(10)
                            ],
                        )
                    ],
                )
                client.ask(request, OffsetCommitResponse, 8)
        broker.stop()
        broker.start()
        with WireClient(broker.port) as client:
            assert eventually(
                lambda: client.ask(ListGroupsRequest(), ListGroupsResponse, 4).error_code == 0,
                timeout_s=60.0,
            )
            assert len(client.ask(ListGroupsRequest(), ListGroupsResponse, 4).groups) == 10_000
            assert committed(client, "group-4711", "t", 9) == 4711
    finally:
        broker.stop()
