"""Keys that may be set for one listener: `listener.name.<name in lower case>.<key>`, as in Kafka.

A key of that form has the type and bounds of the key it ends in, and no default: if it is not set,
the key without the prefix applies, or (for connection limits) no further limit. Users of SASL/PLAIN
are under a key that only listeners have:

    listener.name.<name>.plain.sasl.jaas.config
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from strandline.broker.config.table import BROKER_CONFIGS
from strandline.broker.security.jaas import (
    check_scram,
    check_token_handler,
    oauth_options,
    plain_passwords,
)
from strandline.broker.security.oauth_config import OAuthConfig
from strandline.storage.config.definition import ConfigDef, ValueType, keys_of

PREFIX = "listener.name."
USERS_FILE = "strandline.sasl.plain.users.file"
SCOPED = (
    "max.connection.creation.rate",
    "max.connections",
    "sasl.enabled.mechanisms",
    USERS_FILE,
)
# They may be set for one mechanism too: listener.name.<name>.oauthbearer.<key>.
_OF_MECHANISMS = (
    "connections.max.reauth.ms",
    *(definition.name for definition in keys_of(OAuthConfig)),
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
    return replace(BROKER_CONFIGS[key], name=name, default="", nullable=True)


def of_listener(given: Mapping[str, str], listener: str, key: str) -> str | None:
    """Returns the value set for one listener alone; None if there is none."""
    text = given.get(f"{PREFIX}{listener.lower()}.{key}", "").strip()
    return text or None


def of_mechanism(given: Mapping[str, str], listener: str, mechanism: str, key: str) -> str | None:
    """Returns the value set for one listener and mechanism, or for the listener; None if none."""
    own = of_listener(given, listener, f"{mechanism.lower()}.{key}")
    return own or of_listener(given, listener, key)
