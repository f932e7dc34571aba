"""The usual answer to Produce, one batch appended, encoded by hand with its frame and header:

    v9   length i32 | correlation id i32 | 00 | 02 | name length+1 u8 | name
         | 02 | index i32 | 00 00 | base offset i64 | append time i64 | log start i64
         | 01 (no record errors) | 00 (no message) | 00 00 | throttle i32 | 00
    v13  the same with a topic id of 16 bytes in place of length and name

It takes less than half the time of the generated encoder, and no objects for the answer. A test
compares the bytes.
"""

from __future__ import annotations

import struct
from typing import Final

from strandline.broker.protocol.messages.produce import ProduceTopic

_FLEXIBLE_FROM: Final = 9
_TOPIC_IDS_FROM: Final = 13

_APPENDED_HEAD: Final = struct.Struct(">iiBBB")
_APPENDED_HEAD_BY_ID: Final = struct.Struct(">iiBB16s")
_APPENDED: Final = struct.Struct(">BihqqqBBBBiB")
_pack_appended_head: Final = _APPENDED_HEAD.pack
_pack_appended_head_by_id: Final = _APPENDED_HEAD_BY_ID.pack
_pack_appended: Final = _APPENDED.pack
# The length field's value, without the name: it does not count itself.
_APPENDED_BY_NAME_BYTES: Final = _APPENDED_HEAD.size + _APPENDED.size - 4
_APPENDED_BY_ID_BYTES: Final = _APPENDED_HEAD_BY_ID.size + _APPENDED.size - 4
# The largest compact length in one byte.
_ONE_BYTE_LENGTH_MAX: Final = 126


def frame_appended(
    version: int,
    correlation_id: int,
    topic: ProduceTopic,
    index: int,
    base_offset: int,
    log_append_time_ms: int,
    log_start_offset: int,
    throttle_time_ms: int = 0,
) -> bytes | None:
    """Returns the whole frame that answers a request for one partition with one appended batch.

    None for other versions and longer names: encode a ProduceResponse then.
    """
    if version < _FLEXIBLE_FROM:
        return None
    if version < _TOPIC_IDS_FROM:
        name = topic.name.encode()
        if len(name) > _ONE_BYTE_LENGTH_MAX:
            return None
        length_bytes = _APPENDED_BY_NAME_BYTES + len(name)
        head = _pack_appended_head(length_bytes, correlation_id, 0, 2, len(name) + 1) + name
    elif topic.topic_id is None:
        return None
    else:
        head = _pack_appended_head_by_id(
            _APPENDED_BY_ID_BYTES, correlation_id, 0, 2, topic.topic_id.bytes
        )
    return head + _pack_appended(
        2,
        index,
        0,
        base_offset,
        log_append_time_ms,
        log_start_offset,
        1,
        0,
        0,
        0,
        throttle_time_ms,
        0,
    )
