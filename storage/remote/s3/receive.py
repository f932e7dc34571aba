"""The body of an S3 answer, received where it shall lie.

The SDK's streams hand out `bytes`: each block is copied once more, by a thread that holds the
interpreter's lock meanwhile and takes the page faults of fresh memory. For a chunk of 8 MiB that
was a third of the Python time of a cold read. Below them stands `http.client`, whose buffered
reader receives into any memory with one `recv` and without the lock; the two counters above it
(http.client's and urllib3's) are kept true, so that the end of the body is seen and the connection
is used again.
"""

from __future__ import annotations

import http.client
import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from urllib3 import HTTPResponse


def receive_some(stream: HTTPResponse, target: memoryview) -> int:
    """Bytes of the body that one `recv` brought into the beginning of `target`; 0 at its end.

    Raises what the stream raises: timeouts, resets, broken bodies.
    """
    inner = getattr(stream, "_fp", None)
    reader = inner.fp if isinstance(inner, http.client.HTTPResponse) else None
    if (
        not isinstance(reader, io.BufferedReader)
        or not isinstance(inner, http.client.HTTPResponse)
        or inner.chunked
        or not inner.length
        or stream.length_remaining is None
    ):
        # Chunked, at its end, or built otherwise than we know: the documented way.
        block = stream.read1(len(target))
        target[: len(block)] = block
        return len(block)
    count = reader.readinto1(target[: inner.length])
    inner.length -= count
    stream.length_remaining -= count
    if count == 0:
        stream.read1(1)  # the connection ended early: the stream says so in its own words
    return count
