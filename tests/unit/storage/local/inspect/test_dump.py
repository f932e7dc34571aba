"""`dump-log`: every file of a log folder in words, damage included."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.storage.config.log_config import LogConfig
from strandline.storage.errors import DiskError, UnsupportedFormat
from strandline.storage.local.inspect.dump import dump_log
from strandline.storage.local.log.log import LocalLog
from strandline.storage.records.batch.batch import CRC_START
from strandline.storage.records.batch.marker import MarkerType
from strandline.storage.records.batch.record import Header, Record, encode_batch
from strandline.storage.records.compression import Codec
from tests.unit.storage.local.builders import (
    NOW_MS,
    append,
    append_marker,
    batch,
    open_log,
    patched,
)


@pytest.fixture
def log(tmp_path: Path) -> LocalLog:
    log = open_log(tmp_path / "t-0", config=LogConfig(index_interval_bytes=0))
    append(log, batch(2, codec=Codec.ZSTD), leader_epoch=3)
    records = batch(3, producer_id=7, producer_epoch=0, base_sequence=5, transactional=True)
    append(log, records, leader_epoch=3)
    append_marker(log, MarkerType.ABORT, producer_id=7)
    log.close()
    return log


def dump(path: Path, *, verify: bool = True, print_records: bool = False) -> list[str]:
    return list(dump_log(path, verify=verify, print_records=print_records))


def test_a_log_is_shown_batch_by_batch(log: LocalLog) -> None:
    lines = dump(log.active_segment.log_path)
    assert len(lines) == 4
    assert lines[0].startswith("batch offsets 0..1 records 2 position 0 bytes ")
    assert "codec zstd" in lines[0]
    assert "epoch 3" in lines[0]
    assert "producer 7/0 sequences 5..7 transactional" in lines[1]
    assert lines[2].endswith("sequences -1..-1 transactional control abort coordinator 0")
    size_bytes = log.active_segment.size_bytes
    assert lines[3] == f"3 batches, 6 records in {size_bytes:,} bytes; CRCs verified"


def test_records_are_shown_if_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000005.log"
    path.write_bytes(
        encode_batch(
            [
                Record(offset=5, timestamp_ms=NOW_MS, key=None, value=b"\x1b[31mred\xff"),
                Record(offset=6, timestamp_ms=NOW_MS, key="ключ".encode(), value=b"x" * 300),
                Record(
                    offset=7,
                    timestamp_ms=NOW_MS,
                    key=b"k",
                    value=None,
                    headers=(Header("h", b"1"), Header("h", None)),
                ),
            ]
        )
    )
    lines = dump(path, print_records=True)
    assert lines[1] == f"| offset 5 time {NOW_MS} key null value '\\\\x1b[31mred\\\\xff'"
    assert lines[2].startswith(f"| offset 6 time {NOW_MS} key 'ключ' value 'xxxx")
    assert lines[2].endswith("... 100 more bytes")
    assert lines[3] == f"| offset 7 time {NOW_MS} key 'k' value null header h='1' header h=null"
    assert "\x1b" not in "".join(lines)


def test_damage_in_a_log_is_shown_where_it_is(log: LocalLog) -> None:
    path = log.active_segment.log_path
    content = bytearray(path.read_bytes())
    second_bytes = len(batch(2, codec=Codec.ZSTD))
    content[second_bytes + 70] ^= 1
    path.write_bytes(content)
    lines = dump(path)
    assert lines[1].startswith(f"DAMAGED at position {second_bytes} of {len(content)}: CRC")
    assert lines[2].startswith("1 batch, 2 records")
    assert dump(path, verify=False)[-1].startswith("3 batches, 6 records")


def test_a_codec_that_nobody_knows_ends_the_records_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / f"{0:020d}.log"
    unknown = patched(batch(), CRC_START, ">h", 7)
    path.write_bytes(bytes(batch()) + bytes(unknown))
    lines = dump(path, print_records=True)
    assert "codec 7" in lines[2]
    assert lines[3].startswith(f"DAMAGED at position {len(unknown)} of {2 * len(unknown)}: ")
    assert lines[4].startswith("1 batch, 1 record")


def test_the_small_files_are_shown_too(log: LocalLog) -> None:
    segment = log.active_segment
    assert dump(segment.index_path) == [
        f"last offset 4 of the batch at position {len(batch(2, codec=Codec.ZSTD))}",
        f"last offset 5 of the batch at position {segment.size_bytes - 78}",
        "2 entries",
    ]
    assert dump(segment.time_index_path) == [
        f"time {NOW_MS + 2} reached at offset 4",
        "1 entry",
    ]
    assert dump(segment.txn_index_path) == ["producer 7 aborted 2..5 last stable offset 6"]
    snapshot = segment.directory / f"{6:020d}.snapshot"
    assert dump(snapshot) == [
        "producer 7 epoch 0 last sequence 7 last offset 4 offset delta 2 "
        f"time {NOW_MS} coordinator epoch 0 transaction since -1"
    ]
    assert dump(segment.directory / "leader-epoch-checkpoint") == ["epoch 3 from offset 0"]


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex", ".snapshot"])
def test_damage_in_the_small_files_is_shown(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"{0:020d}{suffix}"
    path.write_bytes(b"\x00\x01" * 50 + b"\x07")
    assert "DAMAGED" in "\n".join(dump(path))


def test_files_are_known_by_their_archive_and_deleted_names(log: LocalLog, tmp_path: Path) -> None:
    content = log.active_segment.log_path.read_bytes()
    for name in ("00000000000000000000-3-a1b2.log", "00000000000000000000.log.deleted"):
        path = tmp_path / name
        path.write_bytes(content)
        assert len(dump(path)) == 4


def test_a_file_of_another_kind_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("x")
    with pytest.raises(UnsupportedFormat, match=r"notes\.txt: .* this is none of \.log"):
        dump(path)
    with pytest.raises(DiskError):
        dump(tmp_path / "none.log")
