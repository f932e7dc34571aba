"""Answers whose body the SDK reads by itself: listings, deletions, errors. Read in bounded time.

A socket's timeout bounds the wait for the next bytes, not for the last: a server that sends one
byte a second keeps a thread for an hour. The SDK offers a place before it sends; there the request
is sent as one whose body is left alone, and the body is read here, with a deadline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from strandline.storage.clock import Clock
from strandline.storage.remote.s3.attempts import DeadlineError

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client
    from urllib3.response import HTTPResponse

BLOCK_BYTES = 64 * 1024
# A listing of 1000 of the longest keys, each byte of them escaped, is a tenth of it.
ANSWER_BYTES_MAX = 32 * 1024 * 1024


class _Request(Protocol):
    stream_output: bool


class _Answer(Protocol):
    raw: HTTPResponse
    # What its `content` has read.
    _content: bytes


def bound_answers(client: S3Client, *, seconds: float, clock: Clock) -> None:
    """From now on no answer of `client` takes longer than `seconds` from its first byte on.

    Nor is one longer than ANSWER_BYTES_MAX. Raises DeadlineError out of the request. Bodies of
    GetObject are read by their callers.
    """
    # It cannot be reached otherwise.
    session = client._endpoint.http_session  # type: ignore[attr-defined]  # noqa: SLF001

    def send(request: _Request, **_: object) -> _Answer | None:
        if request.stream_output:
            return None
        request.stream_output = True
        response: _Answer = session.send(request)
        deadline_s = clock.monotonic_s() + seconds
        response._content = _read(response.raw, deadline_s, clock)  # noqa: SLF001
        return response

    # The stubs know of no answer to this event.
    client.meta.events.register("before-send.s3", send)  # type: ignore[arg-type]


def _read(stream: HTTPResponse, deadline_s: float, clock: Clock) -> bytes:
    blocks: list[bytes] = []
    left_bytes = ANSWER_BYTES_MAX
    while block := stream.read1(BLOCK_BYTES):
        blocks.append(block)
        left_bytes -= len(block)
        if left_bytes < 0:
            stream.close()
            raise DeadlineError(f"an answer of more than {ANSWER_BYTES_MAX} bytes")
        if clock.monotonic_s() > deadline_s:
            stream.close()
            raise DeadlineError(f"only {sum(map(len, blocks))} bytes of the answer came in time")
    return b"".join(blocks)
