"""A listener for tokens: who comes in and for how long, with real clients and a real provider."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AioTokenProvider
from confluent_kafka import KafkaError, Producer
from kafka import KafkaProducer
from kafka.errors import KafkaError as PythonError
from kafka.net.sasl.oauth import AbstractTokenProvider

from strandline.broker.cli import main
from strandline.broker.protocol.messages.metadata import MetadataRequest, MetadataResponse
from strandline.broker.protocol.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from strandline.broker.protocol.messages.sasl_handshake import (
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from tests.support.broker import BrokerProcess
from tests.support.metrics import METRICS_ON
from tests.support.tokens import (
    AUDIENCE,
    ISSUER,
    Provider,
    claims,
    ec_key,
    first_message,
    key_set,
    rsa_key,
    running_provider,
    token,
)
from tests.support.users import listener_ports
from tests.support.wire import WireClient
from tests.system.calls import create_topic

pytestmark = [pytest.mark.slow, pytest.mark.clients]

LOGIN = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
LIFETIME_S = 600


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
    with running_provider(key_set(rsa_key(), ec_key()), tmp_path_factory.mktemp("ca")) as running:
        yield running


@pytest.fixture(scope="module")
def broker(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    authority = provider.folder / "ca.pem"
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
        "listener.name.clients.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.clients.oauthbearer.sasl.jaas.config": (
            f'{LOGIN} ssl.truststore.type="PEM" ssl.truststore.location="{authority}";'
        ),
        "sasl.oauthbearer.jwks.endpoint.url": provider.url,
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "connection.failed.authentication.delay.ms": "10",
        **METRICS_ON,
    }
    with BrokerProcess(tmp_path_factory.mktemp("oauth"), settings=settings) as running:
        with WireClient(running.port) as client:
            create_topic(client, "t")
        yield running
        assert "eyJ" not in running.log_text()


@pytest.fixture(scope="module")
def port(broker: BrokerProcess) -> int:
    return listener_ports(broker)["CLIENTS"]


def good(key: object = None, **changes: object) -> str:
    now_s = int(time.time())
    said = claims(now_s, **{"exp": now_s + LIFETIME_S, **changes})
    return token(key, said)  # type: ignore[arg-type]


def by_librdkafka(port: int, text: str) -> bool:
    refused: list[KafkaError] = []
    errors: list[KafkaError | None] = []
    producer = Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": lambda _: (text, time.time() + LIFETIME_S),
            "error_cb": refused.append,
            "log_level": 0,
        }
    )
    producer.produce("t", b"x", on_delivery=lambda error, _message: errors.append(error))
    deadline_s = time.monotonic() + 60
    while not errors and time.monotonic() < deadline_s:
        producer.poll(0.05)
        if any(error.code() == KafkaError._AUTHENTICATION for error in refused):
            producer.purge()
            producer.poll(0)
            return False
    return errors == [None]


class PythonTokens(AbstractTokenProvider):
    def __init__(self, text: str) -> None:
        self.text = text

    def token(self) -> str:
        return self.text


def by_kafka_python(port: int, text: str) -> bool:
    try:
        producer = KafkaProducer(
            bootstrap_servers=f"127.0.0.1:{port}",
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=PythonTokens(text),
            max_block_ms=3000,
            bootstrap_timeout_ms=2000,
        )
    except PythonError:
        return False
    try:
        producer.send("t", b"x").get(60)
    finally:
        producer.close()
    return True


class AioTokens(AioTokenProvider):
    def __init__(self, text: str) -> None:
        self.text = text

    async def token(self) -> str:
        return self.text


def by_aiokafka(port: int, text: str) -> bool:
    async def send() -> bool:
        producer = AIOKafkaProducer(
            bootstrap_servers=f"127.0.0.1:{port}",
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=AioTokens(text),
        )
        try:
            await producer.start()
        except Exception:
            return False
        else:
            await producer.send_and_wait("t", b"x")
            return True
        finally:
            await producer.stop()

    return asyncio.run(send())


@pytest.mark.parametrize("send", [by_librdkafka, by_kafka_python, by_aiokafka])
def test_a_good_token_lets_in_and_a_bad_one_does_not(
    port: int, send: Callable[[int, str], bool]
) -> None:
    assert send(port, good())
    assert send(port, good(ec_key()))
    assert not send(port, good(aud="else"))


def test_a_command_that_asks_the_nodes_itself_logs_in_by_the_token_of_a_file(
    port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "token"
    file.write_text(good())
    properties = tmp_path / "client.properties"
    properties.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n"
        f"sasl.oauthbearer.token.endpoint.url=file://{file}\n"
    )
    place = ["-b", f"127.0.0.1:{port}", "--command-config", str(properties)]
    assert main(["cluster", "status", *place, "--json"]) == 0
    # None of these does librdkafka ask for.
    assert json.loads(capsys.readouterr().out)["controller"] is not None


# --- byte by byte ----------------------------------------------------------------------------


def authenticate(client: WireClient, message: bytes) -> SaslAuthenticateResponse:
    request = SaslAuthenticateRequest(auth_bytes=message)
    return client.ask(request, SaslAuthenticateResponse, 2)


def log_in(client: WireClient, text: str) -> SaslAuthenticateResponse:
    request = SaslHandshakeRequest(mechanism="OAUTHBEARER")
    assert client.ask(request, SaslHandshakeResponse, 1).error_code == 0
    return authenticate(client, first_message(text))


def metadata(client: WireClient) -> MetadataResponse:
    return client.ask(MetadataRequest(topics=()), MetadataResponse, 9)


def test_a_client_learns_when_its_token_ends_and_then_it_ends(port: int) -> None:
    with WireClient(port) as client:
        answer = log_in(client, good())
        assert answer.error_code == 0
        assert 0 < answer.session_lifetime_ms <= LIFETIME_S * 1000
        assert metadata(client).brokers
    with WireClient(port) as client:
        # Within the clock skew it lets in, and ends at once.
        assert log_in(client, good(exp=int(time.time()) - 5)).session_lifetime_ms == 0
        client.send(MetadataRequest(topics=()), 9)
        assert client.closed_by_broker()


def test_a_session_goes_on_with_the_next_token_of_the_same_user(port: int) -> None:
    with WireClient(port) as client:
        assert log_in(client, good()).error_code == 0
        assert log_in(client, good(exp=int(time.time()) + 60)).session_lifetime_ms <= 60_000
        assert metadata(client).brokers
    with WireClient(port) as client:
        assert log_in(client, good()).error_code == 0
        answer = log_in(client, good(sub="mallory"))
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert client.closed_by_broker()


def test_a_bad_token_is_told_as_kafka_tells_it(port: int) -> None:
    with WireClient(port) as client:
        answer = log_in(client, good(iss="https://evil.example.org"))
        assert (answer.error_code, answer.auth_bytes) == (0, b'{"status":"invalid_token"}')
        answer = authenticate(client, b"\x01")
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert answer.error_message == '{"status":"invalid_token"}'
        assert client.closed_by_broker()


def test_a_key_that_the_provider_has_since_a_moment_lets_in(port: int, provider: Provider) -> None:
    """The only token of these tests by an unknown key: the next fetch is half a minute later."""
    provider.keys = key_set(rsa_key(), ec_key(), rsa_key("rsa-2"))
    with WireClient(port) as client:
        assert log_in(client, good(rsa_key("rsa-2"))).error_code == 0
        assert metadata(client).brokers
    before = len(provider.asked)
    for _ in range(5):
        with WireClient(port) as client:
            assert log_in(client, good(rsa_key("unknown"))).auth_bytes
    assert len(provider.asked) == before
