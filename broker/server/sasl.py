"""SASL settings of listeners, and the handler of each new connection.

    listener.security.protocol.map=CLIENTS:SASL_PLAINTEXT
    sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256
    listener.name.clients.plain.sasl.jaas.config=...PlainLoginModule required user_alice="...";

Users of SCRAM are in the metadata (AlterUserScramCredentials), those of PLAIN in the file.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from functools import partial

from strandline.broker.cluster.metadata.view import MetadataView
from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.listener_keys import PLAIN_USERS, of_listener
from strandline.broker.config.listeners import SASL_PLAINTEXT, parse_protocol_map, protocol_of
from strandline.broker.handlers.auth.failed_logins import FailedLogins
from strandline.broker.handlers.auth.sasl import SaslGate, SaslSettings
from strandline.broker.handlers.dispatch.dispatch import Dispatcher
from strandline.broker.network.responses import (
    Answer,
    AuthenticationGate,
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
from strandline.storage.clock import Clock
from strandline.storage.errors import InvalidConfig

PLAIN = "PLAIN"
MECHANISMS = (PLAIN, *DIGESTS)
NONCE_BYTES = 24
_SECRET_WITHOUT_USERS = secrets.token_bytes(32)


class _Open:
    """The handler of a connection without SASL."""

    __slots__ = ("handle",)

    def __init__(self, dispatcher: Dispatcher, caller: ClientIdentity) -> None:
        self.handle: Callable[[memoryview, str, float], Answer] = partial(
            dispatcher.handle, caller=caller
        )


class ConnectionHandlers:
    """The factory of connection handlers; call it with the name of a listener and an address."""

    def __init__(
        self,
        config: BrokerConfig,
        dispatcher: Dispatcher,
        metadata: MetadataView,
        clock: Clock,
        failed_logins: FailedLogins,
    ) -> None:
        self._dispatcher = dispatcher
        self._gates: dict[str, Callable[..., AuthenticationGate]] = {}
        for listener in sasl_listeners(config):
            settings = settings_of(config, metadata, listener)
            self._gates[listener] = partial(
                SaslGate,
                dispatcher,
                settings,
                listener=listener,
                clock=clock,
                failed_logins=failed_logins,
            )

    def __call__(self, listener: str, host: str) -> RequestHandler | AuthenticationGate:
        address = java_address(host)
        gate = self._gates.get(listener)
        if gate is not None:
            return gate(address=address)
        return _Open(self._dispatcher, ClientIdentity(address=address, listener=listener))


def sasl_listeners(config: BrokerConfig) -> Sequence[str]:
    """Names of the listeners with SASL."""
    elements = config.given.get("listener.security.protocol.map", "").split(",")
    protocols = parse_protocol_map([element.strip() for element in elements if element.strip()])
    return [
        one.name for one in config.listeners if protocol_of(one.name, protocols) == SASL_PLAINTEXT
    ]


def check_sasl(config: BrokerConfig) -> None:
    """Raises InvalidConfig for a SASL listener without known mechanisms, or PLAIN without users."""
    for listener in sasl_listeners(config):
        mechanisms = enabled_mechanisms(config, listener)
        unknown = [name for name in mechanisms if name not in MECHANISMS]
        if unknown or not mechanisms:
            raise InvalidConfig(
                f"listener {listener} is SASL_PLAINTEXT: sasl.enabled.mechanisms="
                f"{','.join(mechanisms)!r}: expected some of {', '.join(MECHANISMS)}"
            )
        users = of_listener(config.given, listener, PLAIN_USERS)
        if PLAIN in mechanisms and users is None:
            raise InvalidConfig(
                f"listener {listener} allows PLAIN: expected its users in"
                f" listener.name.{listener.lower()}.{PLAIN_USERS}"
            )


def settings_of(config: BrokerConfig, metadata: MetadataView, listener: str) -> SaslSettings:
    """Returns the SASL settings of connections at `listener`."""
    own_lifetime = of_listener(config.given, listener, "connections.max.reauth.ms")
    makers: dict[str, Callable[[], Exchange]] = {}
    for name in enabled_mechanisms(config, listener):
        if name == PLAIN:
            text = of_listener(config.given, listener, PLAIN_USERS)
            makers[name] = partial(PlainExchange, plain_passwords(text) if text else {})
        else:
            makers[name] = partial(_scram, metadata, name)
    return SaslSettings(
        mechanisms=makers,
        lifetime_ms=int(own_lifetime) if own_lifetime else config.sasl.lifetime_ms,
        failed_delay_ms=config.sasl.failed_delay_ms,
        frame_bytes_max=config.sasl.frame_bytes_max,
    )


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


def enabled_mechanisms(config: BrokerConfig, listener: str) -> tuple[str, ...]:
    """Returns the mechanisms by which clients of this listener may log in."""
    own = of_listener(config.given, listener, "sasl.enabled.mechanisms")
    names = own.split(",") if own else (config.sasl.mechanisms or ())
    return tuple(dict.fromkeys(name.strip() for name in names if name.strip()))
