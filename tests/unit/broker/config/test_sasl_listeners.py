"""SASL listeners that nobody could come in by, or anybody, are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.loading import load_config
from strandline.broker.config.sasl_listeners import (
    enabled_mechanisms,
    lifetime_ms_of,
    oauth_authority_of,
    oauth_of,
    sasl_listeners,
)
from strandline.storage.errors import InvalidConfig

CLIENTS = (
    "listeners=PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:0",
    "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
)
URL = "sasl.oauthbearer.jwks.endpoint.url=https://login.example.org/keys"
LOGIN = (
    "listener.name.clients.oauthbearer.sasl.jaas.config="
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
)
HANDLER = "listener.name.clients.oauthbearer.sasl.server.callback.handler.class"
USERS = (
    "listener.name.clients.plain.sasl.jaas.config="
    'org.apache.kafka.common.security.plain.PlainLoginModule required user_a="b";'
)


def load(*overrides: str) -> BrokerConfig:
    return load_config(None, (*CLIENTS, *overrides))


def test_a_listener_is_sasl_by_its_protocol_and_has_its_own_mechanisms() -> None:
    config = load(
        "sasl.enabled.mechanisms=SCRAM-SHA-256",
        "listener.name.clients.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512",
        USERS,
    )
    assert sasl_listeners(config) == ["CLIENTS"]
    assert enabled_mechanisms(config, "CLIENTS") == ("PLAIN", "SCRAM-SHA-512")
    assert enabled_mechanisms(config, "OTHER") == ("SCRAM-SHA-256",)


def test_a_listener_may_have_the_name_of_its_protocol() -> None:
    config = load_config(
        None,
        ("listeners=SASL_PLAINTEXT://127.0.0.1:0", "sasl.enabled.mechanisms=SCRAM-SHA-256"),
    )
    assert sasl_listeners(config) == ["SASL_PLAINTEXT"]


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        ((), "expected some of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        (("sasl.enabled.mechanisms=GSSAPI",), "expected some of PLAIN"),
        (("sasl.enabled.mechanisms=PLAIN",), "expected its users in listener.name.clients.plain"),
        (
            ("sasl.enabled.mechanisms=OAUTHBEARER",),
            "the address of the keys in sasl.oauthbearer.jwks.endpoint.url",
        ),
        (
            ("sasl.enabled.mechanisms=OAUTHBEARER", URL.replace("https://login", "file:///none")),
            "there is no file",
        ),
        ((URL.replace("https", "ftp"),), "expected https://host/path"),
        ((URL.replace("login", "user:secret@login"),), "without a user in it"),
        ((f'{LOGIN} unsecuredLoginStringClaim_sub="a";',), "without a signature are not served"),
        ((f'{LOGIN} ssl.truststore.type="JKS";',), "expected ssl.truststore.type"),
        ((f"{HANDLER}=x.OAuthBearerUnsecuredValidatorCallbackHandler",), "does by itself"),
    ],
)
def test_a_listener_without_a_way_in_is_refused(overrides: tuple[str, ...], complaint: str) -> None:
    with pytest.raises(InvalidConfig, match=complaint):
        load(*overrides)


def test_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="there is no protocol SASL_TLS"):
        load_config(
            None,
            (CLIENTS[0], "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CLIENTS:SASL_TLS"),
        )


def test_properties_of_a_mechanism_precede_those_of_the_listener_and_the_brokers() -> None:
    config = load(
        "sasl.enabled.mechanisms=SCRAM-SHA-256,OAUTHBEARER",
        URL,
        "connections.max.reauth.ms=1000",
        "listener.name.clients.connections.max.reauth.ms=2000",
        "listener.name.clients.oauthbearer.connections.max.reauth.ms=3000",
        "sasl.oauthbearer.expected.audience=a,b",
        "listener.name.clients.sasl.oauthbearer.expected.issuer=i",
        "listener.name.clients.oauthbearer.sasl.oauthbearer.expected.issuer=j",
    )
    assert lifetime_ms_of(config, "OTHER", "OAUTHBEARER") == 1000
    assert lifetime_ms_of(config, "CLIENTS", "SCRAM-SHA-256") == 2000
    assert lifetime_ms_of(config, "CLIENTS", "OAUTHBEARER") == 3000
    oauth = oauth_of(config, "CLIENTS")
    assert (oauth.issuer, oauth.audiences) == ("j", ("a", "b"))
    assert oauth_of(config, "OTHER").issuer is None


def test_the_authority_of_a_provider_stands_in_the_login_module(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("PEM")
    # As a file of Kafka has it.
    handler = f"{HANDLER}=org.apache.kafka.common.security.oauthbearer"
    common = (
        "sasl.enabled.mechanisms=OAUTHBEARER",
        URL,
        f"{handler}.OAuthBearerValidatorCallbackHandler",
    )
    config = load(*common, f'{LOGIN} ssl.truststore.type="PEM" ssl.truststore.location="{file}";')
    assert oauth_authority_of(config, "CLIENTS") == "PEM"
    assert oauth_authority_of(load(*common, f"{LOGIN};"), "CLIENTS") == ""
    with pytest.raises(InvalidConfig, match="cannot be read"):
        load(*common, f'{LOGIN} ssl.truststore.location="{tmp_path}/none";')
