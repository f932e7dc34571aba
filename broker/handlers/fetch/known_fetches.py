"""A fetch that is the last one of its connection over again, further on in one partition.

A consumer that reads on sends the same bytes each time, but for one number behind the header,

    ......... | fetch offset i64 | .........
    └─ same ──┘                  └── same ─┘

and gets the same bytes in front of its records as long as nothing happens to the partition. Equal
bytes are equal requests, so neither needs to be decoded or encoded anew; what a request means is
looked at anew each time. Only bytes are compared and put together here, without any state of the
broker.

Fetches of one partition outside of a session are known again. What stands where is not written down
a second time: the decoder and the encoder are asked.
"""

from __future__ import annotations

import struct
import uuid
from collections import OrderedDict
from typing import Final, TypeVar

from strandline.broker.handlers.fetch.sessions import FINAL_EPOCH, WantedPartition
from strandline.broker.protocol.fetch import decode_fetch_request, encode_fetch_response
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

# A kilobyte or two for each; who is forgotten is answered as everybody else.
CONNECTIONS_MAX: Final = 512
# A request for more than one partition is longer, and one with a longer rack is not worth keeping.
BODY_BYTES_MAX: Final = 1024
# Length and correlation id, in front of every answer.
_HEAD_BYTES: Final = 8
_INT32: Final = struct.Struct(">i")
_OFFSET: Final = struct.Struct(">q")
_OFFSET_AT: Final = _OFFSET.unpack_from
_LENGTH_AND_CORRELATION: Final = struct.Struct(">ii").pack
# Any bytes whose length takes one byte; where they are put is where records go.
_MARK: Final = b"mark"
FIRST_VERSION_WITH_VARINTS: Final = 12
# Changes a bit of each byte of an offset.
_OTHER_BITS: Final = 0x0101_0101_0101_0101


class KnownFetch:
    """One fetch, as far as it is the same the next time; and what its answer begins with."""

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
        """`position` is that of the fetch offset in `body`, which `request` was decoded from."""
        (topic,) = request.topics
        (partition,) = topic.partitions
        self.request = request
        self._version = version
        self._wanted = topic, partition
        self._body_bytes = len(body)
        self._front = body[:position]
        self._offset_position = position
        self._rest = body[position + _OFFSET.size :]
        # High watermark, last stable offset and log start that `_before` was made with.
        self._told: tuple[Offset, Offset, Offset] | None = None
        self._before = self._after = b""

    def match(self, version: int, body: memoryview) -> Offset | None:
        """The fetch offset in `body`, if all else in it is the same."""
        if version != self._version or len(body) != self._body_bytes:
            return None
        raw = body.tobytes()
        if raw.startswith(self._front) and raw.endswith(self._rest):
            offset: Offset = _OFFSET_AT(raw, self._offset_position)[0]
            return offset
        return None

    def wanted_from(self, offset: Offset) -> WantedPartition:
        """The partition that is wanted, from `offset` on."""
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
        """The framed response with this answer; None if it has more to say than records."""
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
        """Encodes what stands before and after the records of an answer like this one."""
        topic, _ = self._wanted
        marked = FetchResponsePartition(
            index=answer.index,
            high_watermark=answer.high_watermark,
            last_stable_offset=answer.last_stable_offset,
            log_start_offset=answer.log_start_offset,
            aborted_transactions=answer.aborted_transactions,
            records=(_MARK,),
            records_bytes=len(_MARK),
        )
        of_topic = FetchResponseTopic(
            name=topic.name, topic_id=topic.topic_id, partitions=(marked,)
        )
        body = encode_fetch_response(self._version, FetchResponse(topics=(of_topic,)))
        head, *parts = frame_response(ApiKey.FETCH, self._version, 0, body)
        whole = b"".join(bytes(part) for part in (head, *parts))  # type: ignore[arg-type]
        before, _, self._after = whole.partition(_MARK)
        size_bytes = 1 if self._version >= FIRST_VERSION_WITH_VARINTS else _INT32.size
        self._before = before[_HEAD_BYTES:-size_bytes]


class KnownFetches:
    """The last fetch of each connection that is known again, by the name of its peer."""

    def __init__(self) -> None:
        # A peer may be another client meanwhile: equal bytes are an equal request.
        self._by_peer: OrderedDict[str, KnownFetch] = OrderedDict()
        # Whose last fetch of one partition was of this one, and is not known.
        self._tried: OrderedDict[str, tuple[str | uuid.UUID | None, int]] = OrderedDict()

    def get(self, peer: str) -> KnownFetch | None:
        return self._by_peer.get(peer)

    def note(self, peer: str, version: int, body: memoryview, request: FetchRequest) -> None:
        """`request` was decoded from `body`, and the next one may be like it.

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
        found = known_fetch(version, body, request)
        if found is not None:
            del self._tried[peer]
            _put(self._by_peer, peer, found)


def _put(known: OrderedDict[str, _T], peer: str, value: _T) -> None:
    """Sets it as the newest; the oldest one goes if there are too many."""
    known[peer] = value
    known.move_to_end(peer)
    while len(known) > CONNECTIONS_MAX:
        known.popitem(last=False)


def known_fetch(version: int, body: memoryview, request: FetchRequest) -> KnownFetch | None:
    """How to know the next fetch like this one; None if that is not worth it or cannot be."""
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
    # Where it is found is where it stands if another one there is decoded, to its last bit.
    other = wanted.fetch_offset ^ _OTHER_BITS
    changed = raw[:position] + _OFFSET.pack(other) + raw[position + _OFFSET.size :]
    try:
        decoded = decode_fetch_request(version, memoryview(changed))
    except MalformedRequest:
        return None
    offsets = [part.fetch_offset for topic in decoded.topics for part in topic.partitions]
    return KnownFetch(version, raw, position, request) if offsets == [other] else None
