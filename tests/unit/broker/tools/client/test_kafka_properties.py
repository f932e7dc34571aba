"""Kafka's client properties, as librdkafka takes them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from strandline.broker.tools.client.connection import connection_of
from strandline.broker.tools.client.failures import WrongUse
from strandline.broker.tools.client.kafka_properties import librdkafka_settings, token_reader
from tests.support.tokens import claims, token

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"


def file_of(folder: Path, text: str) -> Path:
    file = folder / "client.properties"
    file.write_text(text)
    return file


@pytest.mark.parametrize(("module", "mechanism"), [(PLAIN, "PLAIN"), (SCRAM, "SCRAM-SHA-512")])
def test_a_file_of_kafkas_tools_logs_in(tmp_path: Path, module: str, mechanism: str) -> None:
    file = file_of(
        tmp_path,
        "# of the team\nsecurity.protocol = SASL_PLAINTEXT\n"
        f"sasl.mechanism={mechanism}\n"
        f"sasl.jaas.config={module} required \\\n"
        '    username="alice" \\\n    password="a \\\\"b\\\\"=c;";\n'
        "default.api.timeout.ms=1000\nsasl.client.callback.handler.class=x.Y\n",
    )
    connection = connection_of("h:1", ["client.id=mine"], file)
    assert connection.settings == {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": "alice",
        "sasl.password": 'a "b"=c;',
        "client.id": "mine",
    }


def test_certificates_are_given_in_pem_or_pkcs12() -> None:
    made = librdkafka_settings(
        {
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": "/ca.pem",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": "/own.pem",
            "ssl.key.password": "p",
            "ssl.endpoint.identification.algorithm": "",
            "ssl.enabled.protocols": "TLSv1.3",
        }
    )
    assert made == {
        "ssl.ca.location": "/ca.pem",
        "ssl.certificate.location": "/own.pem",
        "ssl.key.location": "/own.pem",
        "ssl.key.password": "p",
        "ssl.endpoint.identification.algorithm": "none",
    }
    assert librdkafka_settings(
        {
            "ssl.truststore.certificates": "CA",
            "ssl.keystore.certificate.chain": "CHAIN",
            "ssl.keystore.key": "KEY",
        }
    ) == {"ssl.ca.pem": "CA", "ssl.certificate.pem": "CHAIN", "ssl.key.pem": "KEY"}
    assert librdkafka_settings(
        {
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": "/own.p12",
            "ssl.keystore.password": "p",
        }
    ) == {"ssl.keystore.location": "/own.p12", "ssl.keystore.password": "p"}


@pytest.mark.parametrize(
    ("properties", "remedy"),
    [
        ({"ssl.truststore.location": "/a.jks"}, "keytool -importkeystore"),
        (
            {"ssl.truststore.location": "/a.p12", "ssl.truststore.type": "PKCS12"},
            "openssl pkcs12 -in /a.p12 -nokeys",
        ),
        ({"ssl.keystore.location": "/a", "ssl.keystore.type": "JKS"}, "keytool"),
        ({"sasl.jaas.config": "com.sun.Krb5LoginModule required;"}, PLAIN),
    ],
)
def test_what_librdkafka_cannot_read_is_refused_with_a_remedy(
    properties: dict[str, str], remedy: str
) -> None:
    with pytest.raises(WrongUse) as caught:
        librdkafka_settings(properties)
    assert remedy in str(vars(caught.value)) + str(caught.value)


def test_a_malformed_login_is_refused_without_its_password() -> None:
    with pytest.raises(WrongUse) as caught:
        librdkafka_settings({"sasl.jaas.config": f'{PLAIN} required password="hunter2"'})
    assert "hunter2" not in str(caught.value)


def test_oauthbearer_asks_the_provider_or_reads_a_file(tmp_path: Path) -> None:
    asked = {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": "https://login.example.org/token",
        "sasl.jaas.config": f'{OAUTH} required clientId="id" clientSecret="s" scope="kafka";',
    }
    made = librdkafka_settings(asked)
    assert token_reader(asked) is None
    assert made["sasl.oauthbearer.method"] == "oidc"
    assert (made["sasl.oauthbearer.client.id"], made["sasl.oauthbearer.client.secret"]) == (
        "id",
        "s",
    )
    # librdkafka knows all of them.
    AdminClient({"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SASL_SSL", **made})
    file = tmp_path / "token"
    ends_s = int(time.time()) + 600
    file.write_text(token(said=claims(exp=ends_s)) + "\n")
    of_file = {**asked, "sasl.oauthbearer.token.endpoint.url": f"file://{file}"}
    read = token_reader(of_file)
    assert read is not None
    assert read("") == (file.read_text().strip(), ends_s)
    assert "sasl.oauthbearer.method" not in librdkafka_settings(of_file)
