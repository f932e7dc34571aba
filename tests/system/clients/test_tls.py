"""Real clients over TLS: encrypted, with certificates of their own, and with passwords inside."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from kafka import KafkaProducer
from kafka.errors import KafkaError as PythonError

from strandline.broker.cli import main
from tests.support.broker import BrokerProcess, faultless_broker
from tests.support.certificates import Authority
from tests.support.kafka_python import KafkaConsumer
from tests.support.ports import ReservedPort
from tests.support.quotas import Quotas, is_held_up
from tests.support.users import ALICE, JAAS
from tests.support.users import PASSWORD as ALICES_PASSWORD
from tests.system.calls import KEEP_EVERYTHING

pytestmark = [pytest.mark.slow, pytest.mark.clients]

PATIENCE_S = 60
# As Java prints the name of the certificate "client" (RFC 2253).
PRINCIPAL = r"CN=client,O=Example\, Inc."
LISTENERS = ("SSL", "MTLS", "SASL_SSL", "OLD")
SIZES = (0, 1, 100, 16_384, 100_000, 900_000)
VALUES = [bytes([number]) * size for number, size in enumerate(SIZES)]


@dataclass(frozen=True, slots=True)
class Encrypted:
    broker: BrokerProcess
    folder: Path
    ports: dict[str, int]

    def file(self, name: str) -> str:
        return str(self.folder / name)

    def librdkafka(self, listener: str, client: str = "client.pem") -> dict[str, str]:
        settings = {
            "bootstrap.servers": f"127.0.0.1:{self.ports[listener]}",
            "security.protocol": "SASL_SSL" if listener == "SASL_SSL" else "SSL",
            "ssl.ca.location": self.file("authority.pem"),
            "log_level": "0",
        }
        if listener == "SASL_SSL":
            settings |= {
                "sasl.mechanism": "PLAIN",
                "sasl.username": ALICE,
                "sasl.password": ALICES_PASSWORD,
            }
        elif listener == "MTLS":
            settings |= {
                "ssl.certificate.location": self.file(client),
                "ssl.key.location": self.file(client),
            }
        return settings

    def python(self, listener: str) -> dict[str, object]:
        settings: dict[str, object] = {
            "bootstrap_servers": f"127.0.0.1:{self.ports[listener]}",
            "security_protocol": "SASL_SSL" if listener == "SASL_SSL" else "SSL",
        }
        if listener == "SASL_SSL":
            settings |= {
                "sasl_mechanism": "PLAIN",
                "sasl_plain_username": ALICE,
                "sasl_plain_password": ALICES_PASSWORD,
            }
        return settings

    def kafka_python(self, listener: str) -> dict[str, object]:
        own = self.file("client.pem") if listener == "MTLS" else None
        return self.python(listener) | {
            "ssl_cafile": self.file("authority.pem"),
            "ssl_certfile": own,
            "ssl_keyfile": own,
        }


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encrypted]:
    folder = tmp_path_factory.mktemp("tls")
    authority, other = Authority(), Authority("Another")
    authority.write(folder / "authority.pem")
    authority.issue("broker").write(folder / "broker.pem", password="sesame")
    authority.issue("client").write(folder / "client.pem")
    other.issue("client").write(folder / "foreign.pem")
    reserved = {name: ReservedPort() for name in (*LISTENERS, "PLAINTEXT")}
    ports = {name: port.number for name, port in reserved.items()}
    settings = {
        **KEEP_EVERYTHING,
        "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items()),
        "listener.security.protocol.map": "MTLS:SSL,OLD:SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "broker.pem"),
        "ssl.key.password": "sesame",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "authority.pem"),
        "listener.name.mtls.ssl.client.auth": "required",
        "listener.name.old.ssl.enabled.protocols": "TLSv1.2",
        "listener.name.old.ssl.cipher.suites": "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": JAAS,
    }
    with faultless_broker(folder / "broker", settings=settings) as broker:
        yield Encrypted(broker, folder, ports)
        assert "sesame" not in broker.log_text()


@pytest.mark.parametrize("listener", LISTENERS)
def test_records_of_all_sizes_come_back_by_librdkafka(encrypted: Encrypted, listener: str) -> None:
    topic = f"librdkafka-{listener}"
    settings = encrypted.librdkafka(listener)
    producer = Producer({**settings, "enable.idempotence": True})
    for value in VALUES:
        producer.produce(topic, value)
    assert producer.flush(PATIENCE_S) == 0
    consumer = Consumer({**settings, "group.id": topic})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    for _ in VALUES:
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        assert message.error() is None
        found.append(message.value())
    assert found == VALUES
    consumer.commit(asynchronous=False)
    consumer.close()


@pytest.mark.parametrize("listener", LISTENERS)
def test_records_of_all_sizes_come_back_by_kafka_python(
    encrypted: Encrypted, listener: str
) -> None:
    topic = f"kafka-python-{listener}"
    settings = encrypted.kafka_python(listener)
    producer = KafkaProducer(**settings)
    for value in VALUES:
        producer.send(topic, value)
    producer.flush(PATIENCE_S)
    producer.close()
    consumer = KafkaConsumer(topic, auto_offset_reset="earliest", **settings)
    assert [next(consumer).value for _ in VALUES] == VALUES
    consumer.close()


@pytest.mark.parametrize("listener", LISTENERS)
def test_records_of_all_sizes_come_back_by_aiokafka(encrypted: Encrypted, listener: str) -> None:
    topic = f"aiokafka-{listener}"

    async def main() -> list[bytes | None]:
        context = Authority.context_of_files(
            encrypted.folder / "authority.pem",
            encrypted.folder / "client.pem" if listener == "MTLS" else None,
        )
        settings = {**encrypted.python(listener), "ssl_context": context}
        async with AIOKafkaProducer(**settings) as producer:
            for value in VALUES:
                await producer.send_and_wait(topic, value)
        consumer = AIOKafkaConsumer(topic, auto_offset_reset="earliest", **settings)
        async with consumer, asyncio.timeout(PATIENCE_S):
            return [(await consumer.getone()).value for _ in VALUES]

    assert asyncio.run(main()) == VALUES


def test_a_quota_of_a_user_counts_for_the_name_of_a_certificate(encrypted: Encrypted) -> None:
    topic, records = "quota", 3
    settings = encrypted.librdkafka("MTLS")
    producer = Producer({**settings, "linger.ms": "0"})
    for _ in range(records):
        producer.produce(topic, bytes(30_000))
        assert producer.flush(PATIENCE_S) == 0
    assert not is_held_up(settings, topic, records=records)
    quotas = Quotas(encrypted.ports["PLAINTEXT"])
    quotas.set({"user": PRINCIPAL}, 1000.0)
    assert is_held_up(settings, topic, records=records)
    assert not is_held_up(encrypted.librdkafka("SASL_SSL"), topic, records=records)
    quotas.clear()


def refusal_of(settings: dict[str, str]) -> str:
    """What a client is told that is not let in."""
    errors: list[KafkaError] = []
    producer = Producer(settings, error_cb=errors.append)
    deadline_s = time.monotonic() + PATIENCE_S
    while not errors and time.monotonic() < deadline_s:
        producer.poll(0.1)
    return str(errors[0]).lower()


@pytest.mark.parametrize("client", ["none", "foreign.pem"])
def test_a_client_without_a_certificate_of_the_authority_is_told_why(
    encrypted: Encrypted, client: str
) -> None:
    settings = encrypted.librdkafka("MTLS", client)
    if client == "none":
        del settings["ssl.certificate.location"], settings["ssl.key.location"]
    expected = "certificate required" if client == "none" else "unknown ca"
    assert expected in refusal_of(settings)


def test_a_client_that_does_not_trust_the_broker_stays_away(encrypted: Encrypted) -> None:
    settings = {**encrypted.librdkafka("SSL"), "ssl.ca.location": encrypted.file("foreign.pem")}
    assert "verif" in refusal_of(settings)


@pytest.mark.parametrize(
    ("listener", "changes", "reason"),
    [
        ("SSL", {"ssl.ca.location": "foreign.pem"}, "verif"),
        ("SASL_SSL", {"ssl.ca.location": "foreign.pem"}, "verif"),
        ("MTLS", {"ssl.certificate.location": "", "ssl.key.location": ""}, "certificate required"),
    ],
)
def test_a_command_of_ours_says_at_once_that_tls_fails_and_why(
    encrypted: Encrypted,
    capsys: pytest.CaptureFixture[str],
    listener: str,
    changes: dict[str, str],
    reason: str,
) -> None:
    settings = encrypted.librdkafka(listener)
    bootstrap = settings.pop("bootstrap.servers")
    settings |= {name: file and encrypted.file(file) for name, file in changes.items()}
    words = [word for name in settings for word in ("-X", f"{name}={settings[name]}")]
    assert main(["topic", "list", "-b", bootstrap, *words]) == 1
    told = capsys.readouterr().err
    assert "TLS fails" in told
    assert reason in told


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SASL_PLAINTEXT"])
def test_a_command_of_ours_without_tls_is_told_at_once_what_it_needs(
    encrypted: Encrypted, capsys: pytest.CaptureFixture[str], protocol: str
) -> None:
    bootstrap = f"127.0.0.1:{encrypted.ports['SASL_SSL']}"
    words = [
        word for one in (f"security.protocol={protocol}", "client.id=x") for word in ("-X", one)
    ]
    assert main(["topic", "list", "-b", bootstrap, *words]) == 1
    assert "without TLS" in capsys.readouterr().err


def test_a_client_without_tls_is_refused(encrypted: Encrypted) -> None:
    with pytest.raises(PythonError):
        KafkaProducer(
            bootstrap_servers=f"127.0.0.1:{encrypted.ports['SSL']}",
            max_block_ms=2000,
            bootstrap_timeout_ms=2000,
        )
    assert "plaintext" in encrypted.broker.log_text()
