"""A fetch that is the last one of its connection over again, further on in one partition.

A consumer that reads on sends the same bytes each time, but for two numbers:

    key i16 | version i16 | correlation id i32 | ......... | fetch offset i64 | .........
    └─────── same ──────┘                      └── same ──┘                   └── same ──┘

and gets the same bytes in front of its records as long as nothing happens to the partition. Equal
bytes are equal requests, so neither needs to be decoded or encoded anew; what a request means is
looked at anew each time. Only bytes are compared and put together here, without any state of the
broker.

Fetches of one partition outside of a session are known again, in versions that know all codecs.
What stands where is not written down a second time: the decoder and the encoder are asked.
"""

from __future__ import annotations

import struct
import uuid
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, TypeVar

from strandline.broker.handlers.fetch.fetch_plan import FIRST_VERSION_WITH_ZSTD
from strandline.broker.handlers.services.fetch_sessions import FINAL_EPOCH
from strandline.broker.protocol.fetch import decode_fetch_request, encode_fetch_response
from strandline.broker.protocol.header import RequestHeader, frame_response
from strandline.broker.protocol.messages.fetch import (
    FetchRequest,
    FetchResponse,
    FetchResponsePartition,
    FetchResponseTopic,
)
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.errors import MalformedRequest
from strandline.broker.protocol.schema.schema import Part
from strandline.storage.model import NO_EPOCH, Isolation, Offset

_T = TypeVar("_T")

# A kilobyte or two for each; who is forgotten is answered as everybody else.
CONNECTIONS_MAX: Final = 512
# A frame with more than one partition is longer, and one with a longer rack is not worth keeping.
FRAME_BYTES_MAX: Final = 1024
_ROUTE_BYTES: Final = 4
_HEAD_BYTES: Final = 8
_INT32: Final = struct.Struct(">i")
_OFFSET: Final = struct.Struct(">q")
_NEXT_CORRELATION: Final = struct.Struct(">i").unpack_from
_NEXT_OFFSET: Final = _OFFSET.unpack_from
_LENGTH_AND_CORRELATION: Final = struct.Struct(">ii").pack
# Any bytes whose length takes one byte; where they are put is where records go.
_MARK: Final = b"mark"
FIRST_VERSION_WITH_VARINTS: Final = 12
# Changes a bit of each byte of an offset.
_OTHER_BITS: Final = 0x0101_0101_0101_0101


class FetchAgain:
    """One fetch, as far as it is the same the next time; and what its answer begins with."""

    __slots__ = (
        "_after",
        "_before",
        "_has_varints",
        "_head",
        "_middle",
        "_offset_position",
        "_tail",
        "_told",
        "bytes_max",
        "isolation",
        "leader_epoch",
        "min_bytes",
        "partition",
        "partition_bytes_max",
        "size_bytes",
        "topic",
        "topic_id",
        "version",
    )

    def __init__(self, frame: bytes, position: int, request: FetchRequest, version: int) -> None:
        """`position` is that of the fetch offset in `frame`."""
        (topic,) = request.topics
        (partition,) = topic.partitions
        self.version = version
        self.size_bytes = len(frame)
        self.topic = topic.name if topic.topic_id is None else None
        self.topic_id: uuid.UUID | None = topic.topic_id
        self.partition = partition.partition
        self.leader_epoch = partition.current_leader_epoch
        self.bytes_max = request.max_bytes
        self.min_bytes = request.min_bytes
        self.partition_bytes_max = partition.partition_max_bytes
        self.isolation = (
            Isolation.READ_COMMITTED
            if request.isolation_level == Isolation.READ_COMMITTED
            else Isolation.READ_UNCOMMITTED
        )
        self._head = frame[:_ROUTE_BYTES]
        self._middle = frame[_HEAD_BYTES:position]
        self._offset_position = position
        self._tail = frame[position + _OFFSET.size :]
        self._has_varints = version >= FIRST_VERSION_WITH_VARINTS
        # High watermark, last stable offset and log start that `_before` was made with.
        self._told: tuple[Offset, Offset, Offset] | None = None
        self._before = self._after = b""

    def match(self, frame: memoryview) -> tuple[int, Offset] | None:
        """Correlation id and fetch offset of `frame`, if all else in it is the same."""
        if len(frame) != self.size_bytes:
            return None
        raw = frame.tobytes()
        if (
            raw.startswith(self._middle, _HEAD_BYTES)
            and raw.endswith(self._tail)
            and raw.startswith(self._head)
        ):
            return _NEXT_CORRELATION(raw, 4)[0], _NEXT_OFFSET(raw, self._offset_position)[0]
        return None

    def answer(
        self,
        correlation_id: int,
        told: tuple[Offset, Offset, Offset],
        records: Sequence[Part],
        records_bytes: int,
    ) -> list[Part]:
        """The framed answer. `told` are high watermark, last stable offset and log start."""
        if told != self._told:
            self._prepare(told)
        if self._has_varints:
            count = records_bytes + 1
            size = bytearray()
            while count > 0x7F:
                size.append(count & 0x7F | 0x80)
                count >>= 7
            size.append(count)
        else:
            size = bytearray(_INT32.pack(records_bytes))
        before, after = self._before, self._after
        total_bytes = 4 + len(before) + len(size) + records_bytes + len(after)
        head = b"".join((_LENGTH_AND_CORRELATION(total_bytes, correlation_id), before, size))
        return [head, *records, after] if after else [head, *records]

    def _prepare(self, told: tuple[Offset, Offset, Offset]) -> None:
        high_watermark, last_stable_offset, log_start_offset = told
        partition = FetchResponsePartition(
            index=self.partition,
            high_watermark=high_watermark,
            last_stable_offset=last_stable_offset,
            log_start_offset=log_start_offset,
            aborted_transactions=() if self.isolation is Isolation.READ_COMMITTED else None,
            records=(_MARK,),
            records_bytes=len(_MARK),
        )
        topic = FetchResponseTopic(
            name=self.topic or "", topic_id=self.topic_id, partitions=(partition,)
        )
        body = encode_fetch_response(self.version, FetchResponse(topics=(topic,)))
        head, *parts = frame_response(ApiKey.FETCH, self.version, 0, body)
        whole = b"".join(bytes(part) for part in (head, *parts))  # type: ignore[arg-type]
        before, _, self._after = whole.partition(_MARK)
        size_bytes = 1 if self._has_varints else _INT32.size
        self._before = before[_HEAD_BYTES:-size_bytes]
        self._told = told


class KnownFetches:
    """The last fetch of each connection that is known again, by the name of its peer."""

    def __init__(self) -> None:
        # A peer may be another client meanwhile: equal bytes are an equal request.
        self._by_peer: OrderedDict[str, FetchAgain] = OrderedDict()
        # Whose last fetch of one partition was of this one, and is not known.
        self._tried: OrderedDict[str, tuple[str | uuid.UUID | None, int]] = OrderedDict()

    def get(self, peer: str) -> FetchAgain | None:
        return self._by_peer.get(peer)

    def note(
        self, peer: str, frame: memoryview, request: FetchRequest, header: RequestHeader
    ) -> None:
        """`request` was decoded from `frame`, and the next one may be like it.

        It is where the one before was of the same partition: who reads now this and now that one
        is not worth what it takes to know a fetch again.
        """
        if len(request.topics) != 1 or len(request.topics[0].partitions) != 1:
            return
        (topic,) = request.topics
        named = topic.name if topic.topic_id is None else topic.topic_id
        read = named, topic.partitions[0].partition
        if self._tried.get(peer) != read:
            _put(self._tried, peer, read)
            return
        found = fetch_again(frame, request, header)
        if found is not None:
            del self._tried[peer]
            _put(self._by_peer, peer, found)


def _put(known: OrderedDict[str, _T], peer: str, value: _T) -> None:
    """Sets it as the newest; the oldest one goes if there are too many."""
    known[peer] = value
    known.move_to_end(peer)
    while len(known) > CONNECTIONS_MAX:
        known.popitem(last=False)


def fetch_again(
    frame: memoryview, request: FetchRequest, header: RequestHeader
) -> FetchAgain | None:
    """How to know the next fetch like this one; None if that is not worth it or cannot be."""
    if (
        header.api_version < FIRST_VERSION_WITH_ZSTD
        or len(frame) > FRAME_BYTES_MAX
        or request.session_id
        or request.session_epoch != FINAL_EPOCH
        or request.forgotten_topics
        or len(request.topics) != 1
        or len(request.topics[0].partitions) != 1
    ):
        return None
    (wanted,) = request.topics[0].partitions
    if wanted.last_fetched_epoch != NO_EPOCH:
        return None
    raw = frame.tobytes()
    offset = _OFFSET.pack(wanted.fetch_offset)
    position = raw.find(offset, header.body_position)
    # Where it is found is where it stands if another one there is decoded, to its last bit.
    other = wanted.fetch_offset ^ _OTHER_BITS
    changed = raw[:position] + _OFFSET.pack(other) + raw[position + _OFFSET.size :]
    try:
        decoded = decode_fetch_request(
            header.api_version, memoryview(changed)[header.body_position :]
        )
    except MalformedRequest:
        return None
    offsets = [part.fetch_offset for topic in decoded.topics for part in topic.partitions]
    return FetchAgain(raw, position, request, header.api_version) if offsets == [other] else None
