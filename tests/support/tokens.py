"""Tokens of OAUTHBEARER, keys that sign them, and a provider that serves the keys."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from joserfc import jws
from joserfc.jwk import ECKey, RSAKey

NOW_S = 1_700_000_000
ISSUER, AUDIENCE = "https://login.example.org", "kafka"


@cache
def rsa_key(key_id: str = "rsa-1") -> RSAKey:
    return RSAKey.generate_key(2048, {"kid": key_id, "use": "sig"})


@cache
def ec_key(key_id: str = "ec-1", curve: str = "P-256") -> ECKey:
    return ECKey.generate_key(curve, {"kid": key_id})


# A set whose only key is too short to be safe.
WEAK_KEY_SET = json.dumps({"keys": [{"kty": "RSA", "n": "x" * 171, "e": "AQAB"}]}).encode()


def key_set(*keys: RSAKey | ECKey, **more: object) -> bytes:
    """A provider's answer with the public parts of these keys; `more` goes into each."""
    return json.dumps({"keys": [{**key.as_dict(private=False), **more} for key in keys]}).encode()


def claims(now_s: int = NOW_S, **changes: object) -> dict[str, object]:
    """Good claims, with changes; a claim changed to None is left out."""
    made = {
        "sub": "alice",
        "iss": ISSUER,
        "aud": AUDIENCE,
        "iat": now_s - 10,
        "exp": now_s + 600,
        "scope": "kafka",
        **changes,
    }
    return {name: value for name, value in made.items() if value is not None}


def token(
    key: RSAKey | ECKey | None = None,
    said: Mapping[str, object] | None = None,
    algorithm: str = "",
    **header: object,
) -> str:
    """A signed token; the algorithm is that of the key."""
    key = key or rsa_key()
    algorithm = algorithm or ("RS256" if isinstance(key, RSAKey) else "ES256")
    protected: dict[str, Any] = {"alg": algorithm, "kid": key.kid or "", **header}
    protected = {name: value for name, value in protected.items() if value is not None}
    registry = jws.JWSRegistry(algorithms=[algorithm], strict_check_header=False)
    payload = json.dumps(claims() if said is None else said)
    return jws.serialize_compact(protected, payload, key, registry=registry)


def part(value: object) -> bytes:
    """A part of a token that is made by hand; text stays as it is."""
    text = value if isinstance(value, str) else json.dumps(value)
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=")


def first_message(text: str | bytes, user: str = "") -> bytes:
    """What a client of OAUTHBEARER sends."""
    name = f"a={user}" if user else ""
    body = text if isinstance(text, bytes) else text.encode()
    return f"n,{name},\x01auth=Bearer ".encode() + body + b"\x01\x01"


@dataclass
class Provider:
    """A running provider; `keys` is what it serves, None answers with an error."""

    url: str
    keys: bytes | None
    # Where the certificate of an HTTPS provider is.
    folder: Path
    # Where it sends those who ask.
    redirects_to: str | None = None
    # Whether it answers without an end, a byte at a time.
    trickles: bool = False
    # The paths that were asked for.
    asked: list[str] = field(default_factory=list)


@contextmanager
def running_provider(keys: bytes, folder: Path | None = None) -> Iterator[Provider]:
    """Serves keys over HTTP; over HTTPS with a `folder`, whose ca.pem has to be trusted."""
    provider = Provider(url="", keys=keys, folder=folder or Path())

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            provider.asked.append(self.path)
            if provider.trickles:
                self._trickle()
                return
            if provider.redirects_to is not None:
                self.send_response(302)
                self.send_header("Location", provider.redirects_to)
                self.end_headers()
                return
            body = provider.keys
            self.send_response(500 if body is None else 200)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        do_POST = do_GET

        def _trickle(self) -> None:
            with suppress(OSError):
                self.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
                while provider.trickles and not ended.wait(0.01):
                    self.wfile.write(b"x")

        def log_message(self, *_: object) -> None:
            pass

    ended = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    scheme = "http"
    if folder is not None:
        scheme = "https"
        _write_certificate(folder)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "ca.pem", folder / "ca.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    provider.url = f"{scheme}://127.0.0.1:{server.server_port}/keys"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        ended.set()
        server.shutdown()
        server.server_close()
        thread.join()


def _write_certificate(folder: Path) -> None:
    """A certificate for 127.0.0.1 that is its own authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "provider")])
    now = datetime.now(UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(address, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "ca.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "ca.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
