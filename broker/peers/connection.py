"""One connection to another node: requests with correlation ids, and their answers.

    1 connect, encrypted if its security says so   2 ApiVersions   3 login   4 requests

A request goes in the newest version that both know. If its answer does not come in time, the
connection ends with it, as Kafka's NetworkClient does: later answers would be those of earlier
requests.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Final, TypeVar

from strandline import __version__
from strandline.broker.peers.address import Address
from strandline.broker.peers.errors import PeerRefused, PeerTooOld, PeerUnreachable
from strandline.broker.peers.security import PeerLogin, PeerSecurity
from strandline.broker.peers.stream import FrameStream
from strandline.broker.protocol.codec.codec import decode, encode, join, response_class
from strandline.broker.protocol.header import body_of_response, encode_request_header
from strandline.broker.protocol.messages.api_versions import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeature,
)
from strandline.broker.protocol.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from strandline.broker.protocol.messages.sasl_handshake import (
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from strandline.broker.protocol.schema.api import EVERY_SPEC, ApiKey, VersionRange, api_name
from strandline.broker.protocol.schema.errors import ErrorCode, MalformedRequest
from strandline.broker.protocol.schema.schema import Request, Response
from strandline.broker.security.mechanism import AuthenticationFailed
from strandline.storage.clock import Clock
from strandline.storage.errors import InvalidConfig

ResponseT = TypeVar("ResponseT", bound=Response)

# Further callers wait; the other node answers one request of a connection after the other.
IN_FLIGHT_MAX: Final = 5
# Of a login, from which on a new connection takes the place of this one (KIP-368).
_LIFETIME_USED: Final = 0.85
# A login has two or three messages; a server that asks for more holds us up.
_LOGIN_STEPS_MAX: Final = 8
_API_VERSIONS: Final = 3


class PeerConnection:
    """An open connection; used on the event loop only."""

    def __init__(self, address: Address, *, client_id: str, clock: Clock) -> None:
        self.address = address
        self._client_id = client_id
        self._clock = clock
        self._stream = FrameStream(self._take, self._end)
        self._waiting: dict[int, asyncio.Future[memoryview]] = {}
        self._correlation_id = 0
        self._in_flight = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._versions: dict[int, VersionRange] = {}
        self._renew_s = float("inf")
        self._reason = ""
        # Finalized levels, as the other node knew them when the connection began.
        self.features: tuple[FinalizedFeature, ...] = ()

    def __repr__(self) -> str:
        return f"<PeerConnection {self.address} in flight={len(self._waiting)}>"

    @classmethod
    async def open(
        cls,
        address: Address,
        security: PeerSecurity,
        *,
        client_id: str,
        clock: Clock,
        timeout_s: float,
    ) -> PeerConnection:
        """Connects, and logs in. Raises PeerError."""
        connection = cls(address, client_id=client_id, clock=clock)
        try:
            async with asyncio.timeout(timeout_s):
                await connection._connect(security)
                await connection._ask_versions()
                if security.login is not None:
                    await connection._log_in(security.login)
        except TimeoutError:
            connection.close()
            raise PeerUnreachable(f"{address} did not answer in {timeout_s:g} s") from None
        except BaseException:
            connection.close()
            raise
        return connection

    @property
    def is_open(self) -> bool:
        return self._stream.is_open

    @property
    def is_due(self) -> bool:
        """Whether its login ends soon, and nobody waits for an answer."""
        return not self._waiting and self._clock.monotonic_s() >= self._renew_s

    @property
    def versions(self) -> Mapping[int, VersionRange]:
        """The versions that the other node takes, by API key."""
        return self._versions

    def supports(self, api_key: ApiKey) -> int | None:
        """Returns the newest version of an API that both know; None if there is none."""
        theirs, ours = self._versions.get(api_key), EVERY_SPEC[api_key].supported
        if theirs is None or max(theirs.lowest, ours.lowest) > min(theirs.highest, ours.highest):
            return None
        return min(theirs.highest, ours.highest)

    async def call(
        self, request: Request, answer: type[ResponseT], *, timeout_s: float
    ) -> ResponseT:
        """Sends a request and returns its answer. Raises PeerError."""
        key = request.spec.key
        version = self.supports(key)
        if version is None:
            raise PeerTooOld(f"{self.address} knows no version of {api_name(key)} that we know")
        return await self._call(request, answer, version, timeout_s)

    def close(self) -> None:
        """Ends the connection; who waits for an answer gets PeerUnreachable."""
        self._stream.close("this broker closed the connection")

    # --- steps of the beginning --------------------------------------------------------------

    async def _connect(self, security: PeerSecurity) -> None:
        loop = asyncio.get_running_loop()
        try:
            context = None if security.tls is None else await asyncio.to_thread(security.context)
            await loop.create_connection(
                lambda: self._stream,
                self.address.host,
                self.address.port,
                ssl=context,
                server_hostname=None if context is None else self.address.host,
            )
        except ssl.SSLCertVerificationError as error:
            raise PeerRefused(
                f"the certificate of {self.address} is not taken: {error.verify_message}"
            ) from None
        except ssl.SSLError as error:
            raise PeerRefused(f"no TLS with {self.address}: {error.reason or error}") from None
        except InvalidConfig as error:
            raise PeerRefused(f"no connection to {self.address}: {error}") from error
        except OSError as error:
            reason = error.strerror or str(error)
            raise PeerUnreachable(f"cannot connect to {self.address}: {reason}") from None

    async def _ask_versions(self) -> None:
        # A node that does not know this version answers in version 0.
        request = ApiVersionsRequest(
            client_software_name="strandline", client_software_version=__version__
        )
        found = await self._call(request, ApiVersionsResponse, _API_VERSIONS, None)
        if found.error_code:
            raise PeerTooOld(f"{self.address} does not know ApiVersions v{_API_VERSIONS}")
        self._versions = {
            one.api_key: VersionRange(one.min_version, one.max_version) for one in found.api_keys
        }
        self.features = tuple(found.finalized_features)

    async def _log_in(self, login: PeerLogin) -> None:
        began_s = self._clock.monotonic_s()
        shaken = await self._call(
            SaslHandshakeRequest(mechanism=login.mechanism), SaslHandshakeResponse, 1, None
        )
        if shaken.error_code:
            raise PeerRefused(
                f"{self.address} does not let in by {login.mechanism}; it takes"
                f" {', '.join(shaken.mechanisms) or 'no mechanism'}"
            )
        exchange = await login.begin(self._clock)
        message: bytes | None = exchange.first()
        for _ in range(_LOGIN_STEPS_MAX):
            if message is None:
                return
            answer = await self._call(
                SaslAuthenticateRequest(auth_bytes=message), SaslAuthenticateResponse, 2, None
            )
            if answer.error_code:
                raise PeerRefused(
                    f"{self.address} refuses the login of {login.user!r}:"
                    f" {answer.error_message or ErrorCode(answer.error_code).name}"
                )
            if answer.session_lifetime_ms:
                self._renew_s = began_s + answer.session_lifetime_ms / 1000 * _LIFETIME_USED
            try:
                message = exchange.step(bytes(answer.auth_bytes))
            except AuthenticationFailed as error:
                raise PeerRefused(f"no login at {self.address}: {error}") from None
        raise PeerRefused(f"the login at {self.address} does not end")

    # --- requests and answers ----------------------------------------------------------------

    async def _call(
        self, request: Request, answer: type[ResponseT], version: int, timeout_s: float | None
    ) -> ResponseT:
        key = request.spec.key
        assert response_class(key) is answer, (request, answer)
        async with self._in_flight:
            if not self.is_open:
                raise PeerUnreachable(f"{self.address}: {self._reason or 'no connection'}")
            self._correlation_id += 1
            number = self._correlation_id
            coming = asyncio.get_running_loop().create_future()
            self._waiting[number] = coming
            body = join(encode(request, version))
            self._stream.send((encode_request_header(key, version, number, self._client_id), body))
            try:
                async with asyncio.timeout(timeout_s):
                    frame = await coming
            except TimeoutError:
                reason = f"{api_name(key)} was not answered in {timeout_s} s"
                self._stream.close(reason)
                raise PeerUnreachable(f"{self.address}: {reason}") from None
            except asyncio.CancelledError:
                # The answer may still come, and would be nobody's.
                self.close()
                raise
            finally:
                self._waiting.pop(number, None)
        try:
            found = decode(answer, version, body_of_response(key, version, frame))
        except MalformedRequest as error:
            if key is ApiKey.API_VERSIONS:
                return decode(answer, 0, frame[4:])
            self._stream.close(str(error))
            raise PeerUnreachable(f"{self.address}: {error}") from error
        return found

    def _take(self, frame: memoryview) -> None:
        number = int.from_bytes(frame[:4], "big", signed=True)
        waiting = self._waiting.pop(number, None)
        if waiting is None:
            self._stream.close(f"an answer to no request: {number}")
        elif not waiting.done():
            waiting.set_result(frame)

    def _end(self, reason: str) -> None:
        self._reason = reason
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(PeerUnreachable(f"{self.address}: {reason}"))
        self._waiting.clear()
