"""How this broker is let in by controllers and by other brokers, as the configuration says it.

controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:SASL_SSL,CLIENTS:SASL_SSL
sasl.mechanism.controller.protocol=PLAIN
listener.name.controller.plain.sasl.jaas.config=...PlainLoginModule required username="b" ...;
listener.name.controller.ssl.truststore.location=...
"""

from __future__ import annotations

from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.listener_keys import OAUTH_LOGIN, of_listener, tls_of
from strandline.broker.config.listeners import (
    PLAINTEXT,
    SASL_PLAINTEXT,
    SASL_SSL,
    SSL,
    parse_protocol_map,
    protocol_of,
)
from strandline.broker.config.sasl_listeners import oauth_authority_of, oauth_of
from strandline.broker.peers.security import (
    MECHANISMS,
    OAUTHBEARER,
    PasswordLogin,
    PeerLogin,
    PeerSecurity,
    TokenLogin,
)
from strandline.broker.security.jaas import oauth_options, parse_jaas
from strandline.storage.errors import InvalidConfig


def controller_security(config: BrokerConfig) -> PeerSecurity:
    """Returns the security of connections to controllers. Raises InvalidConfig."""
    names = config.peers.controller_listeners
    if not names:
        raise InvalidConfig(
            "process.roles=broker needs controller.listener.names: the name of the controllers'"
            " listener, whose protocol is in listener.security.protocol.map"
        )
    return _security(config, names[0].upper(), config.peers.controller_mechanism, default=PLAINTEXT)


def inter_broker_security(config: BrokerConfig) -> PeerSecurity:
    """Returns the security of connections to other brokers. Raises InvalidConfig."""
    peers = config.peers
    if peers.listener is not None and "security.inter.broker.protocol" in config.given:
        raise InvalidConfig(
            "inter.broker.listener.name and security.inter.broker.protocol: expected only one"
        )
    listener = (peers.listener or peers.protocol).upper()
    if listener not in {one.name for one in config.listeners}:
        raise InvalidConfig(
            f"inter.broker.listener.name={listener}: brokers connect to each other by it, so"
            " listeners must have it"
        )
    return _security(config, listener, peers.mechanism, default=None)


def _security(
    config: BrokerConfig, listener: str, mechanism: str, *, default: str | None
) -> PeerSecurity:
    protocols = parse_protocol_map(config.identity.protocols)
    protocol = protocol_of(listener, protocols) or default
    if protocol not in (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL):
        raise InvalidConfig(
            f"listener.security.protocol.map does not say which protocol {listener} is"
        )
    return PeerSecurity(
        listener=listener,
        tls=tls_of(config, listener) if protocol in (SSL, SASL_SSL) else None,
        checks_name=config.peers.name_check != "",
        login=_login(config, listener, mechanism)
        if protocol in (SASL_PLAINTEXT, SASL_SSL)
        else None,
    )


def _login(config: BrokerConfig, listener: str, mechanism: str) -> PeerLogin:
    if mechanism not in MECHANISMS:
        raise InvalidConfig(
            f"the login at listener {listener} is by {mechanism}; expected one of"
            f" {', '.join(MECHANISMS)} in sasl.mechanism.controller.protocol and"
            " sasl.mechanism.inter.broker.protocol"
        )
    if mechanism == OAUTHBEARER:
        return _token_login(config, listener)
    key = f"{mechanism.lower()}.sasl.jaas.config"
    text = of_listener(config.given, listener, key)
    options = parse_jaas(text)[1] if text else {}
    if "username" not in options or "password" not in options:
        raise InvalidConfig(
            f"listener.name.{listener.lower()}.{key}: expected username and password, by which"
            " this broker logs in"
        )
    return PasswordLogin(
        mechanism=mechanism, user=options["username"], password=options["password"]
    )


def _token_login(config: BrokerConfig, listener: str) -> PeerLogin:
    # Loaded by who logs in by a token: HTTP.
    from strandline.broker.security.token_source import TokenSource

    oauth = oauth_of(config, listener)
    if oauth.token_url is None:
        raise InvalidConfig(
            f"the login at listener {listener} is by {OAUTHBEARER}: expected where the token is in"
            " sasl.oauthbearer.token.endpoint.url"
        )
    text = of_listener(config.given, listener, OAUTH_LOGIN)
    options = oauth_options(text) if text else {}
    client = oauth.client_id or options.get("clientId")
    secret = oauth.client_secret or options.get("clientSecret")
    if not oauth.token_url.startswith("file:") and (client is None or secret is None):
        raise InvalidConfig(
            f"the login at listener {listener} asks a provider for a token: expected"
            " sasl.oauthbearer.client.credentials.client.id and"
            " sasl.oauthbearer.client.credentials.client.secret"
        )
    source = TokenSource(
        oauth.token_url,
        client_id=client or "",
        secret=secret or "",
        scope=oauth.scope or options.get("scope"),
        authority=oauth_authority_of(config, listener),
    )
    return TokenLogin(source=source, user=client or oauth.token_url)
