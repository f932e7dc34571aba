"""A second tier in a local folder, over real sockets: sent from its files, if they are whole."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.support.broker import BrokerProcess, eventually
from tests.support.wire import WireClient
from tests.system.calls import (
    EARLIEST,
    append,
    assert_serves,
    batch,
    create_topic,
    fetch,
    fetched_bytes,
    offset_at,
    read_all,
)

pytestmark = pytest.mark.slow

EARLIEST_LOCAL = -4
TOPIC = "tiered"
BATCHES = 12
RECORDS = 50
CONFIG = {
    "remote.storage.enable": "true",
    "segment.bytes": "1048576",
    "local.retention.bytes": "1",
    "retention.ms": "-1",
    "file.delete.delay.ms": "0",
}


def settings_for(archive: Path) -> dict[str, str]:
    return {
        "remote.log.storage.system.enable": "true",
        "strandline.remote.url": f"file://{archive}",
        "remote.log.manager.task.interval.ms": "200",
        "log.retention.check.interval.ms": "200",
        "log.initial.task.delay.ms": "200",
        # Objects stay the files that they are.
        "strandline.remote.merge.target.bytes": "0",
        # A read elsewhere drops what was downloaded before.
        "strandline.remote.cache.memory.bytes": "0",
    }


def test_files_cut_off_under_a_running_broker_are_an_error_and_mended_ones_are_read(
    tmp_path: Path,
) -> None:
    settings = settings_for(tmp_path / "archive")
    with BrokerProcess(tmp_path, settings=settings) as broker, WireClient(broker.port) as client:
        create_topic(client, TOPIC, 1, CONFIG)
        append(client, TOPIC, *([batch(RECORDS, value=bytes(8000))] * BATCHES))
        hot = fetched_bytes(fetch(client, TOPIC, 0))
        eventually(lambda: offset_at(client, TOPIC, EARLIEST_LOCAL).offset >= 400)

        # What takes longer than a fetch waits comes with the next one, and so does an error.
        eventually(lambda: fetched_bytes(fetch(client, TOPIC, 0)) == hot)
        eventually(lambda: fetched_bytes(fetch(client, TOPIC, 300)) != b"")

        objects = sorted((tmp_path / "archive").glob("topics/**/*.log"))
        whole = {path: path.read_bytes() for path in objects}
        for path in objects:
            os.truncate(path, 100_000)

        def refused() -> bool:
            answer = fetch(client, TOPIC, 0)
            assert fetched_bytes(answer) == b""
            return answer.error_code != 0

        eventually(refused)
        assert_serves(broker.port)

        for path, content in whole.items():
            mended = path.with_suffix(".mended")
            mended.write_bytes(content)
            mended.rename(path)
        eventually(lambda: fetched_bytes(fetch(client, TOPIC, 0)) == hot)
        assert [r.offset for r in read_all(client, TOPIC)] == list(range(BATCHES * RECORDS))
        assert "Traceback" not in broker.log_text()


def test_an_archive_whose_volume_is_not_mounted_at_the_start_is_waited_for(tmp_path: Path) -> None:
    """Its empty mount point is no new archive: nothing is copied into it, nothing freed for it."""
    archive, away = tmp_path / "archive", tmp_path / "away"
    with BrokerProcess(tmp_path, settings=settings_for(archive)) as broker:
        with WireClient(broker.port) as client:
            create_topic(client, TOPIC, 1, CONFIG)
            append(client, TOPIC, *([batch(RECORDS, value=bytes(8000))] * BATCHES))
            eventually(lambda: offset_at(client, TOPIC, EARLIEST_LOCAL).offset >= 400)
        broker.stop()
        archive.rename(away)
        archive.mkdir()
        broker.start()
        with WireClient(broker.port) as client:
            eventually(lambda: "is its volume mounted?" in broker.log_text())
            append(client, TOPIC, *([batch(RECORDS, value=bytes(8000))] * BATCHES))
            assert offset_at(client, TOPIC, EARLIEST).offset == 0
            assert list(archive.iterdir()) == []
            away.rename(archive)
            end = 2 * BATCHES * RECORDS
            eventually(lambda: offset_at(client, TOPIC, EARLIEST_LOCAL).offset >= end - 200)
            assert [r.offset for r in read_all(client, TOPIC)] == list(range(end))


def test_only_the_brokers_own_user_reads_its_files(tmp_path: Path) -> None:
    """Whatever the umask it was started with: they hold records, and keys of users."""
    settings = settings_for(tmp_path / "archive")
    broker = BrokerProcess(tmp_path, settings=settings)
    before = os.umask(0)
    try:
        broker.start()
    finally:
        os.umask(before)
    try:
        with WireClient(broker.port) as client:
            create_topic(client, TOPIC, 1, CONFIG)
            append(client, TOPIC, *([batch(RECORDS, value=bytes(8000))] * BATCHES))
            eventually(lambda: offset_at(client, TOPIC, EARLIEST_LOCAL).offset >= 400)
        assert broker.stop() == 0
    finally:
        broker.kill()
    found = [broker.data, tmp_path / "archive", *broker.data.rglob("*")]
    found += (tmp_path / "archive").rglob("*")
    assert len(found) > 20
    open_to_others = [path for path in found if stat.S_IMODE(path.stat().st_mode) & 0o077]
    assert open_to_others == []
