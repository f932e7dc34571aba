"""Brokers for the tests that leave them running; each test makes topics of its own."""

from __future__ import annotations

import resource
import uuid
from collections.abc import Iterator

import pytest

from strandline.broker.protocol.messages.api_versions import ApiVersionsResponse
from tests.support.broker import BrokerProcess, eventually, faultless_broker
from tests.support.wire import WireClient
from tests.system.calls import KEEP_EVERYTHING, MakeTopic, create_topic, software
from tests.system.group_calls import new_group
from tests.system.groups.group_members import RunningMember


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with faultless_broker(tmp_path_factory.mktemp("broker"), settings=KEEP_EVERYTHING) as running:
        yield running


@pytest.fixture(scope="module")
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    """The one of all tests; of a file that says BROKER_SETTINGS one of its own, which has them."""
    settings = getattr(request.module, "BROKER_SETTINGS", None)
    if settings is None:
        yield request.getfixturevalue("shared_broker")
        return
    with faultless_broker(tmp_path_factory.mktemp("broker"), settings=settings) as running:
        yield running


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that the tests of one file may kill, if they start it again."""
    with faultless_broker(tmp_path_factory.mktemp("mortal"), settings=KEEP_EVERYTHING) as running:
        yield running


@pytest.fixture(scope="session")
def strict_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that gives little and allows less."""
    settings = {
        **KEEP_EVERYTHING,
        "auto.create.topics.enable": "false",
        "delete.topic.enable": "false",
        "num.partitions": "3",
        "max.connections": "5",
        "max.incremental.fetch.session.cache.slots": "2",
        "socket.request.max.bytes": "20000",
        "fetch.max.bytes": "30000",
    }
    with faultless_broker(tmp_path_factory.mktemp("strict"), settings=settings) as running:
        yield running


@pytest.fixture
def strict_client(strict_broker: BrokerProcess) -> Iterator[WireClient]:
    """The first connection that the broker has room for."""

    def connect() -> WireClient | None:
        connected = WireClient(strict_broker.port)
        try:
            connected.ask(software(), ApiVersionsResponse, 3)
        except ConnectionError:
            # Connections of the test before are still being closed.
            connected.close()
            return None
        return connected

    connected = eventually(connect)
    assert isinstance(connected, WireClient)
    with connected:
        yield connected


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """As many sockets as some thousand clients need: a login has 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[WireClient]:
    with WireClient(broker.port) as connected:
        yield connected


@pytest.fixture
def topic_name() -> str:
    """A name that no other test has."""
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def group_id() -> str:
    """A name that no other test has."""
    return new_group()


@pytest.fixture
def crew() -> Iterator[list[RunningMember]]:
    """The members of a test; those that it leaves behind are told to stop."""
    members: list[RunningMember] = []
    yield members
    for member in members:
        member.stopping.set()


@pytest.fixture
def make_topic(client: WireClient) -> MakeTopic:
    """Creates a topic with a fresh name: `make_topic(partitions, {config})`."""

    def create(partitions: int = 1, configs: dict[str, str] | None = None) -> str:
        name = f"t-{uuid.uuid4().hex[:12]}"
        create_topic(client, name, partitions, configs)
        return name

    return create


@pytest.fixture
def topic(make_topic: MakeTopic) -> str:
    """A fresh topic of one partition."""
    return make_topic()
