"""One broker for the tests that leave it running; each test makes topics of its own."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest

from tests.integration.calls import create_topic
from tests.support.broker import BrokerProcess
from tests.support.wire import WireClient

# Records of the tests have timestamps of long ago; no retention may take them meanwhile.
KEEP_EVERYTHING = {"log.retention.ms": "-1"}
MakeTopic = Callable[..., str]


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker"), settings=KEEP_EVERYTHING) as running:
        yield running
        assert running.running, running.log_text()[-4000:]
        # Whatever was sent to it: a request may be refused, but no handler may fall over it.
        assert "Traceback" not in running.log_text(), running.log_text()[-4000:]


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[WireClient]:
    with WireClient(broker.port) as connected:
        yield connected


@pytest.fixture
def topic_name() -> str:
    """A name that no other test has."""
    return f"t-{uuid.uuid4().hex[:12]}"


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
