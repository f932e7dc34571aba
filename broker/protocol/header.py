"""Request and response headers, and the frame around them; of both sides, as brokers ask others.

    frame     = length i32 | header | body                        length counts what follows it
    request   = key i16 | version i16 | correlation id i32 | client id nullable string [| tags]
    response  = correlation id i32 [| tags]

The tags are there in flexible versions. The client id stays a string with an int16 length even
there. Answers to ApiVersions never have tags: the client does not know our versions yet.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from strandline.broker.protocol.schema.api import EVERY_SPEC, SPECS, ApiKey, ApiSpec
from strandline.broker.protocol.schema.errors import MalformedRequest, UnsupportedVersion
from strandline.broker.protocol.schema.primitives import skip_tags
from strandline.broker.protocol.schema.schema import IN_MEMORY, Part

_REQUEST_HEAD: Final = struct.Struct(">hhih")
_UNPACK_REQUEST_HEAD: Final = _REQUEST_HEAD.unpack_from
_ROUTE: Final = struct.Struct(">hhi")
_INT32: Final = struct.Struct(">i")
_PACK_INT32: Final = _INT32.pack
_LENGTH_AND_CORRELATION: Final = struct.Struct(">ii").pack
_LENGTH_CORRELATION_NO_TAGS: Final = struct.Struct(">iix").pack


class RequestHeader(NamedTuple):
    """The header of a request, its sender, and the position of the body in the frame."""

    api_key: ApiKey
    api_version: int
    correlation_id: int
    client_id: str
    body_position: int
    # The sender, as far as known; not part of the frame.
    user: str = "ANONYMOUS"


# One lookup answers "do we serve this?" and "which header has it?" for every request.
Routes: TypeAlias = Mapping[tuple[int, int], tuple[ApiKey, bool]]


def routes_of(specs: Iterable[ApiSpec]) -> Routes:
    """Returns what a listener serves."""
    return {
        (int(spec.key), version): (spec.key, spec.is_flexible(version))
        for spec in specs
        for version in spec.supported
    }


_ROUTES_OF_BROKERS: Final = routes_of(SPECS.values())


def decode_request_header(frame: memoryview, routes: Routes = _ROUTES_OF_BROKERS) -> RequestHeader:
    """Decodes the header of a frame without its length; a null client id becomes empty.

    `routes` are those of the listener. Raises UnsupportedVersion for an API or version that is not
    served, MalformedRequest otherwise.
    """
    try:
        api_key, version, correlation_id, length = _UNPACK_REQUEST_HEAD(frame, 0)
        route = routes.get((api_key, version))
        if route is None:
            raise UnsupportedVersion(
                api_key=api_key, api_version=version, correlation_id=correlation_id
            )
        position = _REQUEST_HEAD.size
        client_id = ""
        if length > 0:
            end = position + length
            if end > len(frame):
                raise MalformedRequest("the client id ends after the end of the frame")
            client_id = str(frame[position:end], "utf-8", "replace")
            position = end
        if route[1]:
            tags = frame[position]
            position += 1
            if tags:
                position = skip_tags(frame, position, tags, len(frame))
    except (struct.error, IndexError) as error:
        raise _short_header(frame, routes) from error
    return RequestHeader(route[0], version, correlation_id, client_id, position)


def _short_header(frame: memoryview, routes: Routes) -> MalformedRequest | UnsupportedVersion:
    """Returns the error for a truncated header: UnsupportedVersion if the version can be read."""
    if len(frame) >= _ROUTE.size:
        api_key, version, correlation_id = _ROUTE.unpack_from(frame, 0)
        if (api_key, version) not in routes:
            return UnsupportedVersion(
                api_key=api_key, api_version=version, correlation_id=correlation_id
            )
    return MalformedRequest("the frame ends inside its header")


def frame(parts: Sequence[Part]) -> list[Part]:
    """Puts the total length in front of `parts`, which stay untouched."""
    return [_PACK_INT32(size_of(parts)), *parts]


def encode_request_header(
    api_key: ApiKey, version: int, correlation_id: int, client_id: str
) -> bytes:
    """Encodes the header of a request that this node sends."""
    name = client_id.encode()
    tags = b"\x00" if EVERY_SPEC[api_key].is_flexible(version) else b""
    return _REQUEST_HEAD.pack(api_key, version, correlation_id, len(name)) + name + tags


def body_of_response(api_key: ApiKey, version: int, frame: memoryview) -> memoryview:
    """Returns what follows the header of an answer, in a frame without its length.

    Raises MalformedRequest.
    """
    position = _INT32.size
    if api_key != ApiKey.API_VERSIONS and EVERY_SPEC[api_key].is_flexible(version):
        try:
            tags = frame[position]
            position += 1
            if tags:
                position = skip_tags(frame, position, tags, len(frame))
        except (struct.error, IndexError) as error:
            raise MalformedRequest("the frame ends inside its header") from error
    return frame[position:]


def frame_response(
    api_key: int, version: int, correlation_id: int, parts: Sequence[Part]
) -> list[Part]:
    """Puts length and response header in front of `parts`, in one buffer."""
    size_bytes = size_of(parts) + _INT32.size
    if api_key != ApiKey.API_VERSIONS and EVERY_SPEC[api_key].is_flexible(version):
        return [_LENGTH_CORRELATION_NO_TAGS(size_bytes + 1, correlation_id), *parts]
    return [_LENGTH_AND_CORRELATION(size_bytes, correlation_id), *parts]


def size_of(parts: Sequence[Part]) -> int:
    """Returns the bytes of all parts together, in memory or not."""
    size_bytes = 0
    for part in parts:
        size_bytes += len(part) if isinstance(part, IN_MEMORY) else part.length
    return size_bytes
