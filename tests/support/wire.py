"""A bare Kafka client on a blocking socket: any request in any version, and bytes that are none."""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import TypeVar

from strandline.broker.protocol.codec import codec
from strandline.broker.protocol.schema.schema import Request, Response

ResponseT = TypeVar("ResponseT", bound=Response)
TIMEOUT_S = 60.0


class WireClient:
    """One connection; requests are answered in order."""

    def __init__(self, port: int, host: str = "127.0.0.1", *, client_id: str = "test") -> None:
        self._client_id = client_id.encode()
        self._socket = socket.create_connection((host, port), timeout=TIMEOUT_S)
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
        spec = request.spec
        flexible = spec.is_flexible(version)
        header = struct.pack(">hhi", spec.key, version, self._correlation_id)
        header += struct.pack(">h", len(self._client_id)) + self._client_id
        if flexible:
            header += b"\x00"
        body = codec.join(codec.encode_request(request, version))
        self.send_raw(struct.pack(">i", len(header) + len(body)) + header + body)
        return self._correlation_id

    def receive(self, kind: type[ResponseT], version: int, correlation_id: int) -> ResponseT:
        """The answer to the request of that correlation id."""
        frame = memoryview(self.receive_frame())
        (got,) = struct.unpack_from(">i", frame)
        assert got == correlation_id, (got, correlation_id)
        spec = kind.spec
        # ApiVersions answers with the old header in every version (KIP-511).
        flexible_header = spec.is_flexible(version) and spec.key != 18
        response = codec.decode_response(spec.key, version, frame[5 if flexible_header else 4 :])
        assert isinstance(response, kind)
        return response

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
