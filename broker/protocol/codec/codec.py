"""Decodes and encodes messages of every API and version that `api` lists, served or not.

    decode_request   body of a request    -> typed message
    encode           typed message        -> list of buffers   (records are never joined or copied)

Decoding raises MalformedRequest or nothing, whatever the bytes are. It takes no more memory than a
small multiple of the body, and bodies without records are bounded.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Final, TypeVar

from strandline.broker.protocol.codec.codegen import Decoder, Encoder, make_decoder, make_encoder
from strandline.broker.protocol.schema.api import EVERY_SPEC, ApiKey, api_name
from strandline.broker.protocol.schema.errors import MalformedRequest
from strandline.broker.protocol.schema.schema import (
    IN_MEMORY,
    Message,
    Part,
    Request,
    Response,
)

M = TypeVar("M", bound=Message)
R = TypeVar("R", bound=Request)

# Only Produce carries records. Other bodies are names and numbers: 2 MiB is a fetch of 60,000
# partitions. Members' data in JoinGroup and SyncGroup has to fit into one batch of
# __consumer_offsets later, which is 1 MiB in Kafka too. Made of the smallest elements, such a body
# costs 40 times its size in memory and half a microsecond per byte, so this, and not
# socket.request.max.bytes, bounds the memory and time of one hostile request.
PLAIN_BODY_BYTES_MAX: Final = 2 * 1024 * 1024

_MESSAGES: Final = "strandline.broker.protocol.messages"


def decode_request(cls: type[R], version: int, body: memoryview) -> R:
    """Decodes a request, which keeps slices of `body`. Raises MalformedRequest.

    Bytes behind the last field are ignored, as in Apache Kafka: librdkafka (2.16 still) asks for
    all topics with a Metadata request that is three bytes too long.
    """
    if len(body) > PLAIN_BODY_BYTES_MAX and cls.spec.key is not ApiKey.PRODUCE:
        raise MalformedRequest(f"a body of {len(body)} bytes in a request without records")
    return _decode(cls, version, body)[0]


def decode(cls: type[M], version: int, body: memoryview) -> M:
    """Decodes one message of a known class that fills `body`. Raises MalformedRequest."""
    message, position = _decode(cls, version, body)
    if position != len(body):
        raise MalformedRequest(
            f"{len(body) - position} bytes are left after {cls.__name__} v{version}"
        )
    return message


def _decode(cls: type[M], version: int, body: memoryview) -> tuple[M, int]:
    """Returns the message and the position behind it. Raises MalformedRequest."""
    try:
        message, position = decoder_for(cls, version)(body, 0, len(body))
    except (struct.error, IndexError) as error:
        raise MalformedRequest(f"{cls.__name__} v{version} ends in the middle") from error
    assert type(message) is cls, message
    return message, position


def encode(message: Message, version: int) -> list[Part]:
    """Encodes a body as buffers, with records and file ranges as untouched parts between them."""
    cls = type(message)
    try:
        return encoder_for(cls, version)(message)
    except (struct.error, TypeError, AttributeError) as error:
        raise AssertionError(f"{message!r} does not fit {cls.__name__} v{version}") from error


def join(parts: Sequence[Part]) -> bytes:
    """Joins all parts, for tests and tools; every part must be in memory."""
    out = bytearray()
    for part in parts:
        assert isinstance(part, IN_MEMORY), part
        out += part
    return bytes(out)


@cache
def request_class(api_key: int) -> type[Request]:
    """Returns the request class of an API, whose module is imported when first needed.

    It is found by its name, so that no registry imports all.
    """
    key = ApiKey(api_key)
    module = import_module(f"{_MESSAGES}.{key.name.lower()}")
    found: type[Request] = getattr(module, f"{api_name(key)}Request")
    return found


@cache
def response_class(api_key: int) -> type[Response]:
    """Returns the class of the answers of an API; it is in the module of the requests."""
    request = request_class(api_key)
    module = import_module(request.__module__)
    found: type[Response] = getattr(module, f"{api_name(ApiKey(api_key))}Response")
    return found


@cache
def decoder_for(cls: type[Message], version: int) -> Decoder:
    assert version in EVERY_SPEC[cls.spec.key].supported, (cls, version)
    return make_decoder(cls, version, flexible=cls.spec.is_flexible(version))


@cache
def encoder_for(cls: type[Message], version: int) -> Encoder:
    assert version in EVERY_SPEC[cls.spec.key].supported, (cls, version)
    return make_encoder(cls, version, flexible=cls.spec.is_flexible(version))
