"""How a connection to another node is secured: encrypted, and by which login.

    PLAINTEXT   SSL: its certificate, and ours if it wants one   SASL_PLAINTEXT, SASL_SSL: a login

The files of certificates are read for each connection, so that renewed ones are used from then on.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from strandline.broker.security.client import ClientExchange, PlainClient, ScramClient
from strandline.broker.security.scram import DIGESTS
from strandline.broker.tls.config import TlsConfig

if TYPE_CHECKING:
    import ssl

PLAIN = "PLAIN"
MECHANISMS = (PLAIN, *DIGESTS)
_NONCE_BYTES = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLogin:
    """The user as which this broker logs in at other nodes."""

    mechanism: str
    user: str
    password: str = field(repr=False)

    def begin(self) -> ClientExchange:
        """Returns our half of a new login."""
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
