"""SASL listeners: who comes in, who stays out, and quotas of users, with real clients."""

from __future__ import annotations

import asyncio
import base64
import re
import struct
import time
from collections.abc import Callable, Iterator

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from kafka import KafkaProducer
from kafka.errors import KafkaError as PythonError

from strandline.broker.cli import main
from strandline.broker.handlers.auth.sasl import RENEWAL_S_MIN
from strandline.broker.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterQuotaEntry,
    EntityData,
    QuotaOperation,
)
from strandline.broker.protocol.messages.api_versions import (
    ApiVersionsRequest,
    ApiVersionsResponse,
)
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
from tests.support.broker import BrokerProcess, eventually
from tests.support.metrics import samples
from tests.support.users import (
    ALICE,
    BOB,
    CAROL,
    LIFETIME_MS,
    MECHANISM_OF,
    PASSWORD,
    SETTINGS,
    librdkafka_login,
    listener_ports,
    make_users,
    scram_info,
)
from tests.support.wire import WireClient
from tests.system.calls import create_topic

pytestmark = [pytest.mark.slow, pytest.mark.clients]

THROTTLED = "kafka_network_requestmetrics_throttletimems_sum"
BROKER_SETTINGS = SETTINGS


@pytest.fixture(scope="module", autouse=True)
def users(broker: BrokerProcess) -> Iterator[None]:
    make_users(broker)
    with WireClient(broker.port) as client:
        create_topic(client, "t")
    yield
    assert PASSWORD not in broker.log_text()


@pytest.fixture(scope="module")
def ports(broker: BrokerProcess) -> dict[str, int]:
    return listener_ports(broker)


def python_settings(port: int, user: str, password: str) -> dict[str, str]:
    return {
        "bootstrap_servers": f"127.0.0.1:{port}",
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": MECHANISM_OF[user],
        "sasl_plain_username": user,
        "sasl_plain_password": password,
    }


def by_librdkafka(port: int, user: str, password: str, value: bytes) -> bool:
    errors: list[KafkaError | None] = []
    refused: list[KafkaError] = []
    producer = Producer(librdkafka_login(port, user, password), error_cb=refused.append)
    producer.produce("t", value, on_delivery=lambda error, _message: errors.append(error))
    deadline_s = time.monotonic() + 60
    while not errors and time.monotonic() < deadline_s:
        producer.poll(0.05)
        if any(error.code() == KafkaError._AUTHENTICATION for error in refused):
            producer.purge()
            producer.poll(0)
            return False
    return errors == [None]


def by_kafka_python(port: int, user: str, password: str, value: bytes) -> bool:
    # Who is refused asks again for as long as that.
    patience_ms = 60_000 if password == PASSWORD else 2000
    settings = python_settings(port, user, password)
    try:
        producer = KafkaProducer(
            **settings, max_block_ms=patience_ms + 1000, bootstrap_timeout_ms=patience_ms
        )
    except PythonError:
        return False
    try:
        producer.send("t", value).get(60)
    finally:
        producer.close()
    return True


def by_aiokafka(port: int, user: str, password: str, value: bytes) -> bool:
    async def send() -> bool:
        producer = AIOKafkaProducer(**python_settings(port, user, password))
        try:
            await producer.start()
        except Exception:
            return False
        else:
            await producer.send_and_wait("t", value)
            return True
        finally:
            await producer.stop()

    return asyncio.run(send())


Send = Callable[[int, str, str, bytes], bool]
SENDERS = [by_librdkafka, by_kafka_python, by_aiokafka]


@pytest.mark.parametrize("send", SENDERS)
@pytest.mark.parametrize("user", [ALICE, BOB, CAROL])
def test_the_right_password_lets_in(ports: dict[str, int], send: Send, user: str) -> None:
    assert send(ports["CLIENTS"], user, PASSWORD, b"x")


def test_a_command_of_ours_says_at_once_that_the_login_is_refused(
    ports: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    login = librdkafka_login(ports["CLIENTS"], ALICE, "wrong")
    settings = [word for name in login for word in ("-X", f"{name}={login[name]}")]
    where = ["-b", str(login["bootstrap.servers"]), *settings]
    for command in (["topic", "list"], ["produce", "t"], ["consume", "t"]):
        assert main([*command, *where]) == 1
        assert "the login is refused" in capsys.readouterr().err
    assert main(["topic", "list", *where, "-X", f"sasl.password={PASSWORD}"]) == 0


@pytest.mark.parametrize("send", SENDERS)
@pytest.mark.parametrize("user", [ALICE, BOB])
def test_a_wrong_password_lets_nobody_in(ports: dict[str, int], send: Send, user: str) -> None:
    assert not send(ports["CLIENTS"], user, "wrong", b"x")


def test_clients_are_sent_to_the_listener_that_they_came_by(
    broker: BrokerProcess, ports: dict[str, int]
) -> None:
    admin = AdminClient(librdkafka_login(ports["CLIENTS"], BOB, PASSWORD))
    (node,) = admin.describe_cluster().result(60).nodes
    assert node.port == ports["CLIENTS"]
    with WireClient(broker.port) as client:
        (plain,) = client.ask(MetadataRequest(topics=()), MetadataResponse, 12).brokers
        assert plain.port == ports["PLAINTEXT"]


def test_users_are_described_deleted_and_kept_over_a_kill(tmp_path_factory: object) -> None:
    assert isinstance(tmp_path_factory, pytest.TempPathFactory)
    with BrokerProcess(tmp_path_factory.mktemp("users")) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap})
        both = [
            UserScramCredentialUpsertion("u", scram_info(mechanism), b"secret")
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
        ]
        for one in both:
            admin.alter_user_scram_credentials([one])["u"].result(60)
        deletion = UserScramCredentialDeletion("u", ScramMechanism.SCRAM_SHA_256)
        admin.alter_user_scram_credentials([deletion])["u"].result(60)
        running.kill()
        running.start()
        again = AdminClient({"bootstrap.servers": running.bootstrap})
        found = again.describe_user_scram_credentials(["u"])["u"].result(60)
        assert [(one.mechanism, one.iterations) for one in found.scram_credential_infos] == [
            (ScramMechanism.SCRAM_SHA_512, 4096)
        ]
        for bad, code in (
            (deletion, ErrorCode.RESOURCE_NOT_FOUND),
            (
                UserScramCredentialUpsertion(
                    "u", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4095), b"x"
                ),
                ErrorCode.UNACCEPTABLE_CREDENTIAL,
            ),
        ):
            refused = again.alter_user_scram_credentials([bad])["u"].exception(60)
            assert refused is not None
            assert refused.args[0].code() == code


@pytest.mark.parametrize("send", SENDERS)
def test_quotas_are_kept_by_user_whatever_the_clients_call_themselves(
    broker: BrokerProcess, ports: dict[str, int], send: Send
) -> None:
    """One user is slowed down, the other is not, and the throttle is told."""

    def alter(value: float | None) -> None:
        operation = QuotaOperation(key="producer_byte_rate", value=value or 0, remove=value is None)
        entry = AlterQuotaEntry(
            entity=[EntityData(entity_type="user", entity_name=BOB)], ops=[operation]
        )
        with WireClient(broker.port) as client:
            request = AlterClientQuotasRequest(entries=[entry])
            client.ask(request, AlterClientQuotasResponse, 1)

    def held_up_ms() -> float:
        return samples(broker, THROTTLED).get((("request", "Produce"),), 0.0)

    alter(1000.0)
    try:
        # Ten seconds' worth is free, and each sender has a bit more.
        before_ms = held_up_ms()
        assert send(ports["CLIENTS"], CAROL, PASSWORD, bytes(12_000))
        assert held_up_ms() == before_ms
        assert send(ports["CLIENTS"], BOB, PASSWORD, bytes(12_000))
        assert held_up_ms() > before_ms
    finally:
        alter(None)


# --- byte by byte ----------------------------------------------------------------------------


def handshake(client: WireClient, mechanism: str = "PLAIN", version: int = 1) -> int:
    request = SaslHandshakeRequest(mechanism=mechanism)
    return client.ask(request, SaslHandshakeResponse, version).error_code


def authenticate(client: WireClient, message: bytes, version: int = 2) -> SaslAuthenticateResponse:
    request = SaslAuthenticateRequest(auth_bytes=message)
    return client.ask(request, SaslAuthenticateResponse, version)


def plain(user: str = ALICE, password: str = PASSWORD) -> bytes:
    return f"\0{user}\0{password}".encode()


def metadata(client: WireClient) -> MetadataResponse:
    return client.ask(MetadataRequest(topics=()), MetadataResponse, 9)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_login_in_every_version_and_then_requests(ports: dict[str, int], version: int) -> None:
    with WireClient(ports["CLIENTS"]) as client:
        software = ApiVersionsRequest(client_software_name="t", client_software_version="1")
        assert client.ask(software, ApiVersionsResponse, 3).error_code == 0
        assert handshake(client) == 0
        answer = authenticate(client, plain(), version)
        assert (answer.error_code, answer.session_lifetime_ms) == (0, 0)
        assert metadata(client).brokers
        # A second login has no use where logins do not end.
        assert handshake(client) == ErrorCode.ILLEGAL_SASL_STATE


def test_the_oldest_handshake_is_followed_by_bytes_without_headers(ports: dict[str, int]) -> None:
    with WireClient(ports["CLIENTS"]) as client:
        assert handshake(client, version=0) == 0
        client.send_raw(struct.pack(">i", len(plain())) + plain())
        assert client.receive_frame() == b""
        assert metadata(client).brokers
    with WireClient(ports["CLIENTS"]) as client:
        assert handshake(client, version=0) == 0
        wrong = plain(password="wrong")
        client.send_raw(struct.pack(">i", len(wrong)) + wrong)
        assert client.closed_by_broker()


def test_who_fails_is_told_and_cut_off(ports: dict[str, int]) -> None:
    with WireClient(ports["CLIENTS"]) as client:
        handshake(client)
        answer = authenticate(client, plain(password="wrong"))
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert client.closed_by_broker()
    with WireClient(ports["SHORT"]) as client:
        # This listener has PLAIN alone.
        assert handshake(client, "SCRAM-SHA-256") == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert client.closed_by_broker()


@pytest.mark.parametrize(
    ("listener", "mechanism", "request_name", "error"),
    [
        ("CLIENTS", "PLAIN", "SaslAuthenticate", "SASL_AUTHENTICATION_FAILED"),
        ("SHORT", "SCRAM-SHA-256", "SaslHandshake", "UNSUPPORTED_SASL_MECHANISM"),
    ],
)
def test_a_failed_login_is_counted_by_its_error(
    broker: BrokerProcess,
    ports: dict[str, int],
    listener: str,
    mechanism: str,
    request_name: str,
    error: str,
) -> None:
    def count() -> float:
        found = samples(broker, "kafka_network_requestmetrics_errors_total")
        return found.get((("error", error), ("request", request_name)), 0.0)

    before = count()
    with WireClient(ports[listener]) as client:
        if handshake(client, mechanism) == 0:
            authenticate(client, plain(password="wrong"))
    assert count() == before + 1


def test_a_failed_login_names_its_user_in_the_log_and_is_counted_by_address(
    broker: BrokerProcess, ports: dict[str, int]
) -> None:
    def count() -> float:
        found = samples(broker, "strandline_failed_logins_total")
        return found.get((("address", "127.0.0.1"),), 0.0)

    before = count()
    for mechanism, first in (("PLAIN", plain("mallory")), ("SCRAM-SHA-256", b"n,,n=mallory,r=x")):
        with WireClient(ports["CLIENTS"]) as client:
            assert handshake(client, mechanism) == 0
            answer = authenticate(client, first)
            if mechanism != "PLAIN":
                # Answered as a user that exists; only the proof fails.
                assert answer.error_code == 0
                nonce = answer.auth_bytes.split(b",")[0]
                proof = base64.b64encode(bytes(32))
                answer = authenticate(client, b"c=biws," + nonce + b",p=" + proof)
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert count() == before + 2
    # One line for an address in ten seconds: earlier failures of these tests may have been it.
    lines = [line for line in broker.log_text().splitlines() if " login failed " in line]
    assert lines
    assert all(re.search(r" user=\S+ listener=CLIENTS mechanism=\S+ ", line) for line in lines[:1])


def test_nothing_is_served_before_the_login(ports: dict[str, int]) -> None:
    with WireClient(ports["CLIENTS"]) as client:
        client.send(MetadataRequest(topics=()), 9)
        assert client.closed_by_broker()
    with WireClient(ports["CLIENTS"]) as client:
        handshake(client)
        client.send(MetadataRequest(topics=()), 9)
        assert client.closed_by_broker()
    with WireClient(ports["CLIENTS"]) as client:
        # Half a megabyte is more than any login needs.
        client.send_raw(struct.pack(">i", 600_000))
        assert client.closed_by_broker()


@pytest.mark.parametrize("unknown_first", [False, True])
def test_versions_are_told_once_before_the_login(
    ports: dict[str, int], unknown_first: bool
) -> None:
    software = ApiVersionsRequest(client_software_name="t", client_software_version="1")
    with WireClient(ports["CLIENTS"]) as client:
        if unknown_first:
            # A newer client than the broker learns what there is, and asks again (KIP-511).
            client.send_raw(struct.pack(">ihhihb", 11, 18, 99, 7, -1, 0))
            _, error_code = struct.unpack_from(">ih", client.receive_frame())
            assert error_code == ErrorCode.UNSUPPORTED_VERSION
        assert client.ask(software, ApiVersionsResponse, 3).error_code == 0
        client.send(software, 3)
        assert client.closed_by_broker()


def test_a_login_ends_unless_the_same_user_renews_it(ports: dict[str, int]) -> None:
    with WireClient(ports["SHORT"]) as client:
        handshake(client)
        assert authenticate(client, plain()).session_lifetime_ms == LIFETIME_MS
        for _ in range(3):
            assert handshake(client) == 0
            assert authenticate(client, plain()).error_code == 0
            assert metadata(client).brokers
            # Kafka takes one renewal a second.
            assert handshake(client) == ErrorCode.ILLEGAL_SASL_STATE
            assert metadata(client).brokers
            time.sleep(RENEWAL_S_MIN + 0.05)
        time.sleep(LIFETIME_MS / 1000)
        client.send(MetadataRequest(topics=()), 9)
        assert client.closed_by_broker()


@pytest.mark.heavy
def test_librdkafka_renews_its_login_while_it_reads(ports: dict[str, int]) -> None:
    consumer = Consumer(
        {
            **librdkafka_login(ports["SHORT"], ALICE, PASSWORD),
            "group.id": "renewing",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["t"])
    deadline_s = time.monotonic() + 2.5 * LIFETIME_MS / 1000
    errors = []
    while time.monotonic() < deadline_s:
        message = consumer.poll(0.1)
        if message is not None and message.error() is not None:
            errors.append(message.error())
    consumer.close()
    assert errors == []


def test_a_listener_without_sasl_says_so(broker: BrokerProcess) -> None:
    with WireClient(broker.port) as client:
        assert handshake(client) == ErrorCode.ILLEGAL_SASL_STATE
        assert authenticate(client, plain()).error_code == ErrorCode.ILLEGAL_SASL_STATE


def test_a_user_that_comes_into_the_file_logs_in_without_a_restart(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("file")
    file = folder / "users"
    file.write_text(f"{ALICE}={PASSWORD}")
    settings = {
        name: value for name, value in SETTINGS.items() if not name.startswith("listener.name")
    }
    settings["strandline.sasl.plain.users.file"] = str(file)
    with BrokerProcess(folder, settings=settings) as running:
        port = listener_ports(running)["CLIENTS"]

        def may_come(user: str, password: str) -> bool:
            with WireClient(port) as client:
                handshake(client)
                return authenticate(client, plain(user, password)).error_code == 0

        assert may_come(ALICE, PASSWORD)
        assert not may_come("dave", PASSWORD)
        file.write_text(f"dave={PASSWORD}")
        eventually(lambda: may_come("dave", PASSWORD))
        assert not may_come(ALICE, PASSWORD)
        assert PASSWORD not in running.log_text()


def test_passwords_are_not_shown(broker: BrokerProcess) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    (rows,) = admin.describe_configs([ConfigResource(ConfigResource.Type.BROKER, "1")]).values()
    row = rows.result(60)["listener.name.clients.plain.sasl.jaas.config"]
    assert (row.value, row.is_sensitive) == (None, True)
    assert [synonym.value for synonym in row.synonyms.values()] == [None]
