"""`strandline verify` names what is wrong in a data folder, and nothing else."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.broker.cli import main
from strandline.storage.config.log_config import LogConfig
from strandline.storage.local.formats import checkpoint
from strandline.storage.local.formats.epoch_cache import LeaderEpochCache
from strandline.storage.local.inspect.verify import (
    FileDamage,
    Verified,
    data_bytes,
    verify_folders,
)
from strandline.storage.local.log_dirs.log_dirs import LogDirs
from strandline.storage.records.batch.marker import MarkerType
from tests.support.manual_clock import ManualClock
from tests.unit.storage.local.builders import (
    NOW_MS,
    PARTITION,
    TOPIC_ID,
    append,
    append_marker,
    batch,
    fill,
)
from tests.unit.storage.local.compaction import CompactedLog

CONFIG = LogConfig(segment_bytes=4000, index_interval_bytes=200)
KAFKA_FOLDER = Path(__file__).parents[1] / "kafka_folder"


def fill_folder(data: Path, *, clean: bool = True) -> Path:
    """Several segments with producers, an aborted transaction and two epochs; the log's folder."""
    dirs = LogDirs.open([data], node_id=1, cluster_id=None, clock=ManualClock(NOW_MS))
    log = dirs.create_log(PARTITION, TOPIC_ID, CONFIG)
    for sequence in range(3):
        append(log, batch(producer_id=3, producer_epoch=0, base_sequence=sequence))
    fill(log, 10)
    append(log, batch(2, producer_id=4, producer_epoch=0, base_sequence=0, transactional=True))
    append_marker(log, MarkerType.ABORT, producer_id=4)
    append(log, batch(1), leader_epoch=2)
    for _ in range(10):
        append(log, batch(10, value_bytes=50), leader_epoch=2)
    assert len(log.segments) > 2
    if clean:
        dirs.close()
    else:
        log.flush()
        dirs.write_checkpoints({})
        append(log, batch(10), leader_epoch=2)
        for directory in dirs.directories:
            directory.unlock()
    return data / str(PARTITION)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return fill_folder(tmp_path / "data")


def verify(folder: Path) -> Verified:
    read: list[int] = []
    verified = verify_folders([folder.parent], on_bytes=read.append)
    assert sum(read) == data_bytes([folder.parent])
    return verified


def test_a_whole_folder_has_no_findings(folder: Path) -> None:
    verified = verify(folder)
    assert verified.findings == []
    assert (verified.partitions, verified.is_in_use) == (1, False)
    assert verified.records == 3 + 100 + 3 + 1 + 100
    assert verified.segments > 2


def test_epochs_that_went_with_the_records_below_the_log_start_are_no_finding(
    folder: Path,
) -> None:
    """The log start lies inside a segment, whose first batches are there still."""
    epochs = LeaderEpochCache.open(folder / checkpoint.LEADER_EPOCHS)
    epochs.truncate_from_start(50)
    epochs.write(sync=False)
    assert {found.path.name for found in verify(folder).findings} == {checkpoint.LEADER_EPOCHS}
    checkpoint.write_offsets(folder.parent / checkpoint.LOG_STARTS, {PARTITION: 50})
    assert verify(folder).findings == []


def test_a_snapshot_of_batches_that_were_compacted_away_is_no_finding(tmp_path: Path) -> None:
    """It was made at a roll, before the last batches of a producer lost their records."""
    compacted = CompactedLog(tmp_path)
    producer = {"producer_id": 3, "producer_epoch": 0}
    for number in range(3):
        # Two such segments are not made one.
        compacted.append((b"big %d" % number, b"v" * 1500))
        compacted.append((b"own %d" % number, b"v"), **producer, base_sequence=2 * number)
        compacted.append((b"shared", b"v"), **producer, base_sequence=2 * number + 1)
        compacted.seal()
    compacted.append((b"shared", b"last"))
    compacted.seal_and_clean()
    compacted.dirs.close()
    names = [path.name for path in compacted.log.directory.glob("*.snapshot")]
    assert len(names) > 1, names
    assert verify(compacted.log.directory).findings == []


def test_indexes_that_a_kill_of_kafka_left_at_their_full_size_are_no_finding(
    folder: Path,
) -> None:
    for suffix in ("index", "timeindex"):
        path = max(folder.glob(f"*.{suffix}"))
        path.write_bytes(path.read_bytes() + bytes(24_000))
    verified = verify(folder)
    assert verified.findings == []


def test_a_folder_of_apache_kafka_has_no_findings() -> None:
    verified = verify_folders([KAFKA_FOLDER])
    assert verified.findings == []
    assert verified.records > 100


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x40
    path.write_bytes(content)


def cut(path: Path, count: int) -> None:
    path.write_bytes(path.read_bytes()[:-count])


def first(folder: Path, suffix: str) -> Path:
    return sorted(folder.glob(f"*{suffix}"))[0]


def move_times(path: Path) -> None:
    content = bytearray(path.read_bytes())
    (time_ms,) = struct.unpack_from(">q", content)
    struct.pack_into(">q", content, 0, time_ms - 1)
    path.write_bytes(content)


DAMAGES: dict[str, tuple[Callable[[Path], object], FileDamage, str]] = {
    "record": (lambda f: flip(first(f, ".log"), 100), FileDamage.DATA, ".log"),
    "offset": (lambda f: flip(first(f, ".log"), 7), FileDamage.DATA, ".log"),
    "torn": (lambda f: cut(first(f, ".log"), 3), FileDamage.DATA, ".log"),
    "segment gone": (lambda f: sorted(f.glob("*.log"))[1].unlink(), FileDamage.DATA, ".log"),
    "index": (lambda f: flip(first(f, ".index"), 7), FileDamage.CACHE, ".index"),
    "index torn": (lambda f: cut(first(f, ".index"), 3), FileDamage.CACHE, ".index"),
    "index gone": (lambda f: first(f, ".index").unlink(), FileDamage.CACHE, ".index"),
    "time index": (lambda f: move_times(first(f, ".timeindex")), FileDamage.CACHE, ".timeindex"),
    "time index short": (
        lambda f: cut(first(f, ".timeindex"), 12),
        FileDamage.CACHE,
        ".timeindex",
    ),
    "transactions": (lambda f: flip(first(f, ".txnindex"), 5), FileDamage.CACHE, ".txnindex"),
    "transactions gone": (
        lambda f: first(f, ".txnindex").unlink(),
        FileDamage.CACHE,
        ".txnindex",
    ),
    "snapshot": (lambda f: flip(first(f, ".snapshot"), 20), FileDamage.CACHE, ".snapshot"),
    "epochs": (
        lambda f: (f / checkpoint.LEADER_EPOCHS).write_text("0\n1\n0 0\n"),
        FileDamage.CACHE,
        checkpoint.LEADER_EPOCHS,
    ),
    "topic id": (
        lambda f: (f / checkpoint.PARTITION_METADATA).write_text("version: 9"),
        FileDamage.FOLDER,
        checkpoint.PARTITION_METADATA,
    ),
    "recovery point": (
        lambda f: (f.parent / checkpoint.RECOVERY_POINTS).write_text("0\n1\ntopic 0 999999\n"),
        FileDamage.CHECKPOINT,
        checkpoint.RECOVERY_POINTS,
    ),
    "log starts": (
        lambda f: (f.parent / checkpoint.LOG_STARTS).write_text("junk"),
        FileDamage.CHECKPOINT,
        checkpoint.LOG_STARTS,
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_each_damage_is_found_where_it_is(folder: Path, name: str) -> None:
    damage_it, damage, where = DAMAGES[name]
    damage_it(folder)
    findings = verify(folder).findings
    assert findings, name
    assert {finding.damage for finding in findings} == {damage}
    assert all(finding.path.name.endswith(where) for finding in findings), findings


def test_what_a_crash_leaves_is_told_apart_from_damage(tmp_path: Path) -> None:
    folder = fill_folder(tmp_path / "data", clean=False)
    assert verify(folder).findings == []
    cut(sorted(folder.glob("*.log"))[-1], 5)
    assert {finding.damage for finding in verify(folder).findings} == {FileDamage.TAIL}
    flip(first(folder, ".log"), 100)
    assert FileDamage.DATA in {finding.damage for finding in verify(folder).findings}


def test_what_others_left_in_a_folder_is_not_taken_for_a_segment(folder: Path) -> None:
    """A broker takes no notice of them either."""
    for name in ("33.log", "\u0663\u0663.log", "\u0663" * 20 + ".log", "junk.log", "core.7"):
        (folder / name).write_bytes(b"somebody's")
    (folder / "00000000000000000007.log.bak").mkdir()
    (folder.parent / "lost+found").mkdir()
    (folder.parent / "itself").symlink_to(folder.parent)
    assert verify(folder).findings == []


def test_a_partition_in_two_folders_is_found(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "other" / folder.name)
    verified = verify_folders([folder.parent, tmp_path / "other"])
    assert {finding.damage for finding in verified.findings} == {FileDamage.FOLDER}


def test_a_running_broker_is_left_out_where_it_writes(tmp_path: Path) -> None:
    dirs = LogDirs.open([tmp_path], node_id=1, cluster_id=None, clock=ManualClock(NOW_MS))
    fill(dirs.create_log(PARTITION, TOPIC_ID, CONFIG), 20)
    verified = verify_folders([tmp_path])
    assert (verified.findings, verified.is_in_use, verified.records) == ([], True, 200)
    dirs.close()
    assert not verify_folders([tmp_path]).is_in_use


def test_the_command_says_what_to_do_and_ends_with_3(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(folder.parent)]) == 0
    assert "1 partition, " in capsys.readouterr().out
    first(folder, ".index").unlink()
    assert main(["verify", str(folder.parent)]) == 3
    printed = capsys.readouterr().out
    assert "the next start makes it again" in printed
    assert "1 finding" in printed
    assert main(["verify", str(tmp_path / "nowhere")]) == 2
