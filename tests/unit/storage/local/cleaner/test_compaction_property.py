"""Any history of a compacted log, cleaned at any moment and killed at any step, loses no key.

A plain model holds every record that was appended. After each cleaning, and after each restart:

    nothing is invented      what is read was appended, at that offset, with that content
    nothing is lost          the latest committed record of each key is read, unless it is a
                             tombstone that two cleanings have met, delete.retention.ms apart
    it is compacted          below the cleaner's checkpoint each key is read once
    producers go on          epoch and sequence of each producer are what they were, also when they
                             are read from the log alone
"""

from __future__ import annotations

import random
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from strandline.storage.crash_points import CRASH_POINTS, SimulatedCrash, simulated_crash
from strandline.storage.local.cleaner.cleaner import CleanerConfig
from strandline.storage.records.batch.marker import MarkerType
from strandline.storage.records.batch.record import Record
from strandline.storage.records.compression import Codec
from tests.unit.storage.local.builders import append_marker
from tests.unit.storage.local.compaction import CONFIG, CompactedLog

CLEAN_POINTS = [point for point in CRASH_POINTS if point.startswith("clean.")]
CONFIGURATION = replace(CONFIG, segment_bytes=700, delete_retention_ms=1000)
KEYS = [b"%d" % number for number in range(3)]
PLAIN, IDEMPOTENT, TRANSACTIONAL = -1, 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing that happens to the log."""

    action: str
    producer_id: int
    keys: tuple[bytes, ...]
    tombstones: tuple[bool, ...]
    codec: Codec
    value_bytes: int
    point: str
    epoch_step: int


ACTIONS = ["append"] * 6 + ["commit", "abort", "seal", "wait", "clean", "clean", "crash", "restart"]
STEP_COUNT = 60


def random_steps(seed: int) -> list[Step]:
    """A long history. Lists that hypothesis draws are too short and too even to meet what is rare
    here, such as the abort of a transaction in front of one that the same producer commits.
    """
    draw = random.Random(seed)
    return [
        Step(
            action=draw.choice(ACTIONS),
            producer_id=draw.choice([PLAIN, PLAIN, IDEMPOTENT, TRANSACTIONAL, TRANSACTIONAL + 1]),
            keys=tuple(draw.choice(KEYS) for _ in range(draw.randint(1, 3))),
            tombstones=tuple(draw.random() < 0.3 for _ in range(3)),
            codec=draw.choice(list(Codec)),
            value_bytes=draw.choice([0, 1, 100]),
            point=draw.choice(CLEAN_POINTS),
            epoch_step=draw.choice([0, 0, 0, 1]),
        )
        for _ in range(STEP_COUNT)
    ]


SEEDS = st.integers(0, 2**32)


@dataclass(slots=True)
class Appended:
    """A record of the model. `decided`: True committed, False aborted, None still open."""

    record: Record
    producer_id: int
    decided: bool | None
    # The clock when a cleaning first had this record in its range.
    met_ms: int | None = None
    may_be_gone: bool = False


@dataclass(slots=True)
class Model:
    """Everything that was appended, by offset."""

    appended: dict[int, Appended] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    sequences: dict[int, int] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)

    def decide(self, producer_id: int, *, committed: bool) -> None:
        for entry in self.appended.values():
            if entry.producer_id == producer_id and entry.decided is None:
                entry.decided = committed
        self.open.discard(producer_id)

    def cleaned(self, uncleanable_offset: int, now_ms: int, retention_ms: int) -> None:
        """A cleaning looked at everything below `uncleanable_offset`, or at a part of it."""
        for offset, entry in self.appended.items():
            if offset < uncleanable_offset:
                if entry.met_ms is None:
                    entry.met_ms = now_ms
                elif now_ms >= entry.met_ms + retention_ms:
                    entry.may_be_gone = True


class Machine:
    """Carries out steps on the log and on the model."""

    def __init__(self, folder: Path, *, compiled: bool, key_bytes_max: int) -> None:
        self.log = CompactedLog(
            folder,
            config=CONFIGURATION,
            compiled=compiled,
            settings=CleanerConfig(dedupe_buffer_bytes=key_bytes_max, load_factor=0.9),
        )
        self.model = Model()

    def run(self, step: Step) -> None:
        getattr(self, step.action)(step)

    def append(self, step: Step) -> None:
        log, model = self.log, self.model
        log.clock.advance_ms(1)
        producer_id, fields = step.producer_id, {}
        if producer_id != PLAIN:
            epoch = model.epochs.get(producer_id, 0)
            if step.epoch_step and producer_id not in model.open:
                epoch += 1
                model.sequences[producer_id] = 0
            sequence = model.sequences.get(producer_id, 0)
            fields = {
                "producer_id": producer_id,
                "producer_epoch": epoch,
                "base_sequence": sequence,
                "transactional": producer_id >= TRANSACTIONAL,
            }
            model.epochs[producer_id] = epoch
            model.sequences[producer_id] = sequence + len(step.keys)
        is_transactional = producer_id >= TRANSACTIONAL
        if is_transactional:
            model.open.add(producer_id)
        rows = [
            (key, None if dead else b"%d" % log.log.end_offset + b"v" * step.value_bytes)
            for key, dead in zip(step.keys, step.tombstones, strict=False)
        ]
        base_offset = log.append(*rows, codec=step.codec, **fields)
        for place, (key, value) in enumerate(rows):
            record = Record(
                offset=base_offset + place,
                timestamp_ms=log.clock.now_ms() + place,
                key=key,
                value=value,
            )
            decided = None if is_transactional else True
            model.appended[record.offset] = Appended(record, producer_id, decided)

    def commit(self, step: Step) -> None:
        self._end(step.producer_id, committed=True)

    def abort(self, step: Step) -> None:
        self._end(step.producer_id, committed=False)

    def _end(self, producer_id: int, *, committed: bool) -> None:
        if producer_id not in self.model.open:
            return
        kind = MarkerType.COMMIT if committed else MarkerType.ABORT
        log = self.log.log
        epoch = self.model.epochs[producer_id]
        if epoch == 0:
            append_marker(log, kind, producer_id=producer_id)
        else:
            from strandline.storage.local.log.log import AppendOrigin
            from tests.unit.storage.local.builders import marker

            log.append(
                marker(kind, producer_id=producer_id, producer_epoch=epoch),
                leader_epoch=0,
                origin=AppendOrigin.COORDINATOR,
            )
        self.model.decide(producer_id, committed=committed)

    def seal(self, _step: Step) -> None:
        self.log.seal()

    def wait(self, _step: Step) -> None:
        self.log.clock.advance_ms(600)

    def clean(self, _step: Step) -> None:
        self.log.seal()
        self._note_cleaning()
        self.log.clean()
        assert self.log.cleaner.uncleanable() == frozenset()
        self.check_compacted()

    def crash(self, step: Step) -> None:
        self.log.seal()
        self._note_cleaning()
        try:
            with simulated_crash(step.point):
                self.log.clean()
        except SimulatedCrash:
            self.log.kill_and_reopen()

    def restart(self, step: Step) -> None:
        if step.value_bytes:
            for snapshot in self.log.directory.glob("*.snapshot"):
                snapshot.unlink()
        self.log.kill_and_reopen()

    def _note_cleaning(self) -> None:
        log = self.log.log
        self.model.cleaned(
            log.last_stable_offset, self.log.clock.now_ms(), CONFIGURATION.delete_retention_ms
        )

    # --- promises ----------------------------------------------------------------------------

    def check(self) -> None:
        log, model = self.log, self.model
        committed = log.committed()
        for record in log.records():
            assert record == model.appended[record.offset].record
        read = {record.offset for record in committed}
        stable_offset = log.log.last_stable_offset
        latest: dict[bytes | None, Appended] = {}
        for offset, entry in model.appended.items():
            if entry.decided and offset < stable_offset:
                latest[entry.record.key] = entry
            if entry.decided is False:
                assert offset not in read, "an aborted record is read"
        for entry in latest.values():
            if entry.record.offset not in read:
                assert entry.record.value is None, f"{entry} is lost"
                assert entry.may_be_gone, f"{entry} went too early"
        for record in committed:
            # An older value must never be the last word of a key.
            newest = latest[record.key].record.offset
            assert newest in read or model.appended[newest].record.value is None
        if any(latest[r.key].record.offset not in read for r in committed):
            raise AssertionError("a value came back whose tombstone is gone")
        self.check_producers()

    def check_producers(self) -> None:
        for producer_id, sequence in self.model.sequences.items():
            entry = self.log.log.producers.entries[producer_id]
            assert entry.epoch == self.model.epochs[producer_id]
            assert entry.next_sequence == sequence

    def check_compacted(self) -> None:
        cleaned_offset = self.log.cleaned_offset or 0
        keys = [r.key for r in self.log.committed() if r.offset < cleaned_offset]
        assert len(keys) == len(set(keys)), f"below {cleaned_offset}: {keys}"


def play(steps: list[Step], *, compiled: bool, key_bytes_max: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(Path(folder), compiled=compiled, key_bytes_max=key_bytes_max)
        for step in steps:
            machine.run(step)
            if step.action != "append":
                machine.check()
        end_offset = machine.log.log.end_offset
        machine.log.kill_and_reopen()
        assert machine.log.log.end_offset == end_offset
        machine.check()


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(seed=SEEDS, key_bytes_max=st.sampled_from([600, 1 << 20]))
@example(seed=16, key_bytes_max=600)
def test_no_history_of_a_compacted_log_loses_or_invents_anything(
    seed: int, key_bytes_max: int
) -> None:
    play(random_steps(seed), compiled=False, key_bytes_max=key_bytes_max)


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(seed=SEEDS, key_bytes_max=st.sampled_from([72, 1 << 20]))
def test_nor_does_it_at_compiled_speed(seed: int, key_bytes_max: int) -> None:
    play(random_steps(seed), compiled=True, key_bytes_max=key_bytes_max)
