"""A client in virtual time, with real frames over a simulated connection."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Mapping
from typing import Any

from strandline.broker.protocol.codec import codec
from strandline.broker.protocol.messages.create_topics import CreateTopicsRequest
from strandline.broker.protocol.messages.fetch import FetchResponsePartition
from strandline.broker.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from strandline.broker.protocol.messages.produce import ProduceResponsePartition
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.protocol.schema.schema import Request
from strandline.storage.records.batch.any_batch import iter_records, walk
from tests.sim.network import ClientEnd, VirtualNetwork
from tests.support.response_class import response_class
from tests.support.wire import decode_response_header, encode_request_header
from tests.system.calls import BY_NAME, fetch_request, fetch_topic, new_topic, produce_request
from tests.system.transactions.committed import take_committed

REQUEST_S = 30.0
RETRY_S = 0.2
EARLIEST = -2
LATEST = -1


class Refused(Exception):
    """An answer with an error code."""

    def __init__(self, code: int) -> None:
        super().__init__(ErrorCode(code).name)
        self.code = ErrorCode(code)


class Unanswered(Exception):
    """The connection broke, or no answer came in time: the request may have been carried out."""


def check(code: int) -> None:
    """Raises Refused unless it is NONE."""
    if code:
        raise Refused(code)


class VirtualClient:
    """One connection, opened when it is needed, and again when it broke."""

    def __init__(
        self,
        network: VirtualNetwork,
        port: Callable[[], int],
        *,
        name: str = "client",
        request_s: float = REQUEST_S,
    ) -> None:
        """It gives a request up after so long."""
        self._request_s = request_s
        self._network = network
        self._port = port
        self._name = name
        self._connection: ClientEnd | None = None
        self._correlation_id = 0

    async def ask(self, request: Request, version: int) -> Any:
        """Raises Unanswered."""
        try:
            async with asyncio.timeout(self._request_s):
                return await self._ask(request, version)
        except (ConnectionError, TimeoutError) as error:
            self.close()
            raise Unanswered(str(error)) from None

    async def _ask(self, request: Request, version: int) -> Any:
        if self._connection is None:
            self._connection = await self._network.connect(self._port())
        connection = self._connection
        self._correlation_id += 1
        key = request.spec.key
        header = encode_request_header(key, version, self._correlation_id, self._name)
        body = codec.join(codec.encode(request, version))
        await connection.send(struct.pack(">i", len(header) + len(body)) + header + body)
        (length,) = struct.unpack(">i", await connection.receive(4))
        frame = memoryview(await connection.receive(length))
        got, position = decode_response_header(key, version, frame)
        assert got == self._correlation_id, (got, self._correlation_id)
        return codec.decode(response_class(key), version, frame[position:])

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # --- what scenarios ask most -------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        partitions: int = 1,
        configs: Mapping[str, str] | None = None,
        *,
        replicas: int = 1,
    ) -> None:
        """Asks until the topic is there."""
        topic = new_topic(name, partitions, configs, replication_factor=replicas)
        request = CreateTopicsRequest(topics=[topic])
        while True:
            try:
                (made,) = (await self.ask(request, 7)).topics
            except Unanswered:
                await asyncio.sleep(RETRY_S)
                continue
            if made.error_code == ErrorCode.TOPIC_ALREADY_EXISTS:
                return
            check(made.error_code)
            return

    async def produce(
        self, topic: str, encoded: bytes, *, partition: int = 0, transactional_id: str | None = None
    ) -> int:
        """The base offset. Raises Refused, Unanswered."""
        request = produce_request(topic, encoded, partition=partition)
        request.transactional_id = transactional_id
        response = await self.ask(request, BY_NAME)
        ((answer,),) = (one.partitions for one in response.topics)
        assert isinstance(answer, ProduceResponsePartition)
        check(answer.error_code)
        return answer.base_offset

    async def fetch(
        self, topic: str, offset: int, *, partition: int = 0, isolation_level: int = 0
    ) -> FetchResponsePartition:
        """Raises Refused, Unanswered."""
        wanted = fetch_topic(topic, {partition: offset}, partition_max_bytes=1_000_000)
        request = fetch_request(wanted, max_wait_ms=500, isolation_level=isolation_level)
        response = await self.ask(request, 12)
        check(response.error_code)
        ((answer,),) = (one.partitions for one in response.topics)
        assert isinstance(answer, FetchResponsePartition)
        check(answer.error_code)
        return answer

    async def offset_at(
        self, topic: str, timestamp: int, *, partition: int = 0, isolation_level: int = 0
    ) -> int:
        """Raises Refused, Unanswered."""
        part = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
        request = ListOffsetsRequest(
            isolation_level=isolation_level,
            topics=[ListOffsetsTopic(name=topic, partitions=[part])],
        )
        response = await self.ask(request, 9)
        ((answer,),) = (one.partitions for one in response.topics)
        check(answer.error_code)
        offset: int = answer.offset
        return offset

    async def read_all(self, topic: str, *, partition: int = 0) -> dict[int, bytes]:
        """Every value from the log start to the end, by its offset; asks until it is answered."""
        while True:
            try:
                return await self._read_all(topic, partition)
            except (Refused, Unanswered):
                await asyncio.sleep(RETRY_S)

    async def _read_all(self, topic: str, partition: int) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        offset = await self.offset_at(topic, EARLIEST, partition=partition)
        end = await self.offset_at(topic, LATEST, partition=partition)
        while offset < end:
            answer = await self.fetch(topic, offset, partition=partition)
            buffer = codec.join(answer.records)
            for batch in walk(buffer):
                offset = batch.header.next_offset
                if not batch.header.is_control:
                    for record in iter_records(buffer, batch.header, batch.position):
                        assert record.offset not in found, (record.offset, "read twice")
                        found[record.offset] = bytes(record.value or b"")
            if not buffer:
                # Cold: it comes with a later one.
                await asyncio.sleep(RETRY_S)
        return found

    async def read_committed(self, topic: str, *, partition: int = 0) -> list[bytes]:
        """Every value of a decided transaction, or of none; waits until all are decided."""
        values: list[bytes] = []
        offset = 0
        while True:
            try:
                answer = await self.fetch(topic, offset, partition=partition, isolation_level=1)
            except (Refused, Unanswered):
                await asyncio.sleep(RETRY_S)
                continue
            before, offset = offset, take_committed(answer, offset, values)
            if before == offset == answer.last_stable_offset == answer.high_watermark:
                return values
            if before == offset:
                await asyncio.sleep(RETRY_S)
