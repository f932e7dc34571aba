"""Recognises a fetch that repeats the last one of its connection at another offset.

A consumer reading one partition sends the same bytes each time, except for one number,

    ......... | fetch offset i64 | .........
    └─ same ──┘                  └── same ─┘

and gets the same bytes in front of its records as long as the partition does not change. Equal
bytes are equal requests, so neither is decoded or encoded again; the request is still evaluated
each time. This module only compares and joins bytes, without any state of the broker.

It recognises fetches of one partition outside of a session. The layout is not written down a second
time: decoder and encoder yield the positions.
"""

from __future__ import annotations

import struct
import uuid
from collections import OrderedDict
from typing import Final, TypeVar

from strandline.broker.handlers.fetch.sessions import FINAL_EPOCH, WantedPartition
from strandline.broker.protocol.codec.codec import decode_request, encode
from strandline.broker.protocol.header import frame_response
from strandline.broker.protocol.messages.fetch import (
    FetchRequest,
    FetchResponse,
    FetchResponsePartition,
    FetchResponseTopic,
)
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.errors import MalformedRequest
from strandline.broker.protocol.schema.schema import Part
from strandline.storage.model import NO_EPOCH, Offset

_T = TypeVar("_T")

# A kilobyte or two for each; a connection that was dropped takes the usual path.
CONNECTIONS_MAX: Final = 512
# A request for more than one partition is longer, and one with a longer rack is not worth keeping.
BODY_BYTES_MAX: Final = 1024
# Length and correlation id, in front of every answer.
_HEAD_BYTES: Final = 8
_INT32: Final = struct.Struct(">i")
_OFFSET: Final = struct.Struct(">q")
_OFFSET_AT: Final = _OFFSET.unpack_from
_LENGTH_AND_CORRELATION: Final = struct.Struct(">ii").pack
# Any bytes whose length takes one byte; their position is where records go.
_MARK: Final = b"mark"
FIRST_VERSION_WITH_VARINTS: Final = 12
# Flips a bit in each byte of an offset.
_OTHER_BITS: Final = 0x0101_0101_0101_0101


class RepeatedFetch:
    """The constant part of one fetch, and the bytes that its answer begins with."""

    __slots__ = (
        "_after",
        "_before",
        "_body_bytes",
        "_front",
        "_offset_position",
        "_rest",
        "_told",
        "_version",
        "_wanted",
        "request",
    )

    def __init__(self, version: int, body: bytes, position: int, request: FetchRequest) -> None:
        """`position` is that of the fetch offset in `body`, from which `request` was decoded."""
        (topic,) = request.topics
        (partition,) = topic.partitions
        self.request = request
        self._version = version
        self._wanted = topic, partition
        self._body_bytes = len(body)
        self._front = body[:position]
        self._offset_position = position
        self._rest = body[position + _OFFSET.size :]
        # High watermark, last stable offset and log start in `_before`.
        self._told: tuple[Offset, Offset, Offset] | None = None
        self._before = self._after = b""

    def match(self, version: int, body: memoryview) -> Offset | None:
        """Returns the fetch offset in `body` if all other bytes are equal."""
        if version != self._version or len(body) != self._body_bytes:
            return None
        raw = body.tobytes()
        if raw.startswith(self._front) and raw.endswith(self._rest):
            offset: Offset = _OFFSET_AT(raw, self._offset_position)[0]
            return offset
        return None

    def wanted_from(self, offset: Offset) -> WantedPartition:
        """Returns the requested partition, from `offset` on."""
        topic, partition = self._wanted
        return WantedPartition(
            topic.name if topic.topic_id is None else None,
            topic.topic_id,
            partition.partition,
            offset,
            partition.partition_max_bytes,
            partition.current_leader_epoch,
        )

    def response(self, correlation_id: int, answer: FetchResponsePartition) -> list[Part] | None:
        """Returns the framed response with this answer; None if it has more than records."""
        records_bytes = answer.records_bytes
        if answer.error_code or answer.aborted_transactions or not records_bytes:
            return None
        told = answer.high_watermark, answer.last_stable_offset, answer.log_start_offset
        if told != self._told:
            self._prepare(answer)
            self._told = told
        if self._version >= FIRST_VERSION_WITH_VARINTS:
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
        return [head, *answer.records, after] if after else [head, *answer.records]

    def _prepare(self, answer: FetchResponsePartition) -> None:
        """Encodes the bytes before and after the records of an answer like this one."""
        topic, _ = self._wanted
        marked = answer.replaced(records=(_MARK,), records_bytes=len(_MARK))
        of_topic = FetchResponseTopic(
            name=topic.name, topic_id=topic.topic_id, partitions=(marked,)
        )
        body = encode(FetchResponse(topics=(of_topic,)), self._version)
        head, *parts = frame_response(ApiKey.FETCH, self._version, 0, body)
        whole = b"".join(bytes(part) for part in (head, *parts))  # type: ignore[arg-type]
        before, _, self._after = whole.partition(_MARK)
        size_bytes = 1 if self._version >= FIRST_VERSION_WITH_VARINTS else _INT32.size
        self._before = before[_HEAD_BYTES:-size_bytes]


class RepeatedFetches:
    """The last recognisable fetch of each connection, by its peer."""

    def __init__(self) -> None:
        # A peer may be another client by now: equal bytes are an equal request.
        self._by_peer: OrderedDict[str, RepeatedFetch] = OrderedDict()
        # Connections whose last fetch was of this partition, and is not known yet.
        self._tried: OrderedDict[str, tuple[str | uuid.UUID | None, int]] = OrderedDict()

    def get(self, peer: str) -> RepeatedFetch | None:
        return self._by_peer.get(peer)

    def note(self, peer: str, version: int, body: memoryview, request: FetchRequest) -> None:
        """Notes a decoded request, if the next one of the connection may be like it.

        That is so if the previous one was of the same partition: for a client that alternates
        between partitions it is not worth the cost.
        """
        if len(request.topics) != 1 or len(request.topics[0].partitions) != 1:
            return
        (topic,) = request.topics
        named = topic.name if topic.topic_id is None else topic.topic_id
        read = named, topic.partitions[0].partition
        if self._tried.get(peer) != read:
            _put(self._tried, peer, read)
            return
        found = known_fetch(version, body, request)
        if found is not None:
            del self._tried[peer]
            _put(self._by_peer, peer, found)


def _put(known: OrderedDict[str, _T], peer: str, value: _T) -> None:
    """Puts the newest entry; drops the oldest one if there are too many."""
    known[peer] = value
    known.move_to_end(peer)
    while len(known) > CONNECTIONS_MAX:
        known.popitem(last=False)


def known_fetch(version: int, body: memoryview, request: FetchRequest) -> RepeatedFetch | None:
    """Prepares the recognition of fetches like this one; None if impossible or not worth it."""
    if (
        len(body) > BODY_BYTES_MAX
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
    raw = body.tobytes()
    position = raw.find(_OFFSET.pack(wanted.fetch_offset))
    # The position is right if another offset there decodes to exactly that offset.
    other = wanted.fetch_offset ^ _OTHER_BITS
    changed = raw[:position] + _OFFSET.pack(other) + raw[position + _OFFSET.size :]
    try:
        decoded = decode_request(FetchRequest, version, memoryview(changed))
    except MalformedRequest:
        return None
    offsets = [part.fetch_offset for topic in decoded.topics for part in topic.partitions]
    return RepeatedFetch(version, raw, position, request) if offsets == [other] else None
