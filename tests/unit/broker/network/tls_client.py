"""The client's end of TLS, over a socket that does not block."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from functools import cache

from strandline.broker.tls.config import TlsConfig
from strandline.broker.tls.context import server_context
from strandline.broker.tls.stores import KeyStore, Stores
from tests.support.certificates import Authority, Issued

PATIENCE_S = 60
RECEIVED_BYTES = 30_000


@cache
def authority() -> Authority:
    return Authority()


@cache
def broker_certificate() -> Issued:
    return authority().issue("broker")


def context_of(config: TlsConfig | None = None, *, own: Issued | None = None) -> ssl.SSLContext:
    """That of a broker; its clients may be those of the authority."""
    own = own or broker_certificate()
    chain = (own.der,)
    from cryptography.hazmat.primitives.serialization import Encoding

    trusted = (authority().certificate.public_bytes(Encoding.DER),)
    stores = Stores(
        own=KeyStore(key=own.key_pem(), password=None, chain=chain), trusted=trusted, revoked=None
    )
    return server_context(config or TlsConfig(), stores)


class TlsClient:
    """Speaks TLS over a connected socket."""

    def __init__(self, connected: socket.socket, context: ssl.SSLContext | None = None) -> None:
        connected.setblocking(False)
        self.socket = connected
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = context or authority().client_context()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")
        self._received = bytearray()

    async def shake(self) -> None:
        """Raises OSError if the peer refuses."""
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                await self.flush()
                if not await self.receive_some():
                    raise ConnectionResetError from None
            else:
                await self.flush()
                return

    async def flush(self) -> None:
        await asyncio.get_running_loop().sock_sendall(self.socket, self.outgoing.read())

    async def send(self, content: bytes, *, record_bytes: int = 1 << 14) -> None:
        for at in range(0, len(content), record_bytes):
            self.tls.write(content[at : at + record_bytes])
        await self.flush()

    async def leave(self) -> None:
        """Says so, as a client does that closes."""
        with suppress(ssl.SSLWantReadError):
            self.tls.unwrap()
        await self.flush()

    async def receive(self, size: int) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            while len(self._received) < size and self._open():
                if not await self.receive_some():
                    break
                self._open()
        found = bytes(self._received[:size])
        del self._received[:size]
        return found

    def _open(self) -> bool:
        """Returns whether more may come."""
        try:
            while content := self.tls.read(1 << 16):
                self._received += content
        except ssl.SSLWantReadError:
            return True
        return False

    async def receive_some(self) -> bool:
        async with asyncio.timeout(PATIENCE_S):
            found = await asyncio.get_running_loop().sock_recv(self.socket, RECEIVED_BYTES)
        if found:
            self.incoming.write(found)
        return bool(found)

    async def is_cut_off(self) -> bool:
        with suppress(ConnectionError):
            while await self.receive_some():
                pass
        return True
