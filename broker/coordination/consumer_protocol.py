"""Reads the topics out of a member's subscription, the one part of its metadata that is ours.

    version i16 | topic count i32, (length i16, name) ... | user data | more, by version

Every version begins like version 0, so that is all that is read. The coordinator wants the topics
to know which offsets of a living group must not expire or be deleted; members of other kinds
(`connect`) send other bytes, which is why the caller asks only for protocol type `consumer`.
"""

from __future__ import annotations

import struct

PROTOCOL_TYPE = "consumer"

_VERSION = struct.Struct(">h")
_COUNT = struct.Struct(">i")
_LENGTH = struct.Struct(">h")


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics of a subscription, None if the bytes are none."""
    try:
        _VERSION.unpack_from(metadata)
        (count,) = _COUNT.unpack_from(metadata, _VERSION.size)
        position = _VERSION.size + _COUNT.size
        # Each topic takes its length at least: a count that cannot be is not looped over.
        if not 0 <= count <= len(metadata) // _LENGTH.size:
            return None
        topics = []
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(metadata, position)
            position += _LENGTH.size
            if not 0 <= length <= len(metadata) - position:
                return None
            topics.append(metadata[position : position + length].decode())
            position += length
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(topics)
