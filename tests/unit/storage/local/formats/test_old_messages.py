"""Folders with segments of message formats v0 and v1, as an old Kafka left them."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from strandline.storage.local.inspect.dump import dump_log
from strandline.storage.records.batch.any_batch import iter_records, walk
from strandline.storage.records.batch.record import Record
from strandline.storage.tiering.copy.inspection import inspect_segment
from tests.support.old_formats import CODECS, message_set
from tests.unit.storage.local.builders import NOW_MS, batch, open_log, read_bytes

SHAPES = list(product((0, 1), CODECS.values()))
SET_RECORDS = 7
SETS = 15


def write_old_segment(folder: Path, magic: int, codec: int) -> list[Record]:
    """A segment of many sets at offset 0; no index, no snapshot: those were another version's."""
    folder.mkdir()
    records: list[Record] = []
    content = b""
    for _ in range(SETS):
        run = [
            Record(
                offset=len(records) + i,
                timestamp_ms=NOW_MS + 2 * (len(records) + i) if magic else -1,
                key=b"k%d" % i,
                value=b"v" * 40,
            )
            for i in range(SET_RECORDS)
        ]
        content += message_set(run, magic=magic, codec=codec)
        records += run
    (folder / f"{0:020d}.log").write_bytes(content)
    return records


def read_records(content: bytes) -> list[Record]:
    return [
        record
        for found in walk(content)
        for record in iter_records(content, found.header, found.position)
    ]


@pytest.mark.parametrize(("magic", "codec"), SHAPES)
def test_an_old_segment_is_taken_over_read_and_appended_to(
    tmp_path: Path, magic: int, codec: int
) -> None:
    clean = codec != CODECS["snappy"]
    expected = write_old_segment(tmp_path / "topic-0", magic, codec)
    log = open_log(tmp_path / "topic-0", clean_shutdown=clean)
    assert log.recovery_report.bytes_cut == 0
    assert (log.start_offset, log.end_offset) == (0, len(expected))
    log.append(batch(3), leader_epoch=4)
    for start in range(0, len(expected), 31):
        content = read_bytes(log, start_offset=start, bytes_max=700)
        found = read_records(content)
        assert [record.offset for record in found if record.offset >= start] == list(
            range(start, len(expected) + 3)
        )
        assert found[: len(expected) - found[0].offset] == expected[found[0].offset :]
    log.close()
    again = open_log(tmp_path / "topic-0", clean_shutdown=True)
    assert again.recovery_report.problems == []
    assert again.end_offset == len(expected) + 3


@pytest.mark.parametrize("codec", CODECS.values())
def test_old_records_are_found_by_their_time(tmp_path: Path, codec: int) -> None:
    expected = write_old_segment(tmp_path / "topic-0", 1, codec)
    log = open_log(tmp_path / "topic-0", clean_shutdown=False)
    for record in expected[::17]:
        for early_ms in (0, 1):
            found = log.find_timestamp(record.timestamp_ms - early_ms)
            assert found is not None
            assert (found.timestamp_ms, found.offset) == (record.timestamp_ms, record.offset)
    latest = log.max_timestamp()
    assert latest is not None
    assert latest.offset == expected[-1].offset


@pytest.mark.parametrize(("magic", "codec"), SHAPES)
def test_a_torn_old_segment_is_cut_at_its_last_whole_message(
    tmp_path: Path, magic: int, codec: int
) -> None:
    expected = write_old_segment(tmp_path / "topic-0", magic, codec)
    path = tmp_path / "topic-0" / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:-5])
    log = open_log(tmp_path / "topic-0", clean_shutdown=False)
    assert log.recovery_report.bytes_cut > 0
    assert log.end_offset == len(expected) - (SET_RECORDS if codec else 1)
    assert read_records(read_bytes(log)) == expected[: log.end_offset]


@pytest.mark.parametrize(("magic", "codec"), SHAPES)
def test_an_old_segment_can_be_archived_and_dumped(tmp_path: Path, magic: int, codec: int) -> None:
    expected = write_old_segment(tmp_path / "topic-0", magic, codec)
    path = tmp_path / "topic-0" / f"{0:020d}.log"
    facts = inspect_segment(path, base_offset=0, end_offset=len(expected))
    assert facts.record_count == len(expected)
    assert facts.unreadable_batch_count == 0
    assert facts.bounds == (expected[0].timestamp_ms, expected[-1].timestamp_ms)
    assert [start.epoch for start in facts.leader_epochs] == [0]
    lines = list(dump_log(path, verify=True, print_records=True))
    assert lines[-1].startswith(f"{SETS if codec else len(expected)} batches, {len(expected)} rec")
