"""The listeners that mutated bytes are sent to, beside the plain one.

SSL      mutated frames in good records of TLS; and good frames, with mutated bytes of TLS, from
         the first of the handshake on
TOKENS   OAUTHBEARER, where nobody has logged in: mutated frames, and mutated tokens in good ones
"""

from __future__ import annotations

import random
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from strandline.broker.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from strandline.broker.protocol.messages.sasl_handshake import SaslHandshakeRequest
from tests.support.certificates import Authority
from tests.support.ports import ReservedPort
from tests.support.tokens import AUDIENCE, ISSUER, claims, ec_key, first_message, key_set, token
from tests.system.calls import frame_of
from tests.system.fuzz.mutations import PATIENCE_S, bent, fire, mutated

SSL, TOKENS = "SSL", "TOKENS"
# Of which one is mutated: the client's hello and its finish, then a record with a frame.
_FLIGHTS = 3
_TOKEN_S = 24 * 3600


class Listeners:
    """Both listeners of a broker, and what a client needs to come in by them."""

    def __init__(self, folder: Path) -> None:
        """`settings` are those of the broker, with PLAINTEXT as its first listener."""
        folder.mkdir(parents=True, exist_ok=True)
        authority = Authority()
        authority.issue("broker").write(folder / "broker.pem")
        keys = folder / "keys.json"
        keys.write_bytes(key_set(ec_key()))
        self._reserved = {name: ReservedPort() for name in (SSL, TOKENS)}
        self._context = authority.client_context()
        own = ",".join(f"{name}://127.0.0.1:{self._port(name)}" for name in self._reserved)
        self.settings: Mapping[str, str] = {
            "listeners": f"PLAINTEXT://127.0.0.1:0,{own}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,TOKENS:SASL_PLAINTEXT",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(folder / "broker.pem"),
            "listener.name.tokens.sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "connection.failed.authentication.delay.ms": "0",
        }
        said = claims(int(time.time()), exp=int(time.time()) + _TOKEN_S)
        self._login = first_message(token(ec_key(), said))

    def _port(self, name: str) -> int:
        return self._reserved[name].number

    def fire(self, generator: random.Random, frames: Sequence[bytes]) -> bytes:
        """Sends something to one of them; returns what was mutated."""
        match generator.randrange(4):
            case 0:
                frame = mutated(generator, frames)
                fire(self._port(SSL), frame, self._context)
                return frame
            case 1:
                return self._fire_records(generator, generator.choice(frames))
            case 2:
                frame = mutated(generator, frames)
                fire(self._port(TOKENS), frame)
                return frame
            case _:
                return self._fire_token(generator)

    def log_in(self) -> None:
        """Comes in by both, with nothing mutated. Raises AssertionError."""
        assert fire(self._port(SSL), b"", self._context)
        assert fire(self._port(TOKENS), _login_frames(self._login))

    def _fire_token(self, generator: random.Random) -> bytes:
        message = bent(generator, self._login)
        fire(self._port(TOKENS), _login_frames(message))
        return message

    def _fire_records(self, generator: random.Random, frame: bytes) -> bytes:
        """A client of TLS, one of whose flights is not what OpenSSL made of it."""
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = self._context.wrap_bio(incoming, outgoing, server_hostname="localhost")
        chosen, bytes_sent = generator.randrange(_FLIGHTS), b""
        address = ("127.0.0.1", self._port(SSL))
        with socket.create_connection(address, PATIENCE_S) as connected, suppress(OSError):
            for flight in range(_FLIGHTS):
                with suppress(ssl.SSLWantReadError):
                    if flight < _FLIGHTS - 1:
                        tls.do_handshake()
                    else:
                        tls.write(frame)
                flown = outgoing.read()
                if flight == chosen:
                    flown = bytes_sent = bent(generator, flown)
                connected.sendall(flown)
                if flight == chosen:
                    break
                if flight == 0:
                    incoming.write(connected.recv(1 << 16))
            # Whatever the broker still waits for does not come.
            connected.shutdown(socket.SHUT_WR)
            while connected.recv(1 << 16):
                pass
        return bytes_sent


def _login_frames(message: bytes) -> bytes:
    return frame_of(SaslHandshakeRequest(mechanism="OAUTHBEARER"), 1) + frame_of(
        SaslAuthenticateRequest(auth_bytes=message), 2
    )
