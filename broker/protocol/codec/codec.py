"""Decodes and encodes messages of every API and version that `api` lists, served or not.

    decode_request   body of a request    -> typed message     (Produce and Fetch: hand-written)
    encode_response  typed message        -> list of buffers   (records are never joined or copied)
    encode_request, decode_response       the client's side, for tests and tools

Decoding raises MalformedRequest or nothing, whatever the bytes are. It takes no more memory than a
small multiple of the body, and bodies without records are bounded.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from importlib import import_module
from typing import Final, TypeVar

from strandline.broker.protocol.codec.codegen import Decoder, Encoder, make_decoder, make_encoder
from strandline.broker.protocol.schema.api import SPECS, ApiKey
from strandline.broker.protocol.schema.errors import MalformedRequest
from strandline.broker.protocol.schema.schema import (
    IN_MEMORY,
    Message,
    Part,
    Request,
    Response,
    message_names,
)

M = TypeVar("M", bound=Message)

# Only Produce carries records. Other bodies are names and numbers: 2 MiB is a fetch of 60,000
# partitions. Members' data in JoinGroup and SyncGroup has to fit into one batch of
# __consumer_offsets later, which is 1 MiB in Kafka too. Made of the smallest elements, such a body
# costs 40 times its size in memory and half a microsecond per byte, so this, and not
# socket.request.max.bytes, bounds the memory and time of one hostile request.
PLAIN_BODY_BYTES_MAX: Final = 2 * 1024 * 1024

_decoders: dict[tuple[type[Message], int], Decoder] = {}
_encoders: dict[tuple[type[Message], int], Encoder] = {}
_classes: dict[int, tuple[type[Request], type[Response]]] = {}


def decode_request(api_key: int, version: int, body: memoryview) -> Request:
    """Decodes a request, which keeps slices of `body`. Raises MalformedRequest.

    Produce and Fetch have their own functions in `produce` and `fetch`, with the same result.

    Bytes behind the last field are ignored, as in Apache Kafka: librdkafka (2.16 still) asks for
    all topics with a Metadata request that is three bytes too long.
    """
    if len(body) > PLAIN_BODY_BYTES_MAX and api_key != ApiKey.PRODUCE:
        raise MalformedRequest(f"a body of {len(body)} bytes in a request without records")
    return _decode(request_class(api_key), version, body)[0]


def encode_response(response: Response, version: int) -> list[Part]:
    """Encodes the body as buffers, with records and file ranges as untouched parts between them."""
    return encode(response, version)


def encode_request(request: Request, version: int) -> list[Part]:
    """Encodes a request body as a client does."""
    return encode(request, version)


def decode_response(api_key: int, version: int, body: memoryview) -> Response:
    """Decodes a response body as a client does. Raises MalformedRequest."""
    return decode(response_class(api_key), version, body)


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
    decoder = _decoders.get((cls, version)) or _decoder_for(cls, version)
    try:
        message, position = decoder(body, 0, len(body))
    except (struct.error, IndexError) as error:
        raise MalformedRequest(f"{cls.__name__} v{version} ends in the middle") from error
    assert type(message) is cls, message
    return message, position


def encode(message: Message, version: int) -> list[Part]:
    """Encodes one message with generated code."""
    cls = type(message)
    encoder = _encoders.get((cls, version)) or _encoder_for(cls, version)
    try:
        return encoder(message)
    except (struct.error, TypeError, AttributeError) as error:
        raise AssertionError(f"{message!r} does not fit {cls.__name__} v{version}") from error


def join(parts: Sequence[Part]) -> bytes:
    """Joins all parts, for tests and tools; every part must be in memory."""
    out = bytearray()
    for part in parts:
        assert isinstance(part, IN_MEMORY), part
        out += part
    return bytes(out)


def request_class(api_key: int) -> type[Request]:
    """Returns the request class of a served API."""
    return (_classes.get(api_key) or _load(api_key))[0]


def response_class(api_key: int) -> type[Response]:
    """Returns the response class of a served API."""
    return (_classes.get(api_key) or _load(api_key))[1]


def _load(api_key: int) -> tuple[type[Request], type[Response]]:
    """Imports the module of an API when it is first needed."""
    module_name, request_name, response_name = message_names(ApiKey(api_key))
    module = import_module(f"strandline.broker.protocol.messages.{module_name}")
    pair = (getattr(module, request_name), getattr(module, response_name))
    _classes[api_key] = pair
    return pair


def _decoder_for(cls: type[Message], version: int) -> Decoder:
    assert version in SPECS[cls.spec.key].supported, (cls, version)
    decoder = make_decoder(cls, version, flexible=cls.spec.is_flexible(version))
    _decoders[cls, version] = decoder
    return decoder


def _encoder_for(cls: type[Message], version: int) -> Encoder:
    assert version in SPECS[cls.spec.key].supported, (cls, version)
    encoder = make_encoder(cls, version, flexible=cls.spec.is_flexible(version))
    _encoders[cls, version] = encoder
    return encoder
