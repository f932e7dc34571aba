"""TLS for both brokers and their clients: the same certificates, TLS 1.3, one cipher suite.

Each broker has a second listener, SSL, beside PLAINTEXT, by which topics are made and looked at.
Python's `ssl` cannot choose among the suites of TLS 1.3, and strandline's first one is SUITE; Kafka
is told to have no other. Who shakes hands here checks that it is that one.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from strandline.broker.protocol.codec import codec
from strandline.broker.protocol.messages.api_versions import ApiVersionsRequest
from tests.support.certificates import Authority
from tests.support.wire import encode_request_header

VERSION, SUITE = "TLSv1.3", "TLS_AES_256_GCM_SHA384"
CLIENT_TIMEOUT_S = 60.0
# Enough for both cores of a small machine: OpenSSL works without the interpreter's lock.
CLIENT_THREADS = 4


@dataclass(frozen=True, slots=True)
class Certificates:
    """The files of an authority, and of the key and certificate that it gave the brokers."""

    folder: Path

    @property
    def authority(self) -> Path:
        return self.folder / "authority.pem"

    @property
    def broker(self) -> Path:
        return self.folder / "broker.pem"

    def make(self) -> Certificates:
        """Issues both, with keys of P-256, unless they are there."""
        if not self.broker.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            authority = Authority()
            authority.write(self.authority)
            authority.issue("broker").write(self.broker)
        return self

    def of_broker(self) -> Mapping[str, str]:
        """The properties of either broker."""
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.broker),
            "ssl.enabled.protocols": VERSION,
        }

    def of_librdkafka(self, port: int) -> Mapping[str, str | int]:
        """The settings of a client that comes by the listener at this port."""
        return {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "security.protocol": "ssl",
            "ssl.ca.location": str(self.authority),
        }


class TlsClient:
    """Bare connections to a listener with TLS."""

    def __init__(self, certificates: Certificates, port: int) -> None:
        self._context = ssl.create_default_context(cafile=certificates.authority)
        self._port = port

    def connect(self) -> ssl.SSLSocket:
        """A connection whose handshake this side has finished."""
        connected = socket.create_connection(("127.0.0.1", self._port), CLIENT_TIMEOUT_S)
        sealed = self._context.wrap_socket(connected, server_hostname="127.0.0.1")
        suite = sealed.cipher()
        assert suite is not None
        assert (sealed.version(), suite[0]) == (VERSION, SUITE), suite
        return sealed

    def shake_hands(self) -> None:
        """A connection without a request, until the broker has closed it: it has seen the end, and
        so the handshake before.
        """
        with self.connect() as sealed:
            sealed.shutdown(socket.SHUT_WR)
            with suppress(ConnectionError):
                while sealed.recv(4096):
                    pass

    def shake_hands_for(self, seconds: float) -> int:
        """As many handshakes as can be in this time, of CLIENT_THREADS at a time; their number."""
        end_s = time.monotonic() + seconds
        with ThreadPoolExecutor(CLIENT_THREADS) as pool:
            counted = [pool.submit(self._shake_until, end_s) for _ in range(CLIENT_THREADS)]
            return sum(count.result() for count in counted)

    def _shake_until(self, end_s: float) -> int:
        count = 0
        while time.monotonic() < end_s:
            self.shake_hands()
            count += 1
        return count

    @contextmanager
    def idle(self, count: int) -> Iterator[None]:
        """So many connections, each of which has asked once which versions there are."""
        header = encode_request_header(ApiVersionsRequest.spec.key, 0, 1, "bench")
        frame = header + codec.join(codec.encode(ApiVersionsRequest(), 0))
        with ExitStack() as stack:
            for _ in range(count):
                sealed = stack.enter_context(self.connect())
                sealed.sendall(len(frame).to_bytes(4, "big") + frame)
                assert sealed.recv(4096)
            yield
