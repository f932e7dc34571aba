"""Any order of what can happen to a tiered partition, against a model that is a list of batches.

    model     sent: the batches, in order
              promised: the log start that was told to be durable; it never goes back
              asked: the highest log start that anybody asked for

Rules append, roll, copy, let time pass, fail requests, retain, delete records, checkpoint, restart,
die at a step, lose the disk, and delete the topic, which begins anew under its name. After each the
log start lies between what was promised and what was asked for, the manifest names what exists, and
nothing is freed locally that is nowhere else; reading gives what was sent, or an error while the
store fails. At the end the store is well: everything from the start on is read as it was sent, the
bucket is what the manifest says, and a scrub has nothing to say. Hypothesis looks for the shortest
story that breaks a promise. `test_planted_faults.py` shows which faults of ours it finds.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import tempfile
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from strandline.storage.crash_points import CRASH_POINTS, SimulatedCrash, simulated_crash
from strandline.storage.errors import (
    AccessDenied,
    ObjectCorrupt,
    ObjectNotFound,
    StorageError,
    TierUnavailable,
)
from strandline.storage.local.formats import checkpoint
from strandline.storage.tiering.audit.orphans import compare, delete_orphans
from tests.support.memory_store import Fault, Timing
from tests.unit.storage.tiering.harness import CONFIG, GRACE_MS, PARTITION, Rig, keys_of

BATCH = 10
UPLOAD_MS = 5000
# Of three segments or so.
MERGE_TARGET_BYTES = 800
HEAL_ROUNDS = 8
PURGE_POINTS = [point for point in CRASH_POINTS if point.startswith("purge.")]
IN_PROCESS = [
    point for point in CRASH_POINTS if point.split(".")[0] in ("copy", "merge", "tail", "delete")
]
T = TypeVar("T")
# Segments, their indexes, pieces of the open one, and sealed pages.
NEVER_AGAIN = re.compile(r"\.(log|meta|tail)$|/manifest/")


class TieredPartition(RuleBasedStateMachine):
    """A tiered partition, and the rules and invariants of its life."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self._loop = asyncio.new_event_loop()
        self._promised = self._asked = 0
        self._requests_seen = 0
        self._named: set[str] = set()
        self._rig: Rig

    def _run(self, work: Awaitable[T]) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(30):
                return await work

        return self._loop.run_until_complete(bounded())

    @initialize()
    def begin(self) -> None:
        async def open_rig() -> Rig:
            rig = Rig(
                Path(self._folder.name),
                config=replace(CONFIG, strandline_remote_active_segment_upload_ms=UPLOAD_MS),
                merge_target_bytes=MERGE_TARGET_BYTES,
            )
            await rig.open()
            return rig

        self._rig = self._run(open_rig())

    # --- what happens ------------------------------------------------------------------------

    @rule(batches=st.integers(1, 6))
    def append_some(self, batches: int) -> None:
        self.append(batches)

    def append(self, batches: int) -> None:
        for _ in range(batches):
            try:
                self._rig.produce(BATCH)
            except TierUnavailable:
                return

    @rule(segments=st.integers(2, 8), works=st.booleans())
    def append_segments(self, segments: int, works: bool) -> None:
        """More than one at a time, or most stories would be of an empty log."""
        for _ in range(segments):
            self.append(1)
            self._rig.roll()
        if works:
            self._run(self._rig.settle())

    @rule()
    def roll(self) -> None:
        self._rig.roll()

    @rule()
    def work(self) -> None:
        self._run(self._rig.settle())

    @rule(delta_ms=st.sampled_from([10, 600, UPLOAD_MS, 40_000, GRACE_MS]))
    def wait(self, delta_ms: int) -> None:
        self._rig.pass_ms(delta_ms)

    @rule(
        operation=st.sampled_from(["put", "get", "head", "delete", ".*"]),
        key_pattern=st.sampled_from(["", r"manifest\.json$", r"\.log$", r"\.meta$", r"\.tail$"]),
        error=st.sampled_from([TierUnavailable, AccessDenied, ObjectCorrupt]),
        moment=st.sampled_from(list(Timing)),
        times=st.integers(1, 4),
    )
    def fail(
        self,
        operation: str,
        key_pattern: str,
        error: type[TierUnavailable | AccessDenied | ObjectCorrupt],
        moment: Timing,
        times: int,
    ) -> None:
        self._rig.memory.add_fault(
            Fault(
                operation=operation,
                key_pattern=key_pattern,
                error=error,
                moment=moment,
                times=times,
            )
        )

    @rule(
        times=st.integers(2, 4),
        skip=st.integers(0, 1),
        starts=st.sampled_from([None, True, False]),
    )
    def lose_answers(self, times: int, skip: int, starts: bool | None) -> None:
        """What was committed is done, and nobody is told, not even who asks again."""
        self.append(1)
        self._rig.roll()
        self._rig.memory.add_fault(
            Fault(
                operation=".*",
                key_pattern=r"manifest\.json$",
                error=TierUnavailable,
                moment=Timing.AFTER,
                skip=skip,
                times=times,
            )
        )
        self._run(self._rig.settle())
        # What is committed next is something else, so that the repeated commit is not the same.
        self.delete_half()
        if starts is not None:
            self._run(self._rig.crash(start=starts))

    @rule()
    def arrive_late(self) -> None:
        """What was given up, perhaps before a crash, is done now."""
        self._rig.memory.deliver_late()

    @rule(times=st.integers(1, 3))
    def deny_existence(self, times: int) -> None:
        """A manifest or a topic.json that is there is not found; nobody may act on that."""
        self._rig.memory.add_fault(
            Fault(operation="get", key_pattern=r"\.json$", error=ObjectNotFound, times=times)
        )

    @rule(segments=st.integers(3, 6), crashes=st.booleans())
    def outage(self, segments: int, crashes: bool) -> None:
        """The store is away, and life goes on: records come, some are deleted, retention runs."""
        rig = self._rig
        rig.memory.add_fault(Fault(operation=".*", error=TierUnavailable, times=100))
        for _ in range(segments):
            self.append(1)
            rig.roll()
        self.delete_half()
        self._run(rig.enforcer.run_once())
        self.nothing_is_freed_that_is_nowhere_else()
        if crashes:
            self._run(rig.crash())
        rig.memory.clear_faults()

    @rule()
    def upload_open_segment(self) -> None:
        """Time enough for it, and nothing else to do."""
        self.append(1)
        for _ in range(3):
            self._run(self._rig.manager.run_once())
            self._rig.pass_ms(UPLOAD_MS)

    @rule()
    def heal(self) -> None:
        self._rig.memory.clear_faults()

    @rule(part=st.integers(1, 4))
    def delete_records(self, part: int) -> None:
        log = self._rig.log
        batches = (log.end_offset - log.log_start_offset) // BATCH
        if batches > 4:
            wanted = log.log_start_offset + batches // 4 * part // 2 * BATCH
            log.delete_records(wanted)
            self._asked = max(self._asked, wanted)

    def delete_half(self) -> None:
        log = self._rig.log
        wanted = (
            log.log_start_offset + (log.end_offset - log.log_start_offset) // BATCH // 2 * BATCH
        )
        log.delete_records(wanted)
        self._asked = max(self._asked, wanted)

    @rule()
    def checkpoint(self) -> None:
        """The log start is made durable on this disk, as it is before DeleteRecords is answered."""
        log = self._rig.log
        start = log.log_start_offset
        self._run(self._rig.write_log_starts())
        log.note_checkpointed(start)
        self._promised = max(self._promised, start)

    @rule()
    def read_all(self) -> None:
        """Right, or an error for now; never wrong, and never shorter."""
        rig = self._rig
        if rig.log.remote is None or not rig.log.remote.known or not rig.log.remote.life.may_append:
            return
        start = rig.log.log_start_offset
        try:
            found = self._run(rig.read_all(start))
        except StorageError:
            return
        assert found == b"".join(rig.sent[start // BATCH :])

    @rule(kept_bytes=st.integers(300, 2000))
    def retain(self, kept_bytes: int) -> None:
        """Retention by size lets go of the oldest, whichever tier they are in."""
        before = self._rig.log.tier_sizes.total_bytes
        self._rig.configure(retention_bytes=kept_bytes)
        self._run(self._rig.enforcer.run_once())
        self._rig.configure(retention_bytes=-1)
        self._asked = max(self._asked, self._rig.log.log_start_offset)
        assert self._rig.log.tier_sizes.total_bytes <= before

    @rule(starts=st.booleans())
    def crash(self, starts: bool) -> None:
        self._run(self._rig.crash(start=starts))

    @rule(point=st.sampled_from(IN_PROCESS), starts=st.booleans())
    def die(self, point: str, starts: bool) -> None:
        try:
            with simulated_crash(point):
                self._run(self._rig.settle())
        except SimulatedCrash:
            self._run(self._rig.crash(start=starts))

    @rule(is_away=st.booleans())
    def lose_disk(self, is_away: bool) -> None:
        """What is in the bucket comes back, and nothing else; until then nobody may write."""
        rig = self._rig
        rig.memory.clear_faults()
        manifest = rig.manifest
        kept = start = 0
        if manifest is not None:
            start = manifest.log_start_offset
            kept = max(manifest.tail_end_offset, manifest.end_offset, start)
        if is_away:
            rig.memory.add_fault(Fault(operation=".*", error=TierUnavailable, times=100))
        self._run(rig.lose_disk())
        if is_away:
            sent = len(rig.sent)
            self.append(1)
            assert len(rig.sent) == sent
            rig.memory.clear_faults()
        for _ in range(3):
            rig.pass_ms(60_000)
            self._run(rig.manager.run_once())
        assert (rig.log.log_start_offset, rig.log.end_offset) == (start, kept)
        del rig.sent[kept // BATCH :]
        # The log start of the bucket may lag behind what was only on the disk.
        self._promised = start

    @rule(point=st.sampled_from(["", *PURGE_POINTS]))
    def delete_topic(self, point: str) -> None:
        """Nothing of it is left, whatever fails meanwhile or comes late; then there is one of that
        name again.
        """
        rig = self._rig
        rig.manager.delete_topic(rig.topic_info)
        try:
            with simulated_crash(point) if point else contextlib.nullcontext():
                for _ in range(3):
                    self._run(rig.manager.run_once())
                    rig.pass_ms(GRACE_MS)
        except SimulatedCrash:
            self._run(rig.crash())
            rig.manager.delete_topic(rig.topic_info)
        rig.memory.clear_faults()
        for _ in range(HEAL_ROUNDS):
            rig.pass_ms(GRACE_MS)
            self._run(rig.manager.run_once())
        # What was on its way comes now, and finds another topic of that name nowhere: ids are new.
        rig.memory.deliver_late()
        rig.pass_ms(2 * rig.tiering_config.copy_timeout_ms)
        self._run(rig.manager.run_once())
        assert list(rig.store.list("topics/")) == []
        rig.sent.clear()
        self._promised = self._asked = 0
        self._run(rig.lose_disk())

    # --- what holds --------------------------------------------------------------------------

    @invariant()
    def the_log_start_is_where_it_may_be(self) -> None:
        if hasattr(self, "_rig"):
            log = self._rig.log
            if log.remote is not None and log.remote.known and log.remote.life.may_append:
                assert self._promised <= log.log_start_offset <= self._asked
                self._promised = max(self._promised, log.durable_log_start_offset)

    @invariant()
    def the_manifest_names_what_exists(self) -> None:
        if hasattr(self, "_rig"):
            assert keys_of(self._rig.manifest) <= set(self._rig.memory.keys())

    @invariant()
    def no_name_of_an_object_is_used_twice(self) -> None:
        """Not even for a second attempt: the first may still arrive, or be read."""
        if not hasattr(self, "_rig"):
            return
        requests = self._rig.memory.requests
        for request in requests[self._requests_seen :]:
            if request.operation == "put" and NEVER_AGAIN.search(request.key):
                assert request.key not in self._named, request.key
                self._named.add(request.key)
        self._requests_seen = len(requests)

    @invariant()
    def nothing_is_freed_that_is_nowhere_else(self) -> None:
        if hasattr(self, "_rig"):
            log, manifest = self._rig.log, self._rig.manifest
            archived_to = 0 if manifest is None or manifest.is_empty else manifest.end_offset
            # What is durable, as the store and the file on the disk say, not the log.
            written = checkpoint.read_offsets(self._rig.checkpoint_path).get(PARTITION, 0)
            let_go = max(written, 0 if manifest is None else manifest.log_start_offset)
            assert log.local.start_offset <= max(archived_to, let_go)

    def teardown(self) -> None:
        try:
            if hasattr(self, "_rig"):
                self._check_end()
        finally:
            if hasattr(self, "_rig"):
                self._rig.executors.shutdown()
            self._loop.close()
            self._folder.cleanup()

    def _check_end(self) -> None:
        rig = self._rig
        rig.memory.clear_faults()
        for _ in range(HEAL_ROUNDS):
            rig.pass_ms(GRACE_MS)
            self._run(rig.settle())
        assert rig.log.end_offset == BATCH * len(rig.sent)
        start = rig.log.log_start_offset
        assert self._promised <= start <= self._asked
        assert self._run(rig.read_all(start)) == b"".join(rig.sent[start // BATCH :])
        assert rig.statistics.copy_lag_segments == rig.statistics.deleting_segments == 0
        found = compare(rig.store, now_ms=rig.clock.now_ms(), grace_ms=0)
        assert found.missing_keys == ()
        delete_orphans(rig.store, found.orphans)
        assert set(rig.data_keys()) == keys_of(rig.manifest)
        rig.assert_archive_is_whole()


TieredPartition.TestCase.settings = settings(
    max_examples=25,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
