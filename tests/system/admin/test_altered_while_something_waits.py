"""What is altered reaches what waits already: nothing waits for the limit of before.

Every interval of this broker is an hour, so what happens here was woken.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.broker.protocol.messages.incremental_alter_configs import ConfigOperation
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from tests.support.broker import BrokerProcess, eventually
from tests.support.wire import WireClient
from tests.system.calls import (
    FIRST_TIMESTAMP_MS,
    KEEP_EVERYTHING,
    append,
    batch,
    create_topic,
)
from tests.system.config_calls import alter

pytestmark = pytest.mark.slow

HOUR_MS = "3600000"
UPLOAD_MS = "strandline.remote.active.segment.upload.ms"
COMPACTED = {"cleanup.policy": "compact", "segment.ms": "1", "min.cleanable.dirty.ratio": "0"}


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("waiting")
    settings = {
        **KEEP_EVERYTHING,
        "remote.log.storage.system.enable": "true",
        "strandline.remote.url": f"file://{folder}/archive",
        "remote.log.manager.task.interval.ms": HOUR_MS,
        "log.cleaner.backoff.ms": HOUR_MS,
        "log.initial.task.delay.ms": "0",
    }
    with BrokerProcess(folder, settings=settings) as broker:
        yield broker


@pytest.fixture
def client(waiting: BrokerProcess) -> Iterator[WireClient]:
    with WireClient(waiting.port) as connected:
        yield connected


def set_for_topic(client: WireClient, topic: str, key: str, value: str) -> None:
    operation = (key, ConfigOperation.SET, value)
    result = alter(client, topic, operation, resource_type=ConfigResourceType.TOPIC)
    assert result.error_code == 0, result


def parts(broker: BrokerProcess, topic: str) -> list[Path]:
    return list(broker.folder.glob(f"archive/topics/{topic}-*/0/*.tail"))


def test_records_that_wait_are_uploaded_when_the_limit_of_their_topic_is_lowered(
    waiting: BrokerProcess, client: WireClient
) -> None:
    create_topic(client, "topic", configs={"remote.storage.enable": "true"})
    append(client, "topic", batch())
    set_for_topic(client, "topic", UPLOAD_MS, "200")
    eventually(lambda: parts(waiting, "topic"))


def test_records_that_wait_are_uploaded_when_the_default_is_lowered(
    waiting: BrokerProcess, client: WireClient
) -> None:
    create_topic(client, "default", configs={"remote.storage.enable": "true"})
    append(client, "default", batch())
    assert alter(client, "", (UPLOAD_MS, ConfigOperation.SET, "200")).error_code == 0
    eventually(lambda: parts(waiting, "default"))
    assert alter(client, "", (UPLOAD_MS, ConfigOperation.DELETE, None)).error_code == 0


def test_a_topic_that_is_made_with_a_short_limit_wakes_the_schedule(
    waiting: BrokerProcess, client: WireClient
) -> None:
    create_topic(client, "made", configs={"remote.storage.enable": "true", UPLOAD_MS: "200"})
    append(client, "made", batch())
    eventually(lambda: parts(waiting, "made"))


def test_the_cleaner_wakes_when_its_back_off_is_lowered(
    waiting: BrokerProcess, client: WireClient
) -> None:
    create_topic(client, "compacted", configs=COMPACTED)
    # Each closes the segment of the one before. The cleaner has looked, and found nothing.
    for second in range(3):
        later_ms = FIRST_TIMESTAMP_MS + 1000 * second
        append(client, "compacted", batch(first_timestamp_ms=later_ms))
    key = "log.cleaner.backoff.ms"
    assert alter(client, "1", (key, ConfigOperation.SET, "100")).error_code == 0
    eventually(lambda: "log compacted partition=compacted-0" in waiting.log_text())
    assert alter(client, "1", (key, ConfigOperation.DELETE, None)).error_code == 0
