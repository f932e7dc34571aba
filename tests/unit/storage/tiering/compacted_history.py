"""A random life of a compacted tiered log, held against a model after every event.

    sent      what was appended at each offset: key, value, whether its transaction was aborted
    archive   what the bucket has by itself: manifest, pages and objects, past every fault
    disk      what the local segments have

After every event, however deep in a round of compaction it ends:

    same      every record of either tier is the one that was sent there; entries have no gap
    latest    both tiers together have the last value of every key
    alone     a record leaves the archive only for a newer one of its key in the archive itself
    deleted   a tombstone that is gone has nothing older of its key anywhere, and that has been so
              for delete.retention.ms
    once      below the mark of the archive every key is there once, and the mark is in the archive
    aborted   a record of an aborted transaction that is still there is named by the index of its
              segment, and has displaced nothing
    grace     an object that a manifest named is there until the grace time after that is over
    orphans   what nothing names is what a crash or a fault left, and nothing else

Time only passes by an event of its own, so every border in time is exact.
"""

from __future__ import annotations

import itertools
import random
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from strandline.storage.config.log_config import LogConfig
from strandline.storage.crash_points import CRASH_POINTS, SimulatedCrash, simulated_crash
from strandline.storage.errors import TierUnavailable
from strandline.storage.local.log.append_rules import AppendOrigin
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.records.batch.marker import MarkerType
from strandline.storage.records.batch.record import Record, encode_batch, iter_records
from strandline.storage.records.compression import Codec
from strandline.storage.records.txn_index import decode_entries
from strandline.storage.remote.manifest.entries import SegmentEntry
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.remote.manifest.store import read_page
from strandline.storage.remote.segment import meta as segment_meta
from strandline.storage.remote.segment.meta import Section
from strandline.storage.tiering.audit.orphans import compare, delete_orphans
from tests.support.lone_replica import append_alone
from tests.support.memory_store import Fault, Timing
from tests.unit.storage.local.builders import marker
from tests.unit.storage.tiering.harness import Rig
from tests.unit.storage.tiering.slow_reader import DELETE_RETENTION_MS, SlowReader

KEYS = [b"%d" % number for number in range(6)]
GRACE_MS = 2500
CRASHES = [
    point for point in CRASH_POINTS if point.split(".")[0] in ("compact", "merge", "copy", "delete")
]
EVENTS = [
    *["put"] * 6,
    *["transaction"] * 2,
    *["seal", "clean"] * 3,
    *["settle"] * 2,
    *["round"] * 3,
    *["steps"] * 6,
    *["read"] * 4,
    *["wait"] * 3,
    *["fault", "crash", "crash inside"],
]
PRODUCER_ID = 7
# The time of tombstones may be set anew by the first, and be over by the second after that.
REST_ROUNDS = 5


class Sent(NamedTuple):
    """One record as it was appended."""

    key: bytes
    value: bytes | None
    is_aborted: bool


class Found(NamedTuple):
    """A record that a tier has."""

    offset: int
    key: bytes
    value: bytes | None


class History(Rig):
    """A compacted tiered log with random events, checked against the model after each."""

    def __init__(self, folder: Path, *, config: LogConfig, merge: int, draw: random.Random) -> None:
        super().__init__(folder, config=config, merge_target_bytes=merge, grace_ms=GRACE_MS)
        self.draw = draw
        self.sent: dict[int, Sent] = {}
        self._sequence = 0
        # When something older of the key of this tombstone was last there to be read.
        self._older_seen_ms: dict[int, int] = {}
        # When the object was last named by the manifest.
        self._named_ms: dict[str, int] = {}
        self.known_orphans: set[str] = set()
        self._decoded: dict[str, list[Found]] = {}
        self._archived_before: list[Found] = []

    # --- appending -----------------------------------------------------------------------------

    def put(self, *records: tuple[bytes, bytes | None], codec: Codec = Codec.NONE) -> None:
        self._note(records, is_aborted=False)
        super().put(*records, codec=codec)

    def transact(self, *records: tuple[bytes, bytes | None], commits: bool) -> None:
        """A transaction of one batch, and its marker."""
        self._note(records, is_aborted=not commits)
        now_ms = self.clock.now_ms()
        content = encode_batch(
            [
                Record(offset=i, timestamp_ms=now_ms, key=key, value=value)
                for i, (key, value) in enumerate(records)
            ],
            producer_id=PRODUCER_ID,
            producer_epoch=0,
            base_sequence=self._sequence,
            transactional=True,
        )
        self._sequence += len(records)
        append_alone(
            self.log,
            memoryview(bytearray(content)),
            leader_epoch=self.leader_epoch,
            origin=AppendOrigin.COORDINATOR,
        )
        kind = MarkerType.COMMIT if commits else MarkerType.ABORT
        append_alone(
            self.log,
            marker(kind, producer_id=PRODUCER_ID),
            leader_epoch=self.leader_epoch,
            origin=AppendOrigin.COORDINATOR,
        )
        if commits:
            self.latest.update(records)

    def _note(self, records: tuple[tuple[bytes, bytes | None], ...], *, is_aborted: bool) -> None:
        for offset, (key, value) in enumerate(records, self.log.end_offset):
            self.sent[offset] = Sent(key, value, is_aborted)

    # --- what a consumer with read_committed gets --------------------------------------------

    async def records(self, from_offset: int | None = None) -> list[Record]:
        return [r for r in await super().records(from_offset) if self._is_data(r.offset)]

    def _is_data(self, offset: int) -> bool:
        return offset in self.sent and not self.sent[offset].is_aborted

    # --- events --------------------------------------------------------------------------------

    async def live(self, events: int) -> None:
        """So many events, with a look at everything after each."""
        readers = [SlowReader(self, is_data=self._is_data) for _ in range(2)]
        for number in range(events):
            await self._happen(self.draw.choice(EVENTS), number, readers)
            self.check()
            if number % 10 == 0:
                self.memory.clear_faults()
                # After a start with faults the manifest may not be known yet.
                with suppress(TierUnavailable):
                    await self.assert_nothing_is_lost()

    async def _happen(self, event: str, number: int, readers: list[SlowReader]) -> None:
        draw = self.draw
        match event:
            case "put":
                self.put(*self._some_rows(number), codec=draw.choice([Codec.NONE, Codec.LZ4]))
            case "transaction":
                self.transact(*self._some_rows(number), commits=draw.random() < 0.5)
            case "seal":
                self.seal()
            case "clean":
                await self.clean()
            case "settle":
                await self.settle()
            case "round":
                self.put(*self._some_rows(number))
                self.seal()
                await self.clean()
                self.pass_ms(draw.choice([0, 700]))
                self.check()
                await self.settle()
            case "steps":
                for _ in range(draw.randint(1, 5)):
                    await self.manager.step_each()
                    self.check()
                await self.enforcer.run_once()
            case "read":
                with suppress(TierUnavailable):
                    await draw.choice(readers).read()
            case "wait":
                self.pass_ms(draw.choice([10, 300, 700, 2000]))
            case "fault":
                operation = draw.choice(["get", "put", "put", "head", "delete"])
                moment = draw.choice(list(Timing))
                self.memory.add_fault(
                    Fault(operation=operation, error=TierUnavailable, moment=moment)
                )
                self._expect_orphans()
            case "crash":
                await self.crash()
                # Runs of a page wait for each other, and then for nobody.
                self._expect_orphans()
            case "crash inside":
                with suppress(SimulatedCrash), simulated_crash(draw.choice(CRASHES)):
                    await self.settle()
                await self.crash()
                self._expect_orphans()

    def _some_rows(self, number: int) -> list[tuple[bytes, bytes | None]]:
        draw = self.draw
        return [
            (draw.choice(KEYS), draw.choice([None, b"%d" % number, b"x" * 60]))
            for _ in range(draw.randint(1, 3))
        ]

    async def come_to_rest(self) -> None:
        """Everything is done that is due, and nothing is left over."""
        self.memory.clear_faults()
        for _ in range(REST_ROUNDS):
            self.put((b"rest", b"x" * 60))
            self.seal()
            await self.clean()
            await self.settle()
            self.check()
            self.pass_ms(GRACE_MS + DELETE_RETENTION_MS)
            self.check()
            await self.settle()
            self.check()
        found = compare(self.store, now_ms=self.clock.now_ms(), grace_ms=0)
        assert found.missing_keys == ()
        # Pages that nothing names are found as well.
        assert {orphan.key for orphan in found.orphans} <= self.known_orphans
        delete_orphans(self.store, found.orphans)
        self.assert_archive_is_whole()
        # And that was all: nothing is made again.
        requests = self.memory.count_requests("put", r"\.log$")
        for _ in range(3):
            self.pass_ms(GRACE_MS + DELETE_RETENTION_MS)
            await self.settle()
        assert self.memory.count_requests("put", r"\.log$") == requests

    async def lose_disk(self) -> None:
        await super().lose_disk()
        self.sent = {o: sent for o, sent in self.sent.items() if o < self.log.end_offset}
        data = (self.sent[offset] for offset in sorted(self.sent))
        self.latest = {sent.key: sent.value for sent in data if not sent.is_aborted}

    # --- looking -------------------------------------------------------------------------------

    def entries(self, manifest: Manifest | None) -> list[SegmentEntry]:
        """All of them, those in pages too, past the faults that were ordered."""
        if manifest is None:
            return []
        faults, self.memory._faults = self.memory._faults, []
        paged = [entry for page in manifest.pages for entry in read_page(self.memory, page)]
        self.memory._faults = faults
        return [*paged, *manifest.segments]

    def _content(self, key: str) -> bytes:
        return self.memory._objects[key].body

    def _archived(self, entries: list[SegmentEntry]) -> list[Found]:
        found: list[Found] = []
        for entry in entries:
            if entry.log_key not in self._decoded:
                self._decoded[entry.log_key] = self._checked(entry)
            found += self._decoded[entry.log_key]
        return found

    def _checked(self, entry: SegmentEntry) -> list[Found]:
        """The records of one segment; its objects never change, so this is looked at once."""
        found = _records_in(self._content(entry.log_key))
        assert [f.offset for f in found] == sorted({f.offset for f in found})
        assert all(entry.base_offset <= f.offset < entry.end_offset for f in found)
        aborted = [f.offset for f in found if self.sent[f.offset].is_aborted]
        if aborted:
            meta = self._content(entry.meta_key)
            section = segment_meta.decode(meta).get(Section.TXN_INDEX)
            index = () if section is None else decode_entries(section, source="")
            for offset in aborted:
                assert any(t.first_offset <= offset <= t.last_offset for t in index), (
                    entry,
                    offset,
                )
        return found

    def _local(self) -> list[Found]:
        return [
            found
            for segment in self.log.local.segments
            for found in _records_in(segment.log_path.read_bytes()[: segment.size_bytes])
        ]

    def _expect_orphans(self) -> None:
        """From here on, what nothing names may be what this left."""
        self._may_leave = True

    _may_leave = False

    # --- the model -----------------------------------------------------------------------------

    def check(self) -> None:
        """Compares everything with the model."""
        manifest = self.manifest
        entries = self.entries(manifest)
        self._check_objects(manifest, entries)
        for before, after in itertools.pairwise(entries):
            assert before.end_offset == after.base_offset, (before, after)
        archived, local = self._archived(entries), self._local()
        for found in (*archived, *local):
            sent = self.sent[found.offset]
            assert (found.key, found.value) == (sent.key, sent.value), found
        end_offset = entries[-1].end_offset if entries else 0
        assert not local or self.log.local.start_offset <= end_offset
        archived = [f for f in archived if not self.sent[f.offset].is_aborted]
        local = [f for f in local if not self.sent[f.offset].is_aborted]
        self._check_gone(archived, [*archived, *local])
        self._check_latest([*archived, *local])
        self._see_older([*archived, *local])
        if manifest is not None and manifest.compaction is not None:
            cleaned_offset = manifest.compaction.cleaned_offset
            assert cleaned_offset <= end_offset
            keys = [f.key for f in archived if f.offset < cleaned_offset]
            assert len(keys) == len(set(keys)), (cleaned_offset, keys)

    def _check_gone(self, archived: list[Found], both: list[Found]) -> None:
        """What was in the bucket and is not went for something newer in the bucket, or its time."""
        latest = {f.key: f.offset for f in archived}
        for before in self._archived_before:
            if before.offset > latest.get(before.key, -1):
                self._check_tombstone_gone(before.offset, both)
        self._archived_before = archived

    def _check_latest(self, both: list[Found]) -> None:
        """Both tiers together have the last value of every key."""
        present = {f.offset for f in both}
        latest = {
            sent.key: offset for offset, sent in sorted(self.sent.items()) if not sent.is_aborted
        }
        for offset in latest.values():
            if offset not in present:
                self._check_tombstone_gone(offset, both)

    def _check_tombstone_gone(self, offset: int, both: list[Found]) -> None:
        key, value, _ = self.sent[offset]
        assert value is None, f"{key!r} at {offset} is lost"
        older = [f.offset for f in both if f.key == key and f.offset < offset]
        assert not older, f"tombstone {offset} of {key!r} is gone, {older} are not"
        seen_ms = self._older_seen_ms.get(offset)
        gone_ms = DELETE_RETENTION_MS if seen_ms is None else self.clock.now_ms() - seen_ms
        assert gone_ms >= DELETE_RETENTION_MS, f"tombstone {offset} of {key!r} went too early"

    def _see_older(self, found: list[Found]) -> None:
        oldest: dict[bytes, int] = {}
        for f in found:
            oldest[f.key] = min(oldest.get(f.key, f.offset), f.offset)
        for offset, sent in self.sent.items():
            if sent.value is None and oldest.get(sent.key, offset) < offset:
                self._older_seen_ms[offset] = self.clock.now_ms()

    def _check_objects(self, manifest: Manifest | None, entries: list[SegmentEntry]) -> None:
        now_ms = self.clock.now_ms()
        named = {key for entry in entries for key in (entry.log_key, entry.meta_key)}
        marked: set[str] = set()
        if manifest is not None:
            named |= {page.key for page in manifest.pages}
            marked = {key for mark in manifest.deleting for key in mark.keys}
        self._named_ms |= dict.fromkeys(named, now_ms)
        for key, named_ms in list(self._named_ms.items()):
            if now_ms - named_ms >= GRACE_MS:
                del self._named_ms[key]
            else:
                assert key in self.memory._objects, f"{key} went {now_ms - named_ms} ms after use"
        stray = {
            key
            for key in self.memory._objects
            if key.endswith((".log", ".meta")) or "/manifest/" in key
        } - (named | marked | self.known_orphans)
        if self._may_leave:
            self.known_orphans |= stray
        elif not self.manager._workers.compactor.is_busy:
            assert not stray, stray
        self.known_orphans -= named
        if not self.memory._faults:
            self._may_leave = False


def _records_in(content: bytes) -> list[Found]:
    return [
        Found(
            record.offset,
            bytes(record.key or b""),
            None if record.value is None else bytes(record.value),
        )
        for batch in walk(content)
        if not batch.header.is_control
        for record in iter_records(content, batch.header, batch.position)
    ]
