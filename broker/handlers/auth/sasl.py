"""SASL listeners: a client authenticates first and keeps its identity for the connection.

SaslHandshake      0-1   0: the mechanism's bytes follow without headers; 1: in SaslAuthenticate
SaslAuthenticate   0-2   1 session lifetime (KIP-368); 2 flexible

            ApiVersions                 SaslAuthenticate, or raw frames after handshake 0
    NEW ───────────────► NEW ── SaslHandshake ──► EXCHANGE ──────────► OPEN
                                                    │                    │ connections.max.reauth.ms
                             wrong: answer, pause,  │                    ▼
                             close  ◄───────────────┴── SaslHandshake ◄─ only this is served

Anything else closes the connection. A failure is answered only after
connection.failed.authentication.delay.ms, to slow down guessing. Until a client is authenticated,
its frames are limited to sasl.server.max.receive.size.

A client can re-authenticate on the same connection, as the same user with the same mechanism, if
connections.max.reauth.ms is set; after that time any other request closes the connection.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from strandline.broker.handlers.auth.failed_logins import FailedLogins
from strandline.broker.handlers.dispatch.dispatch import LENGTH_BYTES, Dispatcher
from strandline.broker.handlers.services.services import RequestContext
from strandline.broker.network.responses import (
    Answer,
    AuthenticationGate,
    CloseConnectionError,
    ClosingParts,
    Parts,
)
from strandline.broker.protocol.codec.codec import decode_request, encode, request_class
from strandline.broker.protocol.header import (
    decode_request_header,
    frame_response,
)
from strandline.broker.protocol.header import frame as with_length
from strandline.broker.protocol.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from strandline.broker.protocol.messages.sasl_handshake import (
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from strandline.broker.protocol.schema.api import SPECS, ApiKey
from strandline.broker.protocol.schema.errors import ErrorCode, MalformedRequest, UnsupportedVersion
from strandline.broker.protocol.schema.schema import Response
from strandline.broker.security.identity import ClientIdentity
from strandline.broker.security.mechanism import AuthenticationFailed, Exchange
from strandline.broker.telemetry.requests import count_errors
from strandline.storage.clock import Clock

_API_KEY = struct.Struct(">h")
# API key and version.
_API_HEAD = struct.Struct(">hh")
_SASL = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslSettings:
    """The SASL settings of one listener."""

    # Creates the server's half of a login, by mechanism name, in order of preference.
    mechanisms: Mapping[str, Callable[[], Exchange]]
    # 0: a login lasts as long as its connection.
    lifetime_ms: int
    failed_delay_ms: int
    frame_bytes_max: int


class SaslGate(AuthenticationGate):
    """The authentication state of one connection of a SASL listener."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        settings: SaslSettings,
        *,
        listener: str,
        address: str,
        clock: Clock,
        failed_logins: FailedLogins,
    ) -> None:
        super().__init__(settings.frame_bytes_max)
        self._dispatcher = dispatcher
        self._settings = settings
        # Until the login.
        self._anonymous = ClientIdentity(address=address, listener=listener)
        self._clock = clock
        self._failed_logins = failed_logins
        self._mechanism = ""
        self._exchange: Exchange | None = None
        # After a handshake of version 0.
        self._is_raw = False
        self._versions_left = 2
        self._caller: ClientIdentity | None = None
        self._ends_s = float("inf")

    def handle(self, frame: memoryview, peer: str, received_s: float) -> Answer:
        if self._is_raw:
            return self._raw_token(frame, peer)
        api_key = _API_KEY.unpack_from(frame)[0] if len(frame) >= _API_KEY.size else None
        if api_key in _SASL:
            return self._sasl(frame, peer, received_s)
        if self._caller is None:
            if api_key == ApiKey.API_VERSIONS and self._may_ask_versions(frame):
                return self._dispatcher.handle(frame, peer, received_s, self._anonymous)
            raise CloseConnectionError("a request before the login")
        if self._clock.monotonic_s() >= self._ends_s:
            raise CloseConnectionError("the login was not renewed in time")
        if self._exchange is not None:
            raise CloseConnectionError("a request in the middle of a login")
        return self._dispatcher.handle(frame, peer, received_s, self._caller)

    def _may_ask_versions(self, frame: memoryview) -> bool:
        """Returns whether this is the client's one request for versions.

        After one of a version that we do not have it may ask again, once (KIP-511).
        """
        if self._exchange is not None or not self._versions_left or len(frame) < _API_HEAD.size:
            return False
        _, version = _API_HEAD.unpack_from(frame)
        is_answered = version in SPECS[ApiKey.API_VERSIONS].supported
        self._versions_left = 0 if is_answered else self._versions_left - 1
        return True

    def _sasl(self, frame: memoryview, peer: str, received_s: float) -> Answer:
        started_s = self._clock.monotonic_s()
        try:
            header = decode_request_header(frame)
            request = decode_request(
                request_class(header.api_key), header.api_version, frame[header.body_position :]
            )
        except (MalformedRequest, UnsupportedVersion) as error:
            raise CloseConnectionError(str(error)) from error
        traffic = self._dispatcher.traffic_of(header.api_key)
        traffic.started(header.api_version, len(frame) + LENGTH_BYTES, started_s - received_s)
        response: Response
        if isinstance(request, SaslHandshakeRequest):
            response, failed = self._handshake(request, header.api_version)
        else:
            assert isinstance(request, SaslAuthenticateRequest), request
            response, failed = self._authenticate(request)
        count_errors(response, traffic)
        body = encode(response, header.api_version)
        parts = frame_response(header.api_key, header.api_version, header.correlation_id, body)
        traffic.answered(parts, self._clock.monotonic_s() - started_s)
        return self._refuse(parts, peer, failed) if failed else parts

    def _handshake(
        self, request: SaslHandshakeRequest, version: int
    ) -> tuple[SaslHandshakeResponse, AuthenticationFailed | None]:
        """Returns the response, and why the connection ends after it; None if it does not."""
        known = list(self._settings.mechanisms)
        is_again = self._caller is not None
        if self._exchange is not None or (is_again and not self._settings.lifetime_ms):
            code = ErrorCode.ILLEGAL_SASL_STATE
            return SaslHandshakeResponse(error_code=code, mechanisms=known), None
        make = self._settings.mechanisms.get(request.mechanism)
        if make is None:
            code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
            response = SaslHandshakeResponse(error_code=code, mechanisms=known)
            return response, AuthenticationFailed("an unknown mechanism of SASL")
        if is_again and request.mechanism != self._mechanism:
            raise CloseConnectionError("a login was to be renewed by another mechanism")
        self._mechanism = request.mechanism
        self._exchange = make()
        self._is_raw = version == 0
        return SaslHandshakeResponse(mechanisms=known), None

    def _authenticate(
        self, request: SaslAuthenticateRequest
    ) -> tuple[SaslAuthenticateResponse, AuthenticationFailed | None]:
        """As `_handshake`."""
        if self._exchange is None:
            response = SaslAuthenticateResponse(
                error_code=ErrorCode.ILLEGAL_SASL_STATE,
                error_message="SaslAuthenticate needs a SaslHandshake before it",
            )
            return response, AuthenticationFailed("SaslAuthenticate out of turn")
        try:
            token = self._step(bytes(request.auth_bytes))
        except AuthenticationFailed as error:
            response = SaslAuthenticateResponse(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED,
                # The answer does not tell whether the user or the password is wrong.
                error_message="Authentication failed: Invalid username or password",
            )
            return response, error
        is_done = self._exchange is None
        lifetime_ms = self._settings.lifetime_ms if is_done else 0
        return SaslAuthenticateResponse(auth_bytes=token, session_lifetime_ms=lifetime_ms), None

    def _raw_token(self, token: memoryview, peer: str) -> Answer:
        try:
            answer = self._step(bytes(token))
        except AuthenticationFailed as error:
            traffic = self._dispatcher.traffic_of(ApiKey.SASL_AUTHENTICATE)
            traffic.failed(ErrorCode.SASL_AUTHENTICATION_FAILED)
            return self._refuse([], peer, error)
        self._is_raw = self._exchange is not None
        return with_length([answer])

    def _step(self, token: bytes) -> bytes:
        """Returns the answer to the client's token. Raises AuthenticationFailed."""
        assert self._exchange is not None
        step = self._exchange.step(token)
        if step.user is not None:
            if self._caller is not None and step.user != self._caller.user:
                raise AuthenticationFailed("a login was to be renewed by another user")
            self._exchange = None
            self._caller = replace(self._anonymous, user=step.user)
            if self._settings.lifetime_ms:
                self._ends_s = self._clock.monotonic_s() + self._settings.lifetime_ms / 1000
            self.on_open()
        return step.answer

    async def _refuse(self, parts: Parts, peer: str, failed: AuthenticationFailed) -> Parts:
        reason = str(failed)
        self._failed_logins.add(
            peer=peer,
            listener=self._anonymous.listener,
            mechanism=self._mechanism,
            user=failed.user,
            reason=reason,
        )
        await asyncio.sleep(self._settings.failed_delay_ms / 1000)
        return ClosingParts(parts, reason)


def no_handshake(_request: SaslHandshakeRequest, _context: RequestContext) -> SaslHandshakeResponse:
    """Answers SaslHandshake on a listener without SASL."""
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)


def no_authenticate(
    _request: SaslAuthenticateRequest, _context: RequestContext
) -> SaslAuthenticateResponse:
    """Answers SaslAuthenticate on a listener without SASL."""
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message="this listener has no SASL"
    )
