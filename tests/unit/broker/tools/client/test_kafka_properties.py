"""Kafka's client properties, as librdkafka takes them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from strandline.broker.tools.client.connection import connection_of
from strandline.broker.tools.client.failures import WrongUse
from strandline.broker.tools.client.kafka_properties import librdkafka_settings, token_reader
from tests.support.certificates import Authority
from tests.support.tokens import claims, token

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"

OF_JAVA = """
client.id=mine request.timeout.ms=30000 send.buffer.bytes=-1 receive.buffer.bytes=65536
socket.connection.setup.timeout.max.ms=30000 security.providers=x auto.include.jmx.reporter=true
ssl.keymanager.algorithm=SunX509 ssl.trustmanager.algorithm=PKIX
ssl.secure.random.implementation=SHA1PRNG sasl.kerberos.ticket.renew.jitter=0.05
sasl.kerberos.ticket.renew.window.factor=0.8 sasl.oauthbearer.header.urlencode=false
sasl.oauthbearer.jwks.endpoint.url=https://x/ sasl.oauthbearer.expected.issuer=x
sasl.oauthbearer.scope.claim.name=scope sasl.oauthbearer.clock.skew.seconds=30
sasl.login.refresh.jitter=0.05 metrics.num.samples=2 buffer.memory=1 max.block.ms=1
max.request.size=1 partitioner.ignore.keys=false auto.offset.reset=none fetch.max.wait.ms=500
partition.assignment.strategy=org.apache.kafka.clients.consumer.RangeAssignor
exclude.internal.topics=true
"""


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


def test_a_keystore_in_pkcs12_needs_no_type_as_in_java(tmp_path: Path) -> None:
    store = Authority().issue("client").write_pkcs12(tmp_path / "own.keystore")
    (tmp_path / "old.keystore").write_bytes(bytes.fromhex("feedfeed00000002"))
    assert librdkafka_settings({"ssl.keystore.location": str(store)}) == {
        "ssl.keystore.location": str(store)
    }
    with pytest.raises(WrongUse, match="JKS"):
        librdkafka_settings({"ssl.keystore.location": str(tmp_path / "old.keystore")})


def test_properties_of_javas_clients_alone_do_not_stop_a_command() -> None:
    """Administrators, producers and consumers of Kafka 4.3 have them; librdkafka refuses them."""
    made = librdkafka_settings(dict(line.split("=") for line in OF_JAVA.split()))
    AdminClient({"bootstrap.servers": "127.0.0.1:1", **made})
    assert made == {"client.id": "mine", "request.timeout.ms": "30000"}


def test_what_a_command_needs_precedes_a_file_of_its_user(tmp_path: Path) -> None:
    file = file_of(tmp_path, "group.id=billing\nenable.auto.commit=true\nacks=1\nclient.id=mine\n")
    connection = connection_of("h:1", ["acks=0"], file)
    made = connection.client_settings(group_id="tool", enable_auto_commit=False, acks="all")
    assert made == {
        "bootstrap.servers": "h:1",
        "client.id": "mine",
        "group.id": "tool",
        "enable.auto.commit": False,
        "acks": "0",
    }


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
    private = f'{OAUTH} required ssl.truststore.type="PEM" ssl.truststore.location="/ca.pem";'
    assert librdkafka_settings({"sasl.jaas.config": private})["https.ca.location"] == "/ca.pem"
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
