"""Structs with a leading version, as in Kafka's opaque fields and internal topics.

    version i16 | struct, in that version

The tables are those of `schema`; this module decodes them without headers and APIs.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Final, TypeVar

from strandline.broker.protocol.codec.codegen import Decoder, Encoder, make_decoder, make_encoder
from strandline.broker.protocol.schema.errors import MalformedRequest
from strandline.broker.protocol.schema.schema import IN_MEMORY, Struct

S = TypeVar("S", bound=Struct)

VERSION_BYTES: Final = 2
# The first flexible version of a format that never becomes flexible.
NEVER_FLEXIBLE: Final = 32767
_VERSION: Final = struct.Struct(">h")

# One function per table and version, made on first use; there are a few dozen at most.
decoder_for = cache(make_decoder)
encoder_for = cache(make_encoder)


def read_version(data: memoryview) -> int:
    """Decodes the leading version. Raises MalformedRequest."""
    if len(data) < VERSION_BYTES:
        raise MalformedRequest(f"{len(data)} bytes cannot hold a version")
    version: int = _VERSION.unpack_from(data, 0)[0]
    return version


def read_struct(
    cls: type[S], version: int, data: memoryview, *, flexible_from: int = NEVER_FLEXIBLE
) -> tuple[S, int]:
    """Decodes the struct behind the version in `data` as `version`; returns it and its end.

    Raises MalformedRequest.
    """
    decoder: Decoder = decoder_for(cls, version, flexible=version >= flexible_from)
    try:
        message, position = decoder(data, VERSION_BYTES, len(data))
    except (struct.error, IndexError) as error:
        raise MalformedRequest(f"{cls.__name__} v{version} ends in the middle") from error
    assert type(message) is cls, message
    return message, position


def read_whole(
    cls: type[S], version: int, data: memoryview, *, flexible_from: int = NEVER_FLEXIBLE
) -> S:
    """Decodes like `read_struct`, where nothing may follow the struct. Raises MalformedRequest."""
    found, position = read_struct(cls, version, data, flexible_from=flexible_from)
    if position != len(data):
        raise MalformedRequest(f"{len(data) - position} bytes are left after {cls.__name__}")
    return found


def write_struct(message: Struct, version: int, *, flexible_from: int = NEVER_FLEXIBLE) -> bytes:
    """Encodes version and struct; leaves out fields that the version does not carry."""
    encoder: Encoder = encoder_for(type(message), version, flexible=version >= flexible_from)
    try:
        (body,) = encoder(message)
    except (struct.error, TypeError, AttributeError) as error:
        raise AssertionError(f"{message!r} does not fit version {version}") from error
    assert isinstance(body, IN_MEMORY), body
    return _VERSION.pack(version) + bytes(body)
