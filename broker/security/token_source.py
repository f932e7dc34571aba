"""Where a broker gets the token by which it logs in elsewhere (KIP-768).

    file:///path     read for each login: somebody renews it, as Kubernetes does
    https://...      client_credentials (RFC 6749, 4.4), as Kafka's ClientCredentialsJwtRetriever

A provider is asked again once most of a token's time is over, and a token that has not ended serves
while the provider is away.
"""

from __future__ import annotations

import base64
import json
import threading
from typing import Final
from urllib.parse import urlencode
from urllib.request import Request

from strandline.broker.security.client import NoToken
from strandline.broker.security.jwt import TOKEN_BYTES_MAX, read_token
from strandline.broker.security.mechanism import AuthenticationFailed
from strandline.broker.security.provider_request import read_url
from strandline.storage.clock import Clock
from strandline.storage.files import read_named

# Of a token's time, as sasl.login.refresh.window.factor.
_USED_UNTIL: Final = 0.8
# Until a provider that did not answer is asked again, as long as there is a token.
_RETRY_MS: Final = 60_000
# Around the token of an answer.
_ANSWER_BYTES_MAX: Final = 2 * TOKEN_BYTES_MAX
_FILE: Final = "file://"
_MALFORMED: Final = (ValueError, LookupError, TypeError, AttributeError, OverflowError)


class TokenSource:
    """As Tokens, to one at a time: those of a file or of a provider."""

    def __init__(
        self, url: str, *, client_id: str, secret: str, scope: str | None, authority: str
    ) -> None:
        """`authority` has certificates in PEM that alone are trusted; empty: the system's."""
        self.url = url
        self._client_id = client_id
        self._secret = secret
        self._scope = scope
        self._authority = authority
        self._lock = threading.Lock()
        self._last = ""
        # In ms since 1970: when the last one should be renewed, and when it ends.
        self._renew_ms = self._end_ms = 0.0

    def __repr__(self) -> str:
        return f"<TokenSource {self.url}>"

    def read(self, clock: Clock) -> str:
        """As Tokens."""
        if self.url.startswith(_FILE):
            return self._read_file()
        with self._lock:
            now_ms = clock.now_ms()
            if now_ms >= self._renew_ms:
                try:
                    self._renew(clock, now_ms)
                except NoToken:
                    if now_ms >= self._end_ms:
                        raise
                    # Logins do not wait for it again meanwhile: it may hang.
                    self._renew_ms = min(now_ms + _RETRY_MS, self._end_ms)
            return self._last

    def _read_file(self) -> str:
        try:
            return read_named(self.url.removeprefix(_FILE), TOKEN_BYTES_MAX).decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise NoToken(f"no token in {self.url}: {error}") from error

    def _renew(self, clock: Clock, now_ms: int) -> None:
        try:
            answer = read_url(self._request(), self._authority, clock, bytes_max=_ANSWER_BYTES_MAX)
            text = json.loads(answer)["access_token"]
            claims = read_token(text.encode("ascii")).claims
            lifetime_ms = float(claims["exp"]) * 1000 - now_ms
        except OSError as error:
            raise NoToken(f"no token of {self.url}: {error}") from error
        except (AuthenticationFailed, *_MALFORMED) as error:
            reason = f"no access_token that is a JWT with exp ({type(error).__name__})"
            raise NoToken(f"the answer of {self.url} has {reason}") from None
        self._last = text
        self._renew_ms = now_ms + lifetime_ms * _USED_UNTIL
        self._end_ms = now_ms + lifetime_ms

    def _request(self) -> Request:
        form = {"grant_type": "client_credentials"}
        if self._scope:
            form["scope"] = self._scope
        client = base64.b64encode(f"{self._client_id}:{self._secret}".encode()).decode()
        headers = {"Authorization": f"Basic {client}", "Accept": "application/json"}
        return Request(self.url, urlencode(form).encode(), headers, method="POST")
