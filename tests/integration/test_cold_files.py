"""A second tier in a local folder, over real sockets: sent from its files, if they are whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.integration.calls import (
    append,
    assert_serves,
    batch,
    create_topic,
    fetch,
    fetched_bytes,
    offset_at,
    read_all,
)
from tests.support.broker import BrokerProcess, eventually
from tests.support.wire import WireClient

pytestmark = pytest.mark.slow

EARLIEST_LOCAL = -4
TOPIC = "tiered"
BATCHES = 12
RECORDS = 50


def test_files_cut_off_under_a_running_broker_are_an_error_and_mended_ones_are_read(
    tmp_path: Path,
) -> None:
    settings = {
        "remote.log.storage.system.enable": "true",
        "strandline.remote.url": f"file://{tmp_path / 'archive'}",
        "remote.log.manager.task.interval.ms": "200",
        "log.retention.check.interval.ms": "200",
        "log.initial.task.delay.ms": "200",
        # Objects stay the files that they are.
        "strandline.remote.merge.target.bytes": "0",
    }
    config = {
        "remote.storage.enable": "true",
        "segment.bytes": "1048576",
        "local.retention.bytes": "1",
        "retention.ms": "-1",
        "file.delete.delay.ms": "0",
    }
    with BrokerProcess(tmp_path, settings=settings) as broker, WireClient(broker.port) as client:
        create_topic(client, TOPIC, 1, config)
        append(client, TOPIC, *([batch(RECORDS, value=bytes(8000))] * BATCHES))
        hot = fetched_bytes(fetch(client, TOPIC, 0))
        eventually(lambda: offset_at(client, TOPIC, EARLIEST_LOCAL).offset >= 400)

        assert fetched_bytes(fetch(client, TOPIC, 0)) == hot
        assert any(".log" in name and "archive" in name for name in broker.open_files()), (
            "no file of the archive is open"
        )

        objects = sorted((tmp_path / "archive").glob("topics/**/*.log"))
        whole = {path: path.read_bytes() for path in objects}
        for path in objects:
            os.truncate(path, 100_000)
        answer = fetch(client, TOPIC, 0)
        assert answer.error_code != 0
        assert fetched_bytes(answer) == b""
        assert_serves(broker.port)

        for path, content in whole.items():
            mended = path.with_suffix(".mended")
            mended.write_bytes(content)
            mended.rename(path)
        assert fetched_bytes(fetch(client, TOPIC, 0)) == hot
        assert [r.offset for r in read_all(client, TOPIC)] == list(range(BATCHES * RECORDS))
        assert "Traceback" not in broker.log_text()
