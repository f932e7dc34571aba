"""Any history of appends, cut at any byte by a crash, leaves a dense prefix of itself."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.storage.config.log_config import LogConfig
from strandline.storage.local.log.log import LocalLog
from strandline.storage.model import TimestampOffset
from strandline.storage.records.batch.marker import MarkerType
from strandline.storage.records.batch.record import iter_records
from strandline.storage.records.compression import Codec
from tests.unit.storage.local.builders import (
    NOW_MS,
    append,
    append_marker,
    assert_dense,
    batch,
    fill,
    headers,
    log_files,
    open_log,
    read_bytes,
)

CONFIG = LogConfig(segment_bytes=3000, index_interval_bytes=200)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One batch, or the end of a producer's transaction, or a flush."""

    record_count: int
    value_bytes: int
    time_ms: int
    codec: Codec
    producer_id: int
    transactional: bool
    epoch_step: int
    action: str


STEPS = st.lists(
    st.builds(
        Step,
        record_count=st.integers(1, 6),
        value_bytes=st.sampled_from([0, 1, 30, 200]),
        time_ms=st.integers(0, 1000),
        codec=st.sampled_from(list(Codec)),
        producer_id=st.integers(-1, 2),
        transactional=st.booleans(),
        epoch_step=st.sampled_from([0, 0, 0, 1]),
        action=st.sampled_from(["append"] * 12 + ["commit", "abort", "flush", "roll"]),
    ),
    min_size=1,
    max_size=40,
)


class History:
    """Runs steps and keeps in mind what the log must know."""

    def __init__(self, log: LocalLog) -> None:
        self.log = log
        self.leader_epoch = 0
        self.sequences: dict[int, int] = {}
        self.open_transactions: set[int] = set()

    def run(self, steps: list[Step]) -> None:
        for step in steps:
            self.leader_epoch += step.epoch_step
            if step.action == "flush":
                self.log.flush()
            elif step.action == "roll":
                self.log.roll()
            elif step.action == "append":
                self._append(step)
            elif self.open_transactions:
                producer_id = min(self.open_transactions)
                self.open_transactions.discard(producer_id)
                kind = MarkerType.COMMIT if step.action == "commit" else MarkerType.ABORT
                append_marker(self.log, kind, producer_id=producer_id)

    def _append(self, step: Step) -> None:
        times = [NOW_MS + (step.time_ms + i * 37) % 1000 for i in range(step.record_count)]
        has_producer = step.producer_id >= 0
        transactional = has_producer and (
            step.transactional or step.producer_id in self.open_transactions
        )
        sequence = self.sequences.get(step.producer_id, 0)
        records = batch(
            timestamps_ms=times,
            value_bytes=step.value_bytes,
            codec=step.codec,
            producer_id=step.producer_id,
            producer_epoch=0 if has_producer else -1,
            base_sequence=sequence if has_producer else -1,
            transactional=transactional,
        )
        append(self.log, records, leader_epoch=self.leader_epoch)
        if has_producer:
            self.sequences[step.producer_id] = sequence + step.record_count
        if transactional:
            self.open_transactions.add(step.producer_id)


def first_times(log: LocalLog) -> list[int | None]:
    found = [log.find_timestamp(NOW_MS + wanted) for wanted in range(0, 1001, 50)]
    return [time.offset if time else None for time in found]


def expected_max_timestamp(content: bytes) -> TimestampOffset | None:
    """The first of the records with the highest time."""
    latest: TimestampOffset | None = None
    position = 0
    for header in headers(content):
        for record in iter_records(content, header, position):
            if latest is None or record.timestamp_ms > latest.timestamp_ms:
                latest = TimestampOffset(record.timestamp_ms, record.offset, header.leader_epoch)
        position += header.size_bytes
    return latest


def expected_first_times(content: bytes) -> list[int | None]:
    records = []
    position = 0
    for header in headers(content):
        records += list(iter_records(content, header, position))
        position += header.size_bytes
    return [
        next((record.offset for record in records if record.timestamp_ms >= NOW_MS + wanted), None)
        for wanted in range(0, 1001, 50)
    ]


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(steps=STEPS, cut=st.integers(0, 10**9), junk=st.sampled_from([b"", bytes(100), b"\x07" * 9]))
def test_a_crash_at_any_byte_leaves_a_dense_prefix_of_what_was_appended(
    steps: list[Step], cut: int, junk: bytes
) -> None:
    root = Path(tempfile.mkdtemp(prefix="local-log-"))
    try:
        log = open_log(root / "log", config=CONFIG)
        History(log).run(steps)
        whole = read_bytes(log)
        killed = root / "killed"
        shutil.copytree(log.directory, killed)
        last = log_files(killed)[-1]
        torn = last.read_bytes()
        damaged = torn[: cut % (len(torn) + 1)] + junk
        last.write_bytes(damaged)
        # Junk may happen to be the very bytes that were lost.
        kept_bytes = common_prefix_bytes(torn, damaged)

        again = open_log(
            killed,
            config=CONFIG,
            clean_shutdown=False,
            # What was flushed is safe, and the tail of the last file is cut below it here: so the
            # recovery point of the checkpoint may lie anywhere up to that file.
            recovery_point=min(log.recovery_point, log.active_segment.base_offset),
        )
        # Everything before the cut is there, in the same bytes, and nothing behind it.
        content = read_bytes(again)
        sealed_bytes = log.size_bytes - log.active_segment.size_bytes
        assert whole.startswith(content)
        assert len(content) <= sealed_bytes + kept_bytes
        following = next(headers(whole[len(content) :]), None)
        if following is not None:
            assert len(content) + following.size_bytes > sealed_bytes + kept_bytes
        assert again.recovery_report.bytes_cut == sealed_bytes + len(damaged) - len(content)
        assert_dense(again)

        # Everything that is derived from the log is as if the rest had never been appended.
        log.truncate_to(again.end_offset)
        assert again.end_offset == log.end_offset
        assert again.last_stable_offset == log.last_stable_offset
        assert again.leader_epochs.starts == log.leader_epochs.starts
        everything = (0, again.end_offset)
        assert again.aborted_transactions(*everything) == log.aborted_transactions(*everything)
        assert sequences(again) == sequences(log)
        expected_times = expected_first_times(content)
        assert first_times(again) == first_times(log) == expected_times
        assert again.max_timestamp() == log.max_timestamp() == expected_max_timestamp(content)

        # And it goes on from there, through another stop.
        fill(again, 2, record_count=3)
        assert_dense(again)
        again.close()
        last_time = open_log(killed, config=CONFIG)
        assert not last_time.recovery_report.problems
        assert_dense(last_time)
        assert sequences(last_time) == sequences(again)
        assert last_time.last_stable_offset == again.last_stable_offset
        last_time.close()
    finally:
        shutil.rmtree(root)


def common_prefix_bytes(one: bytes, other: bytes) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def sequences(log: LocalLog) -> dict[int, int]:
    return {
        producer_id: entry.next_sequence for producer_id, entry in log.producers.entries.items()
    }


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(steps=STEPS, bytes_max=st.integers(0, 4000), limit=st.integers(0, 300))
def test_any_sequence_of_reads_gives_every_batch_below_the_limit_once(
    steps: list[Step], bytes_max: int, limit: int
) -> None:
    root = Path(tempfile.mkdtemp(prefix="local-log-"))
    try:
        log = open_log(root / "log", config=CONFIG)
        History(log).run(steps)
        everything = list(headers(read_bytes(log)))
        read = []
        offset = 0
        while True:
            found = log.read(offset, bytes_max=bytes_max, end_offset=limit)
            if found.range is None:
                break
            content = found.range.read()
            part = list(headers(content))
            assert sum(header.size_bytes for header in part) == len(content)
            assert len(part) == 1 or len(content) <= bytes_max
            read += part
            offset = found.next_offset
        assert read == [header for header in everything if header.next_offset <= limit]
    finally:
        shutil.rmtree(root)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    moves=st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(["send", "send", "commit", "abort", "roll"])),
        max_size=60,
    ),
    wanted=st.lists(st.tuples(st.integers(0, 80), st.integers(0, 40)), max_size=12),
)
def test_aborted_transactions_and_the_stable_offset_are_those_of_a_simple_model(
    moves: list[tuple[int, str]], wanted: list[tuple[int, int]]
) -> None:
    root = Path(tempfile.mkdtemp(prefix="local-log-"))
    try:
        log = open_log(root / "log", config=CONFIG)
        opened: dict[int, int] = {}
        aborted: list[tuple[int, int, int]] = []
        sequences_sent: dict[int, int] = {}
        for producer_id, action in moves:
            if action == "roll":
                log.roll()
            elif action == "send":
                sequence = sequences_sent.get(producer_id, 0)
                records = batch(
                    producer_id=producer_id,
                    producer_epoch=0,
                    base_sequence=sequence,
                    transactional=True,
                )
                base_offset = append(log, records).base_offset
                sequences_sent[producer_id] = sequence + 1
                opened.setdefault(producer_id, base_offset)
            elif producer_id in opened:
                kind = MarkerType.COMMIT if action == "commit" else MarkerType.ABORT
                last_offset = append_marker(log, kind, producer_id=producer_id).last_offset
                first_offset = opened.pop(producer_id)
                if action == "abort":
                    aborted.append((producer_id, first_offset, last_offset))
            assert log.last_stable_offset == min(opened.values(), default=log.end_offset)
        for restarted in (log, open_log(root / "log", config=CONFIG, clean_shutdown=False)):
            assert restarted.last_stable_offset == log.last_stable_offset
            for start, length in wanted:
                # As a fetch asks: below the last stable offset everything is decided.
                end = min(start + length, log.last_stable_offset)
                listed = {entry[:3] for entry in restarted.aborted_transactions(start, end)}
                assert listed == {
                    entry for entry in aborted if entry[2] >= start and entry[1] < end
                }
    finally:
        shutil.rmtree(root)
