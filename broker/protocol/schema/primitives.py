"""Run-time helpers of generated and hand-written codecs: varints, lengths, tags, uuids.

    unsigned varint    7 bits per byte, low group first, high bit = more; at most 5 bytes
    compact length     varint(length + 1); 0 is null
    tagged fields      varint count, then per field: varint tag | varint size | bytes; tags ascend

Decoders index a memoryview directly: reading past its end raises IndexError or struct.error, which
`codec` converts to MalformedRequest in one place. Slicing does not raise, so ends are compared.
"""

from __future__ import annotations

import uuid
from functools import lru_cache
from typing import Final, NoReturn

from strandline.broker.protocol.schema.errors import MalformedRequest

# Kafka's own limit for every string that is not a records or bytes field.
STRING_BYTES_MAX: Final = 32767
# Far more than any header of Kafka has tagged fields. Those of a request count as its elements.
UNKNOWN_TAGS_MAX: Final = 1000
VARINT_BYTES_MAX: Final = 5
LENGTH_MAX: Final = 0x7FFFFFFF
EMPTY: Final[tuple[()]] = ()
ONE_BYTE: Final = tuple(bytes((value,)) for value in range(128))

# Clients repeat the same few thousand topic ids, and `uuid.UUID` is slow to create.
_TOPIC_IDS_REMEMBERED: Final = 8192


@lru_cache(maxsize=_TOPIC_IDS_REMEMBERED)
def uuid_of(raw: bytes) -> uuid.UUID:
    """Returns the UUID of 16 bytes, the form of topic ids."""
    return uuid.UUID(bytes=raw)


def long_uvarint(data: memoryview, position: int, low: int) -> tuple[int, int]:
    """Finishes a varint whose first byte had `low` (without its high bit); value and position."""
    # Two and three bytes unrolled: they are the lengths of most record batches.
    byte = data[position]
    value = low & 0x7F | (byte & 0x7F) << 7
    if byte < 0x80:
        return value, position + 1
    byte = data[position + 1]
    value |= (byte & 0x7F) << 14
    if byte < 0x80:
        return value, position + 2
    position += 2
    for shift in range(21, 7 * VARINT_BYTES_MAX, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > LENGTH_MAX:
                raise MalformedRequest(f"varint {value} is out of range")
            return value, position
    raise MalformedRequest("varint is longer than 5 bytes")


def uvarint(value: int) -> bytes:
    """Encodes an unsigned varint, for lengths and tags of flexible versions."""
    assert value >= 0, value
    if value < 0x80:
        return ONE_BYTE[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 0x200000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def compact_string_length(length_and_one: int) -> bytes:
    """Encodes the length of a long string; refuses lengths that no client reads."""
    assert length_and_one <= STRING_BYTES_MAX + 1, "a string of more than 32767 bytes"
    return uvarint(length_and_one)


def skip_tags(data: memoryview, position: int, count: int, limit: int) -> int:
    """Returns the position after `count` unknown tagged fields; `count` is already read.

    Raises MalformedRequest if tags do not ascend (so none can repeat), a size overruns, or there
    are more than UNKNOWN_TAGS_MAX.
    """
    return skip_counted_tags(data, position, count, limit, UNKNOWN_TAGS_MAX)[1]


def skip_counted_tags(
    data: memoryview, position: int, count: int, limit: int, left: int
) -> tuple[int, int]:
    """Skips at most `left` fields as `skip_tags` does; returns what is left, and the position."""
    if count > 0x7F:
        count, position = long_uvarint(data, position, count)
    left -= count
    if left < 0:
        raise_flood()
    previous = -1
    for _ in range(count):
        tag, end, position = tag_header(data, position, limit)
        if tag <= previous:
            raise MalformedRequest(f"tag {tag} after tag {previous}")
        previous = tag
        position = end
    return left, position


def tag_header(data: memoryview, position: int, limit: int) -> tuple[int, int, int]:
    """Returns the tag, the end of its bytes, and their start."""
    tag = data[position]
    position += 1
    if tag > 0x7F:
        tag, position = long_uvarint(data, position, tag)
    size_bytes = data[position]
    position += 1
    if size_bytes > 0x7F:
        size_bytes, position = long_uvarint(data, position, size_bytes)
    if position + size_bytes > limit:
        raise_short()
    return tag, position + size_bytes, position


def raise_short() -> NoReturn:
    raise MalformedRequest("a field ends after the end of the message")


def raise_null(field: str) -> NoReturn:
    raise MalformedRequest(f"{field} must not be null")


def raise_length(field: str, length: int) -> NoReturn:
    raise MalformedRequest(f"{field} cannot have length {length}")


def raise_count(field: str, count: int) -> NoReturn:
    raise MalformedRequest(f"{field} announces {count} elements, more than there are bytes for")


def raise_flood() -> NoReturn:
    raise MalformedRequest("more elements than one request may have")


def raise_tag(tag: int) -> NoReturn:
    raise MalformedRequest(f"tag {tag} is repeated, out of order or has the wrong size")
