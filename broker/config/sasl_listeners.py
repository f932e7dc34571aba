"""How clients may log in at each listener, as the configuration says it.

    listener.security.protocol.map=CLIENTS:SASL_PLAINTEXT
    sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,OAUTHBEARER
    listener.name.clients.plain.sasl.jaas.config=...PlainLoginModule required user_alice="...";
    listener.name.clients.oauthbearer.sasl.oauthbearer.jwks.endpoint.url=https://...

A property of a listener and a mechanism precedes that of the listener, and that the broker's.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.listener_keys import (
    OAUTH_LOGIN,
    PLAIN_USERS,
    USERS_FILE,
    of_listener,
    of_mechanism,
    sasl_listeners,
)
from strandline.broker.security.jaas import oauth_options
from strandline.broker.security.oauth_config import OAuthConfig
from strandline.broker.security.scram import DIGESTS
from strandline.storage.config.definition import keys_of, with_values
from strandline.storage.errors import InvalidConfig
from strandline.storage.extras import how_to_install

PLAIN, OAUTHBEARER = "PLAIN", "OAUTHBEARER"
MECHANISMS = (PLAIN, *DIGESTS, OAUTHBEARER)
_FILE = "file://"


def enabled_mechanisms(config: BrokerConfig, listener: str) -> tuple[str, ...]:
    """Returns the mechanisms by which clients of this listener may log in."""
    own = of_listener(config.given, listener, "sasl.enabled.mechanisms")
    names = own.split(",") if own else (config.sasl.mechanisms or ())
    return tuple(dict.fromkeys(name.strip() for name in names if name.strip()))


def lifetime_ms_of(config: BrokerConfig, listener: str, mechanism: str) -> int:
    """Returns the longest login, in ms; 0 if it lasts as long as its connection."""
    own = of_mechanism(config.given, listener, mechanism, "connections.max.reauth.ms")
    return int(own) if own else config.sasl.lifetime_ms


def users_file_of(config: BrokerConfig, listener: str) -> Path | None:
    """Returns the file with the listener's users of PLAIN; None if there is none."""
    own = of_listener(config.given, listener, USERS_FILE)
    return Path(own) if own else config.sasl.users_file


def oauth_of(config: BrokerConfig, listener: str) -> OAuthConfig:
    """Returns the section of a listener's tokens."""
    own: dict[str, object] = {}
    for definition in keys_of(OAuthConfig):
        text = of_mechanism(config.given, listener, OAUTHBEARER, definition.name)
        if text is not None:
            own[definition.name] = definition.parse(text)
    return with_values(config.sasl.oauth, own)


def oauth_authority_of(config: BrokerConfig, listener: str) -> str:
    """Returns the certificates in PEM that the keys' address must show; empty: the system's.

    They stand in the login module, as in Kafka: ssl.truststore.certificates, or .location of a
    file, with ssl.truststore.type="PEM". Raises InvalidConfig.
    """
    text = of_listener(config.given, listener, OAUTH_LOGIN)
    options = oauth_options(text) if text else {}
    path = options.get("ssl.truststore.location")
    if path is None:
        return options.get("ssl.truststore.certificates", "")
    try:
        return Path(path).read_text("ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(
            f"listener.name.{listener.lower()}.{OAUTH_LOGIN}: the certificates in {path!r} cannot"
            f" be read: {error}"
        ) from error


def check_sasl(config: BrokerConfig) -> None:
    """Raises InvalidConfig for a SASL listener without known mechanisms, or one without users."""
    for listener in sasl_listeners(config):
        mechanisms = enabled_mechanisms(config, listener)
        unknown = [name for name in mechanisms if name not in MECHANISMS]
        if unknown or not mechanisms:
            raise InvalidConfig(
                f"listener {listener} has SASL: sasl.enabled.mechanisms="
                f"{','.join(mechanisms)!r}: expected some of {', '.join(MECHANISMS)}"
            )
        users = of_listener(config.given, listener, PLAIN_USERS)
        if PLAIN in mechanisms and users is None and users_file_of(config, listener) is None:
            raise InvalidConfig(
                f"listener {listener} allows PLAIN: expected its users in"
                f" listener.name.{listener.lower()}.{PLAIN_USERS}, or in {USERS_FILE}"
            )
        if OAUTHBEARER in mechanisms:
            _check_oauth(config, listener)


def _check_oauth(config: BrokerConfig, listener: str) -> None:
    url = oauth_of(config, listener).keys_url
    if url is None:
        raise InvalidConfig(
            f"listener {listener} allows OAUTHBEARER: expected the address of the keys in"
            " sasl.oauthbearer.jwks.endpoint.url"
        )
    if url.startswith(_FILE) and not Path(url.removeprefix(_FILE)).is_file():
        raise InvalidConfig(f"sasl.oauthbearer.jwks.endpoint.url: there is no file {url!r}")
    oauth_authority_of(config, listener)
    if find_spec("joserfc") is None:
        raise InvalidConfig(
            f"listener {listener} allows OAUTHBEARER, which needs joserfc;"
            f" {how_to_install('oauth')}"
        )
