"""The handler of each new connection, with the mechanisms of its listener.

Users of SCRAM are in the metadata (AlterUserScramCredentials), those of PLAIN in the configuration,
and those of OAUTHBEARER with the provider of their tokens.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from strandline.broker.audit.login import Login
from strandline.broker.cluster.metadata.view import MetadataView
from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.listener_keys import PLAIN_USERS, of_listener, sasl_listeners
from strandline.broker.config.sasl_listeners import (
    OAUTHBEARER,
    PLAIN,
    enabled_mechanisms,
    lifetime_ms_of,
    oauth_authority_of,
    oauth_of,
    users_file_of,
)
from strandline.broker.handlers.auth.failed_logins import FailedLogins
from strandline.broker.handlers.auth.sasl import Mechanism, SaslGate, SaslSettings
from strandline.broker.handlers.dispatch.dispatch import RequestDispatcher
from strandline.broker.network.responses import (
    Answer,
    AuthenticationGate,
    CloseConnectionError,
    RequestHandler,
)
from strandline.broker.security.identity import ClientIdentity, java_address
from strandline.broker.security.jaas import plain_passwords
from strandline.broker.security.mechanism import Exchange
from strandline.broker.security.plain import PlainExchange
from strandline.broker.security.scram import (
    DIGESTS,
    ScramCredential,
    ScramExchange,
    mimic_credential,
)
from strandline.broker.server.logins.user_file import UserFile
from strandline.storage.clock import Clock

if TYPE_CHECKING:
    from strandline.broker.audit.record import AuditRecord

NONCE_BYTES = 24
# What the record calls a login by TLS alone.
CERTIFICATE = "SSL"
_SECRET_WITHOUT_USERS = secrets.token_bytes(32)


class _Open:
    """The handler of a connection without SASL."""

    __slots__ = ("handle",)

    def __init__(self, dispatcher: RequestDispatcher, caller: ClientIdentity) -> None:
        self.handle: Callable[[memoryview, str, float], Answer] = partial(
            dispatcher.handle, caller=caller
        )


class ConnectionHandlers:
    """The factory of connection handlers, as HandlerOf."""

    def __init__(
        self,
        config: BrokerConfig,
        dispatcher: RequestDispatcher,
        metadata: MetadataView,
        clock: Clock,
        failed_logins: FailedLogins,
        *,
        worker: Executor,
        record: AuditRecord | None = None,
        user_of: Callable[[str, bytes], str] | None = None,
    ) -> None:
        """`worker` runs what waits for others; `user_of` returns the user of a client with a
        certificate, at a listener. Raises InvalidConfig for a bad file of users.
        """
        self._user_of = user_of
        self._record = record
        self._config = config
        self._metadata = metadata
        self._dispatcher = dispatcher
        self._clock = clock
        self._worker = worker
        self._loops: dict[str, Callable[[], Awaitable[None]]] = {}
        self._gates: dict[str, Callable[..., AuthenticationGate]] = {}
        for listener in sasl_listeners(config):
            self._gates[listener] = partial(
                SaslGate,
                dispatcher,
                self._settings(listener),
                listener=listener,
                clock=clock,
                failed_logins=failed_logins,
                record=record,
            )

    def __call__(
        self, listener: str, host: str, certificate: bytes | None = None, /
    ) -> RequestHandler | AuthenticationGate:
        address = java_address(host)
        gate = self._gates.get(listener)
        if gate is not None:
            return gate(address=address)
        caller = ClientIdentity(address=address, listener=listener)
        if certificate is not None and self._user_of is not None:
            caller = self._with_certificate(caller, self._user_of, certificate)
        return _Open(self._dispatcher, caller)

    def _with_certificate(
        self,
        caller: ClientIdentity,
        user_of: Callable[[str, bytes], str],
        certificate: bytes,
    ) -> ClientIdentity:
        """Returns who has the certificate, and records it. Raises CloseConnectionError."""
        listener, address = caller.listener, caller.address
        login = Login(user="", mechanism=CERTIFICATE, listener=listener, address=address)
        try:
            user = user_of(listener, certificate)
        except CloseConnectionError as error:
            if self._record is not None:
                self._record.login_failed(login, str(error))
            raise
        if self._record is not None:
            self._record.logged_in(replace(login, user=user))
        return replace(caller, user=user)

    @property
    def loops(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """What the mechanisms need to run beside the connections, by name."""
        return self._loops

    def _settings(self, listener: str) -> SaslSettings:
        config = self._config
        return SaslSettings(
            mechanisms={
                name: Mechanism(
                    begin=self._exchanges(listener, name),
                    lifetime_ms=lifetime_ms_of(config, listener, name),
                )
                for name in enabled_mechanisms(config, listener)
            },
            failed_delay_ms=config.sasl.failed_delay_ms,
            frame_bytes_max=config.sasl.frame_bytes_max,
        )

    def _exchanges(self, listener: str, mechanism: str) -> Callable[[], Exchange]:
        """Returns what makes the server's half of a login."""
        if mechanism == OAUTHBEARER:
            return self._oauth(listener)
        if mechanism == PLAIN:
            return self._plain(listener)
        return partial(_scram, self._metadata, mechanism)

    def _plain(self, listener: str) -> Callable[[], Exchange]:
        text = of_listener(self._config.given, listener, PLAIN_USERS)
        passwords = plain_passwords(text) if text else {}
        path = users_file_of(self._config, listener)
        if path is None:
            return partial(PlainExchange, passwords)
        file = UserFile(path, self._worker, self._clock, beside=passwords)
        self._loops[f"users of {listener}"] = file.run
        return lambda: PlainExchange(file.passwords)

    def _oauth(self, listener: str) -> Callable[[], Exchange]:
        # Loaded by a broker that has it: 15 ms.
        from strandline.broker.security.oauth import OAuthExchange
        from strandline.broker.server.logins.key_fetcher import KeyFetcher, reader_of

        config = oauth_of(self._config, listener)
        read = reader_of(config, oauth_authority_of(self._config, listener), self._clock)
        keys = KeyFetcher(config, self._worker, self._clock, read, listener=listener)
        self._loops[f"keys of {listener}"] = keys.run
        return partial(OAuthExchange, config, keys, self._clock.now_ms)


def _scram(metadata: MetadataView, mechanism: str) -> Exchange:
    nonce = secrets.token_urlsafe(NONCE_BYTES)
    return ScramExchange(DIGESTS[mechanism], partial(_credential, metadata, mechanism), nonce)


def _credential(metadata: MetadataView, mechanism: str, user: str) -> ScramCredential:
    known = metadata.image.scram_credentials
    credential = known.get(user, {}).get(mechanism)
    if credential is not None:
        return credential
    # The first user's key is the secret: it outlives a restart, and only that user could derive it.
    first = min((name for name, own in known.items() if mechanism in own), default=None)
    if first is None:
        return mimic_credential(user, None, _SECRET_WITHOUT_USERS)
    like = known[first][mechanism]
    return mimic_credential(user, like, like.server_key)
