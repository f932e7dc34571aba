"""Requests as large as may be: the broker stays up, its memory bounded, and others are served."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence

import pytest

from strandline.broker.protocol.messages.api_versions import ApiVersionsResponse
from strandline.broker.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from strandline.broker.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from strandline.broker.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from strandline.broker.protocol.messages.fetch import FetchPartition, FetchTopic
from strandline.broker.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from strandline.broker.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from strandline.broker.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
)
from strandline.broker.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from strandline.broker.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from strandline.broker.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
)
from strandline.broker.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from strandline.broker.protocol.schema.schema import Request
from tests.support.broker import BrokerProcess
from tests.support.heavy import all_but
from tests.support.wire import WireClient
from tests.system.calls import (
    KEEP_EVERYTHING,
    create_topic,
    fetch_request,
    frame_of,
    software,
)

pytestmark = pytest.mark.slow

MIB = 1024 * 1024
# A broker of its own: it is looked at what its process holds.
BROKER_SETTINGS = KEEP_EVERYTHING


def names(count: int) -> list[str]:
    return [f"{number:x}" for number in range(count)]


def largest_fetch() -> Request:
    partitions = [
        FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1)
        for number in range(63_000)
    ]
    return fetch_request(FetchTopic(name="none", partitions=partitions), session_epoch=0)


HOSTILE: Sequence[tuple[str, Callable[[], Request], int]] = [
    (
        "Metadata",
        lambda: MetadataRequest(
            topics=[MetadataRequestTopic(name=name) for name in names(250_000)],
            allow_auto_topic_creation=False,
        ),
        4,
    ),
    (
        "CreatePartitions",
        lambda: CreatePartitionsRequest(
            topics=[
                CreatePartitionsTopic(name=name, count=2, assignments=None)
                for name in names(120_000)
            ],
            timeout_ms=1000,
        ),
        1,
    ),
    ("Fetch", largest_fetch, 11),
    (
        "ListOffsets",
        lambda: ListOffsetsRequest(
            topics=[
                ListOffsetsTopic(
                    name="none",
                    partitions=[
                        ListOffsetsPartition(partition_index=number, timestamp=-1)
                        for number in range(160_000)
                    ],
                )
            ]
        ),
        3,
    ),
    (
        "OffsetForLeaderEpoch",
        lambda: OffsetForLeaderEpochRequest(
            topics=[
                OffsetForLeaderTopic(
                    topic="none",
                    partitions=[
                        OffsetForLeaderPartition(partition=number, leader_epoch=0)
                        for number in range(160_000)
                    ],
                )
            ]
        ),
        3,
    ),
    (
        "DeleteRecords",
        lambda: DeleteRecordsRequest(
            topics=[
                DeleteRecordsTopic(
                    name="none",
                    partitions=[
                        DeleteRecordsPartition(partition_index=number, offset=0)
                        for number in range(160_000)
                    ],
                )
            ],
            timeout_ms=1000,
        ),
        1,
    ),
    (
        "OffsetCommit",
        lambda: OffsetCommitRequest(
            group_id="g",
            topics=[
                OffsetCommitRequestTopic(
                    name="none",
                    partitions=[
                        OffsetCommitRequestPartition(
                            partition_index=number, committed_offset=0, committed_metadata=""
                        )
                        for number in range(110_000)
                    ],
                )
            ],
        ),
        6,
    ),
    (
        "OffsetFetch",
        lambda: OffsetFetchRequest(
            group_id="g",
            topics=[
                OffsetFetchRequestTopic(name=name, partition_indexes=[0]) for name in names(120_000)
            ],
        ),
        5,
    ),
    (
        "OffsetDelete",
        lambda: OffsetDeleteRequest(
            group_id="g",
            topics=[
                OffsetDeleteRequestTopic(
                    name="none",
                    partitions=[
                        OffsetDeleteRequestPartition(partition_index=number)
                        for number in range(390_000)
                    ],
                )
            ],
        ),
        0,
    ),
    (
        "LeaveGroup",
        lambda: LeaveGroupRequest(
            group_id="g",
            members=[MemberIdentity(member_id="m", group_instance_id=None)] * 380_000,
        ),
        3,
    ),
    (
        "DescribeConfigs",
        lambda: DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=ConfigResourceType.BROKER,
                    resource_name="1",
                    configuration_keys=names(250_000),
                )
            ]
        ),
        1,
    ),
]


# A large answer, one of a session, and one by another path.
QUICK = ("Metadata", "Fetch", "OffsetFetch")


@pytest.mark.parametrize(
    ("name", "make", "version"),
    all_but([one for one in HOSTILE if one[0] in QUICK], HOSTILE),
    ids=[name for name, *_ in HOSTILE],
)
def test_a_huge_array_holds_up_nobody(
    broker: BrokerProcess, name: str, make: Callable[[], Request], version: int
) -> None:
    frame = frame_of(make(), version)
    assert MIB < len(frame) < 2.1 * MIB

    def answers_meanwhile(other: WireClient) -> int:
        sent, ended = threading.Event(), threading.Event()
        refused: list[bool] = []

        def send_hostile() -> None:
            with WireClient(broker.port) as hostile:
                hostile.send_raw(frame)
                sent.set()
                # Its answer would be made on the loop, and take as long as the decoding did.
                refused.append(hostile.closed_by_broker())
            ended.set()

        sender = threading.Thread(target=send_hostile)
        sender.start()
        answered = 0
        while not ended.is_set():
            counts = sent.is_set()
            other.ask(software(), ApiVersionsResponse, 3)
            answered += counts
        sender.join()
        assert refused == [True]
        return answered

    before_mib = broker.resident_mib()
    with WireClient(broker.port) as other:
        other.ask(software(), ApiVersionsResponse, 3)
        # A busy machine may give this process no turn meanwhile: the best of three counts.
        answered_meanwhile = max(answers_meanwhile(other) for _ in range(3))
    # On the loop it would be one or two: one that was asked before, and one behind.
    assert answered_meanwhile >= 5, answered_meanwhile
    assert broker.resident_mib() - before_mib < 160


def test_sessions_of_tens_of_thousands_of_partitions_do_not_fill_the_memory(
    broker: BrokerProcess,
) -> None:
    with WireClient(broker.port) as client:
        create_topic(client, "quiet")
    before_mib = broker.resident_mib()
    wanted = FetchTopic(
        name="x" * 200,
        partitions=[
            FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1)
            for number in range(10_000)
        ],
    )
    frame = frame_of(fetch_request(wanted, session_epoch=0, max_wait_ms=0), 11)
    sessions = 0
    with WireClient(broker.port) as client:
        for _ in range(30):
            client.send_raw(frame)
            # correlation id i32 | throttle i32 | error i16 | session id i32 | ...
            _, _, error, session_id = struct.unpack_from(">iihi", client.receive_frame())
            assert error == 0
            sessions += session_id != 0
    # Room for thirteen of them; the others are answered without a session.
    assert 1 <= sessions <= 20
    assert broker.resident_mib() - before_mib < 250
