"""Keys that may be set for one listener: `listener.name.<name in lower case>.<key>`, as in Kafka.

A key of that form has the type and bounds of the key it ends in, and no default: if it is not set,
the key without the prefix applies, or (for connection limits) no further limit. Users of SASL/PLAIN
are under a key that only listeners have:

    listener.name.<name>.plain.sasl.jaas.config

The listener of the metrics has a name too, `https`, under which its keys of TLS are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.listeners import (
    HTTPS,
    SASL_PLAINTEXT,
    SASL_SSL,
    SSL,
    parse_protocol_map,
    protocol_of,
)
from strandline.broker.config.table import BROKER_CONFIGS
from strandline.broker.security.jaas import (
    check_scram,
    check_token_handler,
    oauth_options,
    plain_passwords,
)
from strandline.broker.security.oauth_config import OAuthConfig
from strandline.broker.tls.config import NONE, TlsConfig
from strandline.storage.config.definition import ConfigDef, ValueType, keys_of, with_values

PREFIX = "listener.name."
USERS_FILE = "strandline.sasl.plain.users.file"
SCOPED = (
    "max.connection.creation.rate",
    "max.connections",
    "sasl.enabled.mechanisms",
    USERS_FILE,
    *(definition.name for definition in keys_of(TlsConfig)),
)
# They may be set for one mechanism too: listener.name.<name>.oauthbearer.<key>.
_OF_MECHANISMS = (
    "connections.max.reauth.ms",
    *(definition.name for definition in keys_of(OAuthConfig)),
)
# Those of TLS that can be altered while a listener serves (SslConfigs.RECONFIGURABLE_CONFIGS), and
# only for it. Kafka's others are passwords: the metadata lies in the bucket.
RENEWABLE = (
    "ssl.keystore.type",
    "ssl.keystore.location",
    "ssl.truststore.type",
    "ssl.truststore.location",
    "strandline.ssl.crl.location",
)
PLAIN_USERS = "plain.sasl.jaas.config"
OAUTH_LOGIN = "oauthbearer.sasl.jaas.config"

# Keys that only listeners have, and the parser of each.
_OF_LISTENERS: Mapping[str, Callable[[str], object]] = {
    PLAIN_USERS: plain_passwords,
    "scram-sha-256.sasl.jaas.config": check_scram,
    "scram-sha-512.sasl.jaas.config": check_scram,
    OAUTH_LOGIN: oauth_options,
    "oauthbearer.sasl.server.callback.handler.class": check_token_handler,
}
_MECHANISM = r"(?:(?:plain|scram-sha-256|scram-sha-512|oauthbearer)\.)?"
_KEYS = "|".join(
    [
        *(re.escape(key) for key in (*SCOPED, *_OF_LISTENERS)),
        *(f"{_MECHANISM}{re.escape(key)}" for key in _OF_MECHANISMS),
    ]
)
_SCOPED_KEY = re.compile(rf"listener\.name\.(?P<listener>[a-z0-9_.-]+?)\.(?P<key>{_KEYS})")
_MECHANISM_PREFIX = re.compile(_MECHANISM)


def broker_config(name: str) -> ConfigDef | None:
    """Returns the definition of a broker key, with or without a listener prefix; None if none."""
    definition = BROKER_CONFIGS.get(name)
    if definition is not None:
        return definition
    match = _SCOPED_KEY.fullmatch(name)
    if match is None:
        return None
    key = match["key"]
    if key in _OF_LISTENERS:
        return ConfigDef(
            name=name,
            type=ValueType.PASSWORD,
            default="",
            doc="Who may log in at the listener by this mechanism, in Kafka's syntax.",
            nullable=True,
            convert=_OF_LISTENERS[key],
        )
    if key not in BROKER_CONFIGS:
        key = _MECHANISM_PREFIX.sub("", key, count=1)
    scoped = replace(BROKER_CONFIGS[key], name=name, default="", nullable=True)
    return replace(scoped, dynamic=True) if key in RENEWABLE else scoped


def are_dynamic(names: Iterable[str]) -> bool:
    """Returns whether all of these keys can be altered while a broker runs."""
    return all((found := broker_config(name)) is not None and found.dynamic for name in names)


def of_listener(given: Mapping[str, str], listener: str, key: str) -> str | None:
    """Returns the value set for one listener alone; None if there is none."""
    text = given.get(f"{PREFIX}{listener.lower()}.{key}", "").strip()
    return text or None


def of_mechanism(given: Mapping[str, str], listener: str, mechanism: str, key: str) -> str | None:
    """Returns the value set for one listener and mechanism, or for the listener; None if none."""
    own = of_listener(given, listener, f"{mechanism.lower()}.{key}")
    return own or of_listener(given, listener, key)


def listeners_with(config: BrokerConfig, *protocols: str) -> Sequence[str]:
    """Returns the names of the listeners with one of these security protocols."""
    known = parse_protocol_map(config.identity.protocols)
    return [one.name for one in config.listeners if protocol_of(one.name, known) in protocols]


def sasl_listeners(config: BrokerConfig) -> Sequence[str]:
    """Returns the names of the listeners with SASL."""
    return listeners_with(config, SASL_PLAINTEXT, SASL_SSL)


def tls_listeners(config: BrokerConfig) -> Sequence[str]:
    """Returns the names of the listeners with TLS; that of the metrics is HTTPS."""
    metrics = config.metrics.listener
    of_clients = listeners_with(config, SSL, SASL_SSL)
    return [*of_clients, HTTPS] if metrics is not None and metrics.name == HTTPS else of_clients


def tls_of(config: BrokerConfig, listener: str) -> TlsConfig:
    """Returns the settings of TLS of one listener.

    As in Kafka (KIP-684), one with SASL asks for certificates only if that is set for it alone.
    """
    own: dict[str, object] = {}
    for definition in keys_of(TlsConfig):
        text = of_listener(config.given, listener, definition.name)
        if text is not None:
            own[definition.name] = definition.parse(text)
        elif definition.name == "ssl.client.auth" and listener in sasl_listeners(config):
            own[definition.name] = NONE
    return with_values(config.tls, own)
