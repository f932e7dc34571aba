"""Bounds the time to read response bodies that the SDK parses: listings, deletions, errors.

A socket's timeout bounds the wait for the next bytes, not for the last: a server that sends one
byte a second blocks a thread for an hour. A `before-send` handler of the SDK therefore sends the
request as a streaming one and reads the body itself, with a deadline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from strandline.storage.clock import Clock
from strandline.storage.remote.s3.attempts import DeadlineError

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client
    from urllib3.response import HTTPResponse

BLOCK_BYTES = 64 * 1024
# A listing of 1000 keys of maximum length, each byte escaped, is a tenth of this.
ANSWER_BYTES_MAX = 32 * 1024 * 1024


class _Request(Protocol):
    stream_output: bool


class _Answer(Protocol):
    raw: HTTPResponse
    # The cached value behind `content`.
    _content: bytes


def bound_answers(client: S3Client, *, seconds: float, clock: Clock) -> None:
    """Limits each response of `client` to `seconds` from its first byte and to ANSWER_BYTES_MAX.

    A request over the time limit raises DeadlineError. Callers of GetObject read its body
    themselves.
    """
    # The SDK has no public access to its HTTP session.
    session = client._endpoint.http_session  # type: ignore[attr-defined]  # noqa: SLF001

    def send(request: _Request, **_: object) -> _Answer | None:
        if request.stream_output:
            return None
        request.stream_output = True
        response: _Answer = session.send(request)
        deadline_s = clock.monotonic_s() + seconds
        response._content = _read(response.raw, deadline_s, clock)  # noqa: SLF001
        return response

    # The stubs declare no return value for handlers of this event.
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
