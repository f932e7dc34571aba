"""The requests that tests send most, with everything that a test does not speak of filled in."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from strandline.broker.protocol.codec import codec
from strandline.broker.protocol.header import frame
from strandline.broker.protocol.messages.api_versions import (
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from strandline.broker.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from strandline.broker.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from strandline.broker.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from strandline.broker.protocol.messages.fetch import (
    FetchPartition,
    FetchReplicaState,
    FetchRequest,
    FetchResponse,
    FetchResponsePartition,
    FetchTopic,
    ForgottenTopic,
)
from strandline.broker.protocol.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from strandline.broker.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsResponsePartition,
    ListOffsetsTopic,
)
from strandline.broker.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from strandline.broker.protocol.messages.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceResponsePartition,
    ProduceTopic,
)
from strandline.broker.protocol.schema.schema import Request
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.records.batch.record import Record, encode_batch, iter_records
from strandline.storage.records.compression import Codec
from tests.support.wire import WireClient, encode_request_header

# Records of the tests have timestamps of long ago; no retention may take them meanwhile.
KEEP_EVERYTHING = {"log.retention.ms": "-1"}
# What the fixture `make_topic` is: (partitions, configs) to the name of a fresh topic.
MakeTopic: TypeAlias = Callable[..., str]

EARLIEST = -2
LATEST = -1
# Of a read that makes no progress, as a cold one on a loaded machine may for a while.
READ_S_MAX = 60.0
FIRST_TIMESTAMP_MS = 1_700_000_000_000
BY_NAME = 9
BY_ID = 13


# --- records ---------------------------------------------------------------------------------


def records(
    count: int = 1, *, value: bytes = b"value", first_timestamp_ms: int = FIRST_TIMESTAMP_MS
) -> list[Record]:
    """Records with offsets from 0, one millisecond apart, keys k0, k1, ..."""
    return [
        Record(
            offset=offset,
            timestamp_ms=first_timestamp_ms + offset,
            key=b"k%d" % offset,
            value=value,
        )
        for offset in range(count)
    ]


def batch(
    count: int = 1,
    *,
    value: bytes = b"value",
    first_timestamp_ms: int = FIRST_TIMESTAMP_MS,
    codec: Codec = Codec.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytes:
    """One valid batch of `count` records."""
    return encode_batch(
        records(count, value=value, first_timestamp_ms=first_timestamp_ms),
        codec=codec,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


def records_in(fetched: FetchResponsePartition) -> list[Record]:
    """The records of a fetch answer, in order."""
    buffer = fetched_bytes(fetched)
    return [
        record
        for positioned in walk(buffer)
        for record in iter_records(buffer, positioned.header, positioned.position)
    ]


def fetched_bytes(fetched: FetchResponsePartition) -> bytes:
    return codec.join(fetched.records)


# --- frames ----------------------------------------------------------------------------------


def frame_of(request: Request, version: int, correlation_id: int = 1) -> bytes:
    """A whole request as it goes over the wire."""
    header = encode_request_header(request.spec.key, version, correlation_id, "test")
    return codec.join(frame([header, *codec.encode(request, version)]))


def software() -> ApiVersionsRequest:
    return ApiVersionsRequest(client_software_name="tests", client_software_version="1.0")


def assert_serves(port: int) -> None:
    """The broker answers ApiVersions on a new connection."""
    with WireClient(port) as client:
        assert client.ask(software(), ApiVersionsResponse, 4).error_code == 0


# --- topics ----------------------------------------------------------------------------------


def ask_to_create(
    client: WireClient,
    *topics: CreatableTopic,
    version: int = 7,
    validate_only: bool = False,
) -> Sequence[CreatableTopicResult]:
    request = CreateTopicsRequest(topics=topics, validate_only=validate_only)
    return client.ask(request, CreateTopicsResponse, version).topics


def new_topic(
    name: str,
    partitions: int = 1,
    configs: Mapping[str, str] | None = None,
    *,
    replication_factor: int = 1,
) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        configs=[CreatableTopicConfig(name=k, value=v) for k, v in (configs or {}).items()],
    )


def create_topic(
    client: WireClient, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None
) -> uuid.UUID:
    """Creates a topic; its id."""
    (result,) = ask_to_create(client, new_topic(name, partitions, configs))
    assert result.error_code == 0, result
    return result.topic_id


def delete_topic(client: WireClient, name: str) -> None:
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=5000)
    (result,) = client.ask(request, DeleteTopicsResponse, 6).responses
    assert isinstance(result, DeletableTopicResult)
    assert result.error_code == 0, result


def describe_topic(client: WireClient, name: str, version: int = 12) -> MetadataResponseTopic:
    """What Metadata says of one topic; never creates it."""
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False
    )
    (found,) = client.ask(request, MetadataResponse, version).topics
    return found


# --- producing -------------------------------------------------------------------------------


def produce_request(
    topic: str | uuid.UUID, encoded: bytes | None, *, partition: int = 0, acks: int = -1
) -> ProduceRequest:
    records_view = None if encoded is None else memoryview(encoded)
    return ProduceRequest(
        acks=acks,
        timeout_ms=5000,
        topics=[
            ProduceTopic(
                name=topic if isinstance(topic, str) else "",
                topic_id=topic if isinstance(topic, uuid.UUID) else None,
                partitions=[ProducePartition(index=partition, records=records_view)],
            )
        ],
    )


def produce(
    client: WireClient,
    topic: str | uuid.UUID,
    encoded: bytes | None,
    *,
    partition: int = 0,
    acks: int = -1,
    version: int | None = None,
) -> ProduceResponsePartition:
    """Produces to one partition; its part of the answer."""
    if version is None:
        version = BY_NAME if isinstance(topic, str) else BY_ID
    request = produce_request(topic, encoded, partition=partition, acks=acks)
    response = client.ask(request, ProduceResponse, version)
    ((answer,),) = (t.partitions for t in response.topics)
    return answer


def append(client: WireClient, topic: str, *batches: bytes, partition: int = 0) -> int:
    """Appends valid batches; the offset of the first one."""
    answers = [produce(client, topic, encoded, partition=partition) for encoded in batches]
    assert [answer.error_code for answer in answers] == [0] * len(batches), answers
    return answers[0].base_offset


def new_producer_id(client: WireClient) -> int:
    request = InitProducerIdRequest(transaction_timeout_ms=0)
    response = client.ask(request, InitProducerIdResponse, 4)
    assert response.error_code == 0, response
    return response.producer_id


# --- reading ---------------------------------------------------------------------------------


def fetch_topic(
    topic: str | uuid.UUID,
    offsets: Mapping[int, int],
    *,
    partition_max_bytes: int = 1024 * 1024,
    current_leader_epoch: int = -1,
    last_fetched_epoch: int = -1,
) -> FetchTopic:
    return FetchTopic(
        name=topic if isinstance(topic, str) else "",
        topic_id=topic if isinstance(topic, uuid.UUID) else None,
        partitions=[
            FetchPartition(
                partition=partition,
                fetch_offset=offset,
                partition_max_bytes=partition_max_bytes,
                current_leader_epoch=current_leader_epoch,
                last_fetched_epoch=last_fetched_epoch,
            )
            for partition, offset in offsets.items()
        ],
    )


def fetch_request(
    *topics: FetchTopic,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 50 * 1024 * 1024,
    isolation_level: int = 0,
    session_id: int = 0,
    session_epoch: int = -1,
    forgotten: Iterable[ForgottenTopic] = (),
    replica_id: int = -1,
    replica_state: FetchReplicaState | None = None,
) -> FetchRequest:
    return FetchRequest(
        replica_id=replica_id,
        replica_state=replica_state,
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=topics,
        forgotten_topics=tuple(forgotten),
    )


def fetch(
    client: WireClient,
    topic: str | uuid.UUID,
    offset: int = 0,
    *,
    partition: int = 0,
    max_wait_ms: int = 0,
    partition_max_bytes: int = 1024 * 1024,
    current_leader_epoch: int = -1,
    isolation_level: int = 0,
    version: int | None = None,
) -> FetchResponsePartition:
    """Fetches one partition without a session; its part of the answer."""
    if version is None:
        version = 12 if isinstance(topic, str) else 16
    wanted = fetch_topic(
        topic,
        {partition: offset},
        partition_max_bytes=partition_max_bytes,
        current_leader_epoch=current_leader_epoch,
    )
    request = fetch_request(wanted, max_wait_ms=max_wait_ms, isolation_level=isolation_level)
    response = client.ask(request, FetchResponse, version)
    assert response.error_code == 0, response
    ((answer,),) = (t.partitions for t in response.topics)
    return answer


def read_all(client: WireClient, topic: str, *, partition: int = 0) -> list[Record]:
    """Every record from the log start to the high watermark."""
    offset = offset_at(client, topic, EARLIEST, partition=partition).offset
    found: list[Record] = []
    give_up_s = time.monotonic() + READ_S_MAX
    while True:
        answer = fetch(client, topic, offset, partition=partition)
        assert answer.error_code == 0, answer
        if offset >= answer.high_watermark:
            return found
        # A batch that holds the wanted offset may begin before it.
        new = [record for record in records_in(answer) if record.offset >= offset]
        if new:
            found += new
            offset = new[-1].offset + 1
            give_up_s = time.monotonic() + READ_S_MAX
        else:
            # A cold read that takes longer than a fetch waits for it comes with a later one.
            assert time.monotonic() < give_up_s, answer


def offset_at(
    client: WireClient,
    topic: str,
    timestamp: int,
    *,
    partition: int = 0,
    isolation_level: int = 0,
    current_leader_epoch: int = -1,
    version: int = 11,
) -> ListOffsetsResponsePartition:
    """ListOffsets for one partition."""
    request = ListOffsetsRequest(
        isolation_level=isolation_level,
        topics=[
            ListOffsetsTopic(
                name=topic,
                partitions=[
                    ListOffsetsPartition(
                        partition_index=partition,
                        current_leader_epoch=current_leader_epoch,
                        timestamp=timestamp,
                    )
                ],
            )
        ],
    )
    ((answer,),) = (t.partitions for t in client.ask(request, ListOffsetsResponse, version).topics)
    return answer


def end_offset(client: WireClient, topic: str, *, partition: int = 0) -> int:
    answer = offset_at(client, topic, LATEST, partition=partition)
    assert answer.error_code == 0, answer
    return answer.offset


def delete_records(
    client: WireClient, topic: str, before: int, *, partition: int = 0, version: int = 2
) -> DeleteRecordsPartitionResult:
    """DeleteRecords for one partition."""
    request = DeleteRecordsRequest(
        topics=[
            DeleteRecordsTopic(
                name=topic,
                partitions=[DeleteRecordsPartition(partition_index=partition, offset=before)],
            )
        ],
        timeout_ms=5000,
    )
    response = client.ask(request, DeleteRecordsResponse, version)
    ((answer,),) = (t.partitions for t in response.topics)
    return answer
