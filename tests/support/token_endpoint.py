"""A provider that gives out tokens: for a client's password, for its assertion, or for a query.

It has the paths of the one in librdkafka's test set-up, whose tests run against it:

    GET  /keys                  what checks the signatures
    POST /retrieve              client_credentials, or an assertion that `client_key` signed
    GET  /retrieve?...          the metadata service of Azure
    POST /retrieve/badformat    a token whose signature is no longer its own
    POST /retrieve/expire       one that has expired
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import RSAKey

from tests.support.tokens import AUDIENCE, ISSUER, claims, key_set, rsa_key, token

SUBJECT, CLIENT_ID, CLIENT_SECRET, SCOPE = "subject", "123", "abc", "test"
LIFETIME_S = 60
ASSERTION = "urn:ietf:params:oauth:grant-type:jwt-bearer"
BASIC = "Basic " + base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
# What a query of Azure's has to name.
AZURE = ("client_id", "resource", "api-version")


class Refused(Exception):
    """Of a request without what it needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEndpoint:
    """A running provider."""

    url: str

    @property
    def keys(self) -> str:
        return f"{self.url}/keys"

    @property
    def tokens(self) -> str:
        return f"{self.url}/retrieve"

    def broker_settings(self) -> dict[str, str]:
        """Of a broker that takes its tokens."""
        return {
            "sasl.oauthbearer.jwks.endpoint.url": self.keys,
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
        }


def issued(lifetime_s: int = LIFETIME_S) -> str:
    """A token that begins now."""
    now_s = int(time.time())
    said = claims(now_s, sub=SUBJECT, client_id=SUBJECT, scope=SCOPE, exp=now_s + lifetime_s)
    return token(said=said)


def _check_form(form: dict[str, list[str]], authorization: str, client_key: RSAKey | None) -> None:
    if form.get("scope", [SCOPE]) != [SCOPE]:
        raise Refused("scope")
    if form.get("grant_type") == [ASSERTION]:
        if client_key is None:
            raise Refused("grant_type")
        try:
            found = jwt.decode(form.get("assertion", [""])[0], client_key, algorithms=["RS256"])
        except (JoseError, ValueError) as error:
            raise Refused("assertion") from error
        if not found.claims.get("sub"):
            raise Refused("sub")
    elif form.get("grant_type") != ["client_credentials"] or authorization != BASIC:
        raise Refused("client")


@contextmanager
def running_token_endpoint(client_key: RSAKey | None = None) -> Iterator[TokenEndpoint]:
    """Listens on loopback, over HTTP."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
            if path == "/keys":
                self._answer(key_set(rsa_key()))
            elif path == "/retrieve" and self.headers.get("Metadata") == "true":
                self._answer_token(None if any(name not in query for name in AZURE) else issued())
            else:
                self.send_error(HTTPStatus.NOT_FOUND)

        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"] or 0)).decode())
            path = urlsplit(self.path).path
            if path == "/retrieve/badformat":
                self._answer_token(issued() + "invalid")
            elif path == "/retrieve/expire":
                self._answer_token(issued(-1))
            else:
                try:
                    _check_form(form, self.headers.get("Authorization", ""), client_key)
                    self._answer_token(issued())
                except Refused:
                    self._answer_token(None)

        def _answer_token(self, text: str | None) -> None:
            if text is None:
                self.send_error(HTTPStatus.BAD_REQUEST)
                return
            said = {"access_token": text, "token_type": "Bearer", "expires_in": LIFETIME_S}
            self._answer(json.dumps(said).encode())

        def _answer(self, body: bytes) -> None:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    # Two requests at once would each make one.
    rsa_key()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield TokenEndpoint(url=f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
