"""How a connection to another node is secured: encrypted, and by which login.

    PLAINTEXT   SSL: its certificate, and ours if it wants one   SASL_PLAINTEXT, SASL_SSL: a login

The files of certificates are read for each connection, so that renewed ones are used from then on.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from strandline.broker.peers.errors import PeerUnreachable
from strandline.broker.security.client import (
    ClientExchange,
    NoToken,
    OAuthClient,
    PlainClient,
    ScramClient,
    Tokens,
)
from strandline.broker.security.scram import DIGESTS
from strandline.broker.tls.config import TlsConfig
from strandline.storage.clock import Clock

if TYPE_CHECKING:
    import ssl

PLAIN, OAUTHBEARER = "PLAIN", "OAUTHBEARER"
PASSWORDS = (PLAIN, *DIGESTS)
MECHANISMS = (*PASSWORDS, OAUTHBEARER)
_NONCE_BYTES: Final = 24


class PeerLogin(Protocol):
    """How this broker logs in at other nodes."""

    @property
    def mechanism(self) -> str: ...

    @property
    def user(self) -> str:
        """Who it is, for messages."""
        ...

    async def begin(self, clock: Clock) -> ClientExchange:
        """Returns our half of a new login. Raises PeerUnreachable."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogin:
    """A login by a token."""

    source: Tokens
    user: str
    mechanism: str = OAUTHBEARER

    async def begin(self, clock: Clock) -> ClientExchange:
        """As PeerLogin; a provider is asked in a thread."""
        try:
            return OAuthClient(await asyncio.to_thread(self.source.read, clock))
        except NoToken as error:
            raise PeerUnreachable(str(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class PasswordLogin:
    """A login by name and password."""

    mechanism: str
    user: str
    password: str = field(repr=False)

    async def begin(self, _clock: Clock) -> ClientExchange:
        """As PeerLogin."""
        if self.mechanism == PLAIN:
            return PlainClient(self.user, self.password)
        nonce = secrets.token_urlsafe(_NONCE_BYTES)
        return ScramClient(self.mechanism, self.user, self.password, nonce)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSecurity:
    """The security of connections to one kind of nodes; without `tls` they are not encrypted."""

    # The listener by which the others are reached.
    listener: str
    tls: TlsConfig | None = None
    checks_name: bool = True
    login: PeerLogin | None = None

    def context(self) -> ssl.SSLContext | None:
        """Reads the certificates; blocks. Raises InvalidConfig."""
        if self.tls is None:
            return None
        # Loaded by who connects by TLS: 5 ms.
        from strandline.broker.tls.context import client_context
        from strandline.broker.tls.stores import read_stores

        return client_context(self.tls, read_stores(self.tls), checks_name=self.checks_name)
