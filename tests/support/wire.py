"""A bare Kafka client on a blocking socket: any request in any version, and bytes that are none."""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import TypeVar

from strandline.broker.protocol.codec import codec
from strandline.broker.protocol.schema.api import EVERY_SPEC, ApiKey
from strandline.broker.protocol.schema.primitives import skip_tags
from strandline.broker.protocol.schema.schema import Request, Response

ResponseT = TypeVar("ResponseT", bound=Response)
TIMEOUT_S = 60.0


def encode_request_header(
    api_key: int, version: int, correlation_id: int, client_id: str | None
) -> bytes:
    """The header of a request; the client id is not compact even in flexible versions."""
    raw = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(raw)
    tags = b"\x00" if EVERY_SPEC[api_key].is_flexible(version) else b""
    return struct.pack(">hhih", api_key, version, correlation_id, length) + raw + tags


def decode_response_header(api_key: int, version: int, frame: memoryview) -> tuple[int, int]:
    """The correlation id of a response, and the position of its body."""
    correlation_id: int = struct.unpack_from(">i", frame)[0]
    # ApiVersions answers with the old header in every version (KIP-511).
    if api_key == ApiKey.API_VERSIONS or not EVERY_SPEC[api_key].is_flexible(version):
        return correlation_id, 4
    return correlation_id, skip_tags(frame, 5, frame[4], len(frame))


class WireClient:
    """One connection; requests are answered in order."""

    def __init__(
        self,
        port: int,
        host: str = "127.0.0.1",
        *,
        client_id: str = "test",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._client_id = client_id
        self._socket = socket.create_connection((host, port), timeout=timeout_s)
        self._correlation_id = 0

    def __enter__(self) -> WireClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def fileno(self) -> int:
        """For `select`: readable when an answer is there."""
        return self._socket.fileno()

    def send_raw(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive_frame(self) -> bytes:
        """The next frame without its length; ConnectionError if the broker closes instead."""
        (length,) = struct.unpack(">i", self._receive(4))
        return self._receive(length)

    def closed_by_broker(self) -> bool:
        """Waits until the broker closes, and says whether it did so without sending anything."""
        try:
            return self._socket.recv(1) == b""
        except ConnectionError:
            return True

    def send(self, request: Request, version: int) -> int:
        """Sends one request; its correlation id."""
        self._correlation_id += 1
        header = encode_request_header(
            request.spec.key, version, self._correlation_id, self._client_id
        )
        body = codec.join(codec.encode(request, version))
        self.send_raw(struct.pack(">i", len(header) + len(body)) + header + body)
        return self._correlation_id

    def receive(self, kind: type[ResponseT], version: int, correlation_id: int) -> ResponseT:
        """The answer to the request of that correlation id."""
        frame = memoryview(self.receive_frame())
        got, position = decode_response_header(kind.spec.key, version, frame)
        assert got == correlation_id, (got, correlation_id)
        return codec.decode(kind, version, frame[position:])

    def ask(self, request: Request, kind: type[ResponseT], version: int) -> ResponseT:
        """One request and its answer."""
        return self.receive(kind, version, self.send(request, version))

    def _receive(self, length: int) -> bytes:
        received = bytearray()
        while len(received) < length:
            part = self._socket.recv(length - len(received))
            if not part:
                raise ConnectionError(f"closed after {len(received)} of {length} bytes")
            received += part
        return bytes(received)
