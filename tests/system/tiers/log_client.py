"""One partition over the wire, byte for byte: produce, fetch, list, delete; no client library.

A fetched batch is compared as bytes, so nothing here decodes records unless it is asked to.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from strandline.broker.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from strandline.broker.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from strandline.broker.protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from strandline.broker.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResponsePartition,
    FetchTopic,
)
from strandline.broker.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from strandline.broker.protocol.messages.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.records.batch.batch import check_crc, read_header, stamp
from strandline.storage.records.batch.record import Record, encode_batch, iter_records
from strandline.storage.records.compression import Codec
from tests.support.wire import WireClient

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -4, -5, -6
# The versions spoken: the last with topic names for Produce and Fetch, the newest for the others.
PRODUCE_VERSION, FETCH_VERSION, LIST_VERSION = 12, 12, 11
CREATE_VERSION, DELETE_VERSION, DELETE_RECORDS_VERSION = 7, 6, 2
# A cold read is answered empty when it takes too long; whoever asks again finds it.
READ_TIMEOUT_S = 60.0
BASE_TIMESTAMP_MS = 1_700_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """The answer to one fetch of one partition."""

    error_code: int
    records: bytes
    high_watermark: int
    log_start_offset: int

    @property
    def batches(self) -> list[bytes]:
        return split_batches(self.records)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """The answer to one ListOffsets."""

    error_code: int
    offset: int
    timestamp_ms: int


class LogClient:
    """One partition of one topic, over a connection of its own."""

    def __init__(self, port: int, topic: str, partition: int = 0) -> None:
        self.topic = topic
        self.partition = partition
        self._wire = WireClient(port)

    def __enter__(self) -> LogClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._wire.close()

    # --- topics ------------------------------------------------------------------------------

    def create_topic(self, config: Mapping[str, str], *, partitions: int = 1) -> uuid.UUID:
        """The new topic's id."""
        wanted = CreatableTopic(
            name=self.topic,
            num_partitions=partitions,
            replication_factor=1,
            configs=[CreatableTopicConfig(name=name, value=text) for name, text in config.items()],
        )
        response = self._wire.ask(
            CreateTopicsRequest(topics=[wanted]), CreateTopicsResponse, CREATE_VERSION
        )
        (created,) = response.topics
        assert created.error_code == 0, created
        return created.topic_id

    def delete_topic(self) -> None:
        response = self._wire.ask(
            DeleteTopicsRequest(topics=[DeleteTopicState(name=self.topic)], timeout_ms=10_000),
            DeleteTopicsResponse,
            DELETE_VERSION,
        )
        assert response.responses[0].error_code == 0, response

    # --- writing -----------------------------------------------------------------------------

    def produce(self, batches: Sequence[bytes]) -> list[bytes]:
        """Appends batches that were built for these very offsets; as they must come back."""
        stored = []
        for batch in batches:
            base_offset = self._append(batch)
            header = read_header(batch)
            assert base_offset == header.base_offset, (base_offset, header)
            stored.append(batch)
        return stored

    def _append(self, batch: bytes) -> int:
        partition = ProducePartition(index=self.partition, records=memoryview(batch))
        response = self._wire.ask(
            ProduceRequest(
                acks=-1,
                timeout_ms=10_000,
                topics=[ProduceTopic(name=self.topic, partitions=[partition])],
            ),
            ProduceResponse,
            PRODUCE_VERSION,
        )
        answer = response.topics[0].partitions[0]
        assert answer.error_code == 0, answer
        return answer.base_offset

    # --- reading -----------------------------------------------------------------------------

    def fetch(self, offset: int, *, bytes_max: int = 1 << 20, wait_ms: int = 500) -> Fetched:
        """One request."""
        answers = self.fetch_many({self.topic: offset}, bytes_max=bytes_max, wait_ms=wait_ms)
        return answers[self.topic]

    def fetch_many(
        self, offsets: Mapping[str, int], *, bytes_max: int = 16 << 20, wait_ms: int = 500
    ) -> dict[str, Fetched]:
        """One request for the same partition of several topics."""
        topics = [
            FetchTopic(
                name=topic,
                partitions=[
                    FetchPartition(
                        partition=self.partition, fetch_offset=offset, partition_max_bytes=bytes_max
                    )
                ],
            )
            for topic, offset in offsets.items()
        ]
        request = FetchRequest(max_wait_ms=wait_ms, min_bytes=1, max_bytes=bytes_max, topics=topics)
        response = self._wire.ask(request, FetchResponse, FETCH_VERSION)
        return {topic.name: _fetched(topic.partitions[0]) for topic in response.topics}

    def fetch_records(self, offset: int, *, bytes_max: int = 1 << 20) -> bytes:
        """As `fetch`, but asks again while the answer is empty; fails for an error."""
        give_up_s = time.monotonic() + READ_TIMEOUT_S
        while time.monotonic() < give_up_s:
            answer = self.fetch(offset, bytes_max=bytes_max)
            assert answer.error_code == 0, (offset, answer.error_code)
            if answer.records:
                return answer.records
        raise AssertionError(f"nothing at offset {offset} within {READ_TIMEOUT_S} s")

    def read(self, start: int, end: int, *, bytes_max: int = 1 << 20) -> list[bytes]:
        """Every batch that holds an offset of [start, end), whole, each with a right CRC."""
        found: list[bytes] = []
        while start < end:
            records = self.fetch_records(start, bytes_max=bytes_max)
            for batch in split_batches(records):
                header = read_header(batch)
                # The first batch may begin before the offset that was asked for, none after.
                assert header.base_offset <= start < header.next_offset, (start, header)
                found.append(batch)
                start = header.next_offset
                if start >= end:
                    break
        return found

    def read_records(self, start: int, end: int) -> Iterator[Record]:
        """The single records of [start, end)."""
        for batch in self.read(start, end):
            for record in iter_records(batch, read_header(batch)):
                if start <= record.offset < end:
                    yield record

    # --- offsets -----------------------------------------------------------------------------

    def list_offset(self, timestamp_ms: int) -> Listed:
        """ListOffsets for a time, or one of the special times above."""
        wanted = ListOffsetsPartition(partition_index=self.partition, timestamp=timestamp_ms)
        response = self._wire.ask(
            ListOffsetsRequest(
                topics=[ListOffsetsTopic(name=self.topic, partitions=[wanted])], timeout_ms=15_000
            ),
            ListOffsetsResponse,
            LIST_VERSION,
        )
        answer = response.topics[0].partitions[0]
        return Listed(
            error_code=answer.error_code, offset=answer.offset, timestamp_ms=answer.timestamp
        )

    def offset_at(self, timestamp_ms: int) -> int:
        """As `list_offset`; fails for an error."""
        listed = self.list_offset(timestamp_ms)
        assert listed.error_code == 0, listed
        return listed.offset

    def delete_records(self, before_offset: int) -> int:
        """The log start afterwards."""
        wanted = DeleteRecordsPartition(partition_index=self.partition, offset=before_offset)
        response = self._wire.ask(
            DeleteRecordsRequest(
                topics=[DeleteRecordsTopic(name=self.topic, partitions=[wanted])],
                timeout_ms=10_000,
            ),
            DeleteRecordsResponse,
            DELETE_RECORDS_VERSION,
        )
        answer = response.topics[0].partitions[0]
        assert answer.error_code == 0, answer
        return answer.low_watermark


def _fetched(answer: FetchResponsePartition) -> Fetched:
    return Fetched(
        error_code=answer.error_code,
        records=b"".join(bytes(part) for part in answer.records),  # type: ignore[arg-type]
        high_watermark=answer.high_watermark,
        log_start_offset=answer.log_start_offset,
    )


def split_batches(records: bytes) -> list[bytes]:
    """Whole batches only: a torn one at the end of an answer is an error here, and so is a CRC."""
    found = []
    end = 0
    for batch in walk(records):
        check_crc(records, batch.header, batch.position)
        found.append(records[batch.position : batch.end_position])
        end = batch.end_position
    assert end == len(records), f"{len(records) - end} bytes are no whole batch"
    return found


def make_batches(
    *,
    base_offset: int = 0,
    size_bytes: int,
    record_count: int = 4,
    record_bytes: int = 8_000,
    codec: Codec = Codec.NONE,
    leader_epoch: int = 0,
    seed: int = 1,
    timestamp: Callable[[int], int] | None = None,
) -> list[bytes]:
    """Batches of about `size_bytes` together, as the broker will have stamped them.

    Record n has timestamp BASE + 10 n, unless `timestamp` says otherwise. Values are random, so
    that no codec makes them small: the sizes are those of the segments.
    """
    timestamp = timestamp or timestamp_of
    chance = random.Random(seed)
    batches: list[bytes] = []
    total_bytes = 0
    while total_bytes < size_bytes:
        records = [
            Record(
                offset=offset,
                timestamp_ms=timestamp(offset),
                key=b"key-%d" % offset,
                value=chance.randbytes(record_bytes),
            )
            for offset in range(base_offset, base_offset + record_count)
        ]
        batch = encode_batch(records, codec=codec, leader_epoch=leader_epoch)
        batches.append(batch)
        total_bytes += len(batch)
        base_offset += record_count
    return batches


def timestamp_of(offset: int) -> int:
    """When `make_batches` says that the record was written."""
    return BASE_TIMESTAMP_MS + 10 * offset


def with_epoch(batch: bytes, leader_epoch: int) -> bytes:
    """The batch as a broker stamps it that leads under this epoch."""
    stamped = bytearray(batch)
    stamp(stamped, 0, read_header(batch).base_offset, leader_epoch)
    return bytes(stamped)


def end_of(batches: Sequence[bytes]) -> int:
    """The offset behind the last batch."""
    return read_header(batches[-1]).next_offset
