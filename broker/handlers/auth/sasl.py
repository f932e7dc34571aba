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

A login ends with its credential (a token), and after connections.max.reauth.ms. Until then a client
can re-authenticate on the same connection, as the same user with the same mechanism, once a second
at most (KIP-368); afterwards any other request closes the connection.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from strandline.broker.audit.login import Login
from strandline.broker.handlers.auth.failed_logins import FailedLogins
from strandline.broker.handlers.dispatch.dispatch import LENGTH_BYTES, RequestDispatcher
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
    RequestHeader,
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
from strandline.broker.security.mechanism import AuthenticationFailed, Exchange, NotYet, Step
from strandline.broker.telemetry.requests import ApiTraffic, count_errors
from strandline.storage.clock import Clock

if TYPE_CHECKING:
    from strandline.broker.audit.record import AuditRecord

_API_KEY = struct.Struct(">h")
# API key and version.
_API_HEAD = struct.Struct(">hh")
_SASL = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
# How long a login waits for what its mechanism needs (NotYet). Clients wait for 30 s.
WAIT_S = 10.0
# Kafka's KafkaChannel.MIN_REAUTH_INTERVAL_ONE_SECOND_NANOS.
RENEWAL_S_MIN = 1.0
# Of an int64; a credential may end later.
LIFETIME_MS_MAX = 2**63 - 1

# An answer, and why the connection ends after it; None if it does not.
_Answered: TypeAlias = tuple[Response, AuthenticationFailed | None]
# Parts, now or after a pause.
_Answer: TypeAlias = Parts | Awaitable[Parts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """A way to log in at one listener."""

    # Creates the server's half of a login.
    begin: Callable[[], Exchange]
    # The longest login; 0: as long as the connection, or the credential.
    lifetime_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslSettings:
    """The SASL settings of one listener."""

    # By name, in order of preference.
    mechanisms: Mapping[str, Mechanism]
    failed_delay_ms: int
    frame_bytes_max: int


class SaslGate(AuthenticationGate):
    """The authentication state of one connection of a SASL listener."""

    def __init__(
        self,
        dispatcher: RequestDispatcher,
        settings: SaslSettings,
        *,
        listener: str,
        address: str,
        clock: Clock,
        failed_logins: FailedLogins,
        record: AuditRecord | None = None,
    ) -> None:
        super().__init__(settings.frame_bytes_max)
        self._dispatcher = dispatcher
        self._settings = settings
        # Until the login.
        self._anonymous = ClientIdentity(address=address, listener=listener)
        self._clock = clock
        self._failed_logins = failed_logins
        self._record = record
        self._mechanism = ""
        self._exchange: Exchange | None = None
        # After a handshake of version 0.
        self._is_raw = False
        self._versions_left = 2
        self._caller: ClientIdentity | None = None
        self._ends_s = float("inf")
        self._renewed_s = float("-inf")

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
        if isinstance(request, SaslHandshakeRequest):
            answered = self._handshake(request, header.api_version)
            return self._finish(header, traffic, peer, started_s, answered)
        assert isinstance(request, SaslAuthenticateRequest), request
        token = bytes(request.auth_bytes)
        try:
            answered = self._authenticate(token)
        except NotYet as not_yet:
            return self._authenticate_later(header, traffic, peer, started_s, token, not_yet)
        return self._finish(header, traffic, peer, started_s, answered)

    def _finish(
        self,
        header: RequestHeader,
        traffic: ApiTraffic,
        peer: str,
        started_s: float,
        answered: _Answered,
    ) -> _Answer:
        response, failed = answered
        count_errors(response, traffic)
        body = encode(response, header.api_version)
        parts = frame_response(header.api_key, header.api_version, header.correlation_id, body)
        traffic.answered(parts, self._clock.monotonic_s() - started_s)
        return self._refuse(parts, peer, failed) if failed else parts

    async def _authenticate_later(
        self,
        header: RequestHeader,
        traffic: ApiTraffic,
        peer: str,
        started_s: float,
        token: bytes,
        not_yet: NotYet,
    ) -> Parts:
        await _waited(not_yet)
        answer = self._finish(header, traffic, peer, started_s, self._authenticate(token))
        return await answer if isinstance(answer, Awaitable) else answer

    def _handshake(self, request: SaslHandshakeRequest, version: int) -> _Answered:
        known = list(self._settings.mechanisms)
        if self._exchange is not None or not self._may_begin():
            code = ErrorCode.ILLEGAL_SASL_STATE
            return SaslHandshakeResponse(error_code=code, mechanisms=known), None
        mechanism = self._settings.mechanisms.get(request.mechanism)
        if mechanism is None:
            code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
            response = SaslHandshakeResponse(error_code=code, mechanisms=known)
            return response, AuthenticationFailed("an unknown mechanism of SASL")
        if self._caller is not None and request.mechanism != self._mechanism:
            raise CloseConnectionError("a login was to be renewed by another mechanism")
        self._mechanism = request.mechanism
        self._exchange = mechanism.begin()
        self._is_raw = version == 0
        return SaslHandshakeResponse(mechanisms=known), None

    def _may_begin(self) -> bool:
        """Returns whether a login may begin: the first, or another one where logins end."""
        if self._caller is None:
            return True
        now_s = self._clock.monotonic_s()
        if self._ends_s == float("inf") or now_s - self._renewed_s < RENEWAL_S_MIN:
            return False
        self._renewed_s = now_s
        return True

    def _authenticate(self, token: bytes) -> _Answered:
        """Raises NotYet."""
        if self._exchange is None:
            response = SaslAuthenticateResponse(
                error_code=ErrorCode.ILLEGAL_SASL_STATE,
                error_message="SaslAuthenticate needs a SaslHandshake before it",
            )
            return response, AuthenticationFailed("SaslAuthenticate out of turn")
        try:
            step, lifetime_ms = self._step(token)
        except AuthenticationFailed as error:
            response = SaslAuthenticateResponse(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=error.told
            )
            return response, error
        response = SaslAuthenticateResponse(auth_bytes=step.answer, session_lifetime_ms=lifetime_ms)
        return response, None

    def _raw_token(self, token: memoryview, peer: str) -> Answer:
        text = bytes(token)
        try:
            return self._raw_answer(text, peer)
        except NotYet as not_yet:
            return self._raw_answer_later(text, peer, not_yet)

    def _raw_answer(self, token: bytes, peer: str) -> _Answer:
        """Raises NotYet."""
        try:
            step, _ = self._step(token)
        except AuthenticationFailed as error:
            traffic = self._dispatcher.traffic_of(ApiKey.SASL_AUTHENTICATE)
            traffic.failed(ErrorCode.SASL_AUTHENTICATION_FAILED)
            return self._refuse([], peer, error)
        self._is_raw = self._exchange is not None
        return with_length([step.answer])

    async def _raw_answer_later(self, token: bytes, peer: str, not_yet: NotYet) -> Parts:
        await _waited(not_yet)
        answer = self._raw_answer(token, peer)
        return await answer if isinstance(answer, Awaitable) else answer

    def _step(self, token: bytes) -> tuple[Step, int]:
        """Returns the answer to the client's token, and the lifetime in ms of a login that it ends.

        Raises AuthenticationFailed, or NotYet.
        """
        assert self._exchange is not None
        step = self._exchange.step(token)
        if step.user is None:
            return step, 0
        if self._caller is not None and step.user != self._caller.user:
            raise AuthenticationFailed("a login was to be renewed by another user", step.user)
        self._exchange = None
        if self._record is not None:
            self._record.logged_in(self._login(step.user))
        self._caller = replace(self._anonymous, user=step.user)
        lifetime_ms = self._lifetime_ms(step)
        self._ends_s = float("inf")
        if lifetime_ms is not None:
            self._ends_s = self._clock.monotonic_s() + lifetime_ms / 1000
        self.on_open()
        return step, lifetime_ms or 0

    def _login(self, user: str) -> Login:
        return Login(
            user=user,
            mechanism=self._mechanism,
            listener=self._anonymous.listener,
            address=self._anonymous.address,
            is_renewal=self._caller is not None,
        )

    def _lifetime_ms(self, step: Step) -> int | None:
        """Returns how long a login lasts (Kafka's ReauthInfo); None: as long as its connection."""
        bounds_ms = []
        if longest_ms := self._settings.mechanisms[self._mechanism].lifetime_ms:
            bounds_ms.append(longest_ms)
        if step.expires_ms is not None:
            left_ms = max(0, step.expires_ms - self._clock.now_ms())
            bounds_ms.append(min(left_ms, LIFETIME_MS_MAX))
        return min(bounds_ms, default=None)

    async def _refuse(self, parts: Parts, peer: str, failed: AuthenticationFailed) -> Parts:
        reason = str(failed)
        self._failed_logins.add(
            peer=peer,
            listener=self._anonymous.listener,
            mechanism=self._mechanism,
            user=failed.user,
            reason=reason,
        )
        if self._record is not None:
            self._record.login_failed(self._login(failed.user), reason)
        await asyncio.sleep(self._settings.failed_delay_ms / 1000)
        return ClosingParts(parts, reason)


async def _waited(not_yet: NotYet) -> None:
    """Waits for what a login needs; in vain, the next step tells."""
    with suppress(TimeoutError):
        await asyncio.wait_for(not_yet.ready, WAIT_S)


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
