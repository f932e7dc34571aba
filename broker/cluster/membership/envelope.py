"""Forwards a request of a client to the active controller (KIP-590).

    client ──request──► this broker ──Envelope: request, principal, address──► controller
           ◄──answer───             ◄──the answer, in the same version───────

The controller decides as if the client had asked it: by its principal, and its address. A client
may be older than what the controller takes: then the request goes in the lowest version of that.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from strandline.broker.cluster.membership.channel import ControllerChannel
from strandline.broker.protocol.codec.codec import decode, encode, join, response_class
from strandline.broker.protocol.formats.principal_data import write_principal
from strandline.broker.protocol.header import body_of_response, encode_request_header
from strandline.broker.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.errors import ErrorCode, MalformedRequest
from strandline.broker.protocol.schema.schema import Request, Response
from strandline.broker.security.identity import ClientIdentity
from strandline.storage.clock import Clock
from strandline.storage.errors import StrandlineError
from strandline.storage.quiet_log import QuietLog

log = logging.getLogger(__name__)

# The only request in an envelope; the envelope has a number of its own.
_CORRELATION_ID: Final = 0


class NotForwarded(StrandlineError):
    """The controller did not look at the request; `code` is what Kafka tells the client."""

    def __init__(self, reason: str, code: ErrorCode) -> None:
        super().__init__(reason)
        self.code = code


class Forwarder:
    """Sends requests of clients to the active controller."""

    def __init__(
        self,
        channel: ControllerChannel,
        clock: Clock,
        *,
        arrived: Callable[[Iterable[str]], Awaitable[None]],
    ) -> None:
        """`arrived` returns when this broker knows the topics of these names."""
        self.arrived = arrived
        self._channel = channel
        self._quiet_log = QuietLog(log, clock)

    async def forward(
        self, request: Request, version: int, *, client_id: str, caller: ClientIdentity
    ) -> Response:
        """Returns the controller's answer. Raises NotForwarded, PeerError."""
        key = request.spec.key
        version = self._version_at_controller(key, version)
        header = encode_request_header(key, version, _CORRELATION_ID, client_id)
        envelope = EnvelopeRequest(
            request_data=header + join(encode(request, version)),
            request_principal=write_principal(caller.principal_type, caller.user),
            client_host_address=caller.address_bytes(),
        )
        answer = await self._channel.ask(
            envelope, EnvelopeResponse, code_of=lambda found: found.error_code
        )
        code = ErrorCode(answer.error_code)
        if code is not ErrorCode.NONE or answer.response_data is None:
            self._quiet_log.say(
                logging.ERROR,
                "the controller takes no requests of clients from this broker",
                code,
                {"request": key.name, "error": code.name},
            )
            is_old = code is ErrorCode.UNSUPPORTED_VERSION
            told = ErrorCode.UNSUPPORTED_VERSION if is_old else ErrorCode.UNKNOWN_SERVER_ERROR
            raise NotForwarded(f"the controller refuses the envelope: {code.name}", told)
        try:
            body = body_of_response(key, version, memoryview(answer.response_data))
            return decode(response_class(key), version, body)
        except MalformedRequest as error:
            raise NotForwarded(str(error), ErrorCode.UNKNOWN_SERVER_ERROR) from error

    def highest(self, key: ApiKey) -> int | None:
        """Returns the highest version that the controllers take, None if that is not known."""
        theirs = self._channel.versions_of(key)
        return None if theirs is None else theirs.highest

    def _version_at_controller(self, key: ApiKey, version: int) -> int:
        """Returns the version in which the request goes there. Raises NotForwarded."""
        theirs = self._channel.versions_of(key)
        if theirs is None:
            return version
        if version > theirs.highest:
            # An older one would lose what the client says.
            raise NotForwarded(
                f"the controller takes {key.name} up to version {theirs.highest}, -1 is none",
                ErrorCode.UNSUPPORTED_VERSION,
            )
        return max(version, theirs.lowest)
