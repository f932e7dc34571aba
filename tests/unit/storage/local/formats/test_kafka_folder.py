"""A partition folder that Apache Kafka 3.9.1 wrote, and what we make of it.

`kafka_folder/golden-0` was filled by librdkafka: idempotent producers with every codec, null keys
and values, headers, two transactional producers that commit and abort; `segment.bytes=3000`,
`index.interval.bytes=256`. Records carry a fixed time and markers the broker's, so segments were
closed by size and by time.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from strandline.storage.config.log_config import LogConfig
from strandline.storage.local.formats.producer_state import iter_snapshot
from strandline.storage.local.log.log import AppendOrigin, LocalLog
from strandline.storage.records.batch.record import iter_records
from tests.support.lone_replica import append_alone
from tests.unit.storage.local.builders import assert_dense, headers, open_log, read_bytes

KAFKAS = Path(__file__).parents[1] / "kafka_folder" / "golden-0"
CONFIG = LogConfig(segment_bytes=3000, index_interval_bytes=256)
REBUILDABLE = {".index", ".timeindex", ".txnindex", ".snapshot"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(KAFKAS, tmp_path / "golden-0"))


def content_of(path: Path) -> object:
    """The bytes of a file; a snapshot without its order, which is that of a hash table."""
    if path.suffix == ".snapshot":
        return sorted(iter_snapshot(path.read_bytes()))
    return path.read_bytes()


def files_of(folder: Path) -> dict[str, object]:
    return {
        path.name: content_of(path)
        for path in folder.iterdir()
        if path.name != "partition.metadata"
    }


def assert_all_is_there(log: LocalLog) -> None:
    assert_dense(log)
    assert (log.start_offset, log.end_offset) == (0, 133)
    assert log.last_stable_offset == 133
    content = read_bytes(log)
    assert content == b"".join(path.read_bytes() for path in sorted(KAFKAS.glob("*.log")))
    position = record_count = 0
    for header in headers(content):
        record_count += len(list(iter_records(content, header, position)))
        position += header.size_bytes
    assert record_count == 133
    assert [
        (entry.producer_id, entry.first_offset, entry.last_offset)
        for entry in log.aborted_transactions(0, 133)
    ] == [
        (1001, 6, 20),
        (1000, 21, 32),
        (1001, 38, 53),
        (1000, 54, 64),
        (1001, 73, 85),
        (1000, 87, 98),
        (1001, 104, 114),
        (1000, 121, 132),
    ]


def test_a_clean_folder_of_kafkas_is_opened_as_it_is(folder: Path) -> None:
    log = open_log(folder, config=CONFIG)
    report = log.recovery_report
    assert not report.problems
    assert (report.indexes_rebuilt, report.producer_batches_replayed) == (0, 0)
    assert_all_is_there(log)
    log.close()
    assert files_of(folder) == files_of(KAFKAS)


def test_what_recovery_rebuilds_is_what_kafka_had_written(folder: Path) -> None:
    for path in folder.iterdir():
        if path.suffix in REBUILDABLE or path.name == "leader-epoch-checkpoint":
            path.unlink()
    log = open_log(folder, config=CONFIG, clean_shutdown=False)
    assert_all_is_there(log)
    log.close()
    assert files_of(folder) == files_of(KAFKAS)


def test_the_same_batches_make_the_same_files(tmp_path: Path) -> None:
    """Sizes, times and intervals decide about segments and index entries as they do in Kafka."""
    source = b"".join(path.read_bytes() for path in sorted(KAFKAS.glob("*.log")))
    log = open_log(tmp_path / "log", config=CONFIG)
    position = 0
    for header in headers(source):
        records = memoryview(bytearray(source[position : position + header.size_bytes]))
        append_alone(log, records, leader_epoch=0, origin=AppendOrigin.REPLICATION)
        position += header.size_bytes
    assert_all_is_there(log)
    log.close()
    assert files_of(tmp_path / "log") == files_of(KAFKAS)
