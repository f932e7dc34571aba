"""SASL/OAUTHBEARER (RFC 7628): a signed token in one message, as Kafka's OAuthBearerSaslServer.

    n,[a=user],^A auth=Bearer token ^A [name=value ^A]... ^A       ^A is the byte 1

    right   -> an empty answer
    wrong   -> {"status":"invalid_token"}, and the client's ^A ends the exchange

The login ends with its token (KIP-368). A token by an unknown key waits once for the keys to be
fetched: providers rotate them.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Protocol

from strandline.broker.security.jwks import KeySet, check_signature
from strandline.broker.security.jwt import check_claims, read_token
from strandline.broker.security.mechanism import AuthenticationFailed, NotYet, Step
from strandline.broker.security.oauth_config import OAuthConfig

INVALID_TOKEN = '{"status":"invalid_token"}'
_END = b"\x01"

# Kafka's OAuthBearerClientInitialResponse; the scheme has any case.
_FIRST = re.compile(
    rb"n,(?:a=(?P<authzid>[^,\x01]*))?,\x01"
    rb"auth=(?i:bearer) +(?P<token>[-_.~+/A-Za-z0-9]+=*)[ \t]*\x01"
    rb"(?P<pairs>(?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*)\x01"
)


class TokenKeys(Protocol):
    """The keys of a provider, as far as they were fetched."""

    @property
    def current(self) -> KeySet: ...

    def fetched(self) -> Awaitable[object] | None:
        """Returns what ends with a fetch, of now; None if keys were fetched a moment ago."""
        ...


class OAuthExchange:
    """The server's half of one SASL/OAUTHBEARER exchange."""

    def __init__(self, config: OAuthConfig, keys: TokenKeys, now_ms: Callable[[], int]) -> None:
        self._config = config
        self._keys = keys
        self._now_ms = now_ms
        self._failed: AuthenticationFailed | None = None
        self._has_waited = False

    def step(self, message: bytes) -> Step:
        """Checks the token. Raises AuthenticationFailed, or NotYet."""
        if self._failed is not None:
            raise self._failed
        match = _FIRST.fullmatch(message)
        if match is None:
            raise AuthenticationFailed("the message is malformed")
        if any(pair.startswith(b"auth=") for pair in match["pairs"].split(_END)):
            raise AuthenticationFailed("an extension has the name auth")
        try:
            return self._checked(match["token"], match["authzid"])
        except AuthenticationFailed as error:
            self._failed = AuthenticationFailed(str(error), error.user, told=INVALID_TOKEN)
            return Step(answer=INVALID_TOKEN.encode())

    def _checked(self, text: bytes, authzid: bytes | None) -> Step:
        token = read_token(text)
        key = self._keys.current.find(token)
        if key is None:
            coming = None if self._has_waited else self._keys.fetched()
            if coming is not None:
                self._has_waited = True
                raise NotYet(coming)
            raise AuthenticationFailed("the provider has no such key")
        check_signature(token, key)
        subject = check_claims(token.claims, self._config, self._now_ms())
        if authzid and _name(authzid) != subject.user:
            raise AuthenticationFailed("one user cannot log in as another", subject.user)
        return Step(answer=b"", user=subject.user, expires_ms=subject.expires_ms)


def _name(text: bytes) -> str:
    """A name in a message of GS2 (RFC 5801)."""
    return text.decode("utf-8", "replace").replace("=2C", ",").replace("=3D", "=")
