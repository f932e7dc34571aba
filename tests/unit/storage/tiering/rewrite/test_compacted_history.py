"""Any life of a compacted tiered log ends with the true table; and the model sees what it must.

Each planted fault is one that would lose, revive or keep something. `test_the_model_finds` demands
that one of the histories shows it, so that none of the checks of `compacted_history.py` sleeps.
It begins with the history that is known to, as a search from the first one takes minutes of a
loaded machine; `make test-faults` searches, and prints the seeds.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from strandline.storage.config.log_config import LONG_MAX
from strandline.storage.local.cleaner.messages import CleaningRequest, CleaningStatistics
from strandline.storage.local.cleaner.transactions import CleanedTransactions
from strandline.storage.model import AbortedTransaction
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.remote.manifest import manifest
from strandline.storage.remote.manifest import store as manifest_store
from strandline.storage.remote.manifest.compaction_mark import CompactionMark, next_mark
from strandline.storage.remote.manifest.entries import SegmentEntry
from strandline.storage.remote.manifest.manifest import Manifest
from strandline.storage.remote.manifest.store import Replacement
from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.remote.segment import meta as segment_meta
from strandline.storage.tiering.rewrite import compaction, merging
from strandline.storage.tiering.rewrite.compaction import CompactionRound, CompactionSteps
from tests.support.heavy import first
from tests.unit.storage.tiering.compacted_history import GRACE_MS, History
from tests.unit.storage.tiering.harness import COMPACTED, asynchronous
from tests.unit.storage.tiering.slow_reader import DELETE_RETENTION_MS

Patch = pytest.MonkeyPatch
EVENTS = 100
SEEDS = range(8)
# A fault has to show in one of so many.
SEARCHED = range(100, 150)
# What makes the search begin with the first of them.
SEARCH_VARIABLE = "STRANDLINE_SEARCH_FAULTS"
SMALL_PAGES = {"root_entries_max": 5, "page_entries": 4}


def run_history(folder: Path, seed: int, patch: Patch) -> None:
    """One life from its seed alone."""
    draw = random.Random(seed)
    config = replace(
        COMPACTED,
        segment_bytes=400,
        delete_retention_ms=DELETE_RETENTION_MS,
        # With 1 the disk has nothing but the open segment, and tombstones depend on the bucket.
        local_retention_ms=draw.choice([1, 1, 1000]),
        min_cleanable_dirty_ratio=draw.choice([0.0, 0.0, 0.3]),
    )
    merge = draw.choice([0, 800])
    if draw.random() < 0.4:
        patch.setattr(manifest_store, "commit", partial(manifest_store.commit, **SMALL_PAGES))

    @asynchronous
    async def live() -> None:
        async with History(folder, config=config, merge=merge, draw=draw) as history:
            if draw.random() < 0.5:
                # What is archived before a topic is compacted has all there is, aborts too.
                history.configure(cleanup_policy=("delete",))
                await history.live(EVENTS // 4)
                history.configure(cleanup_policy=("compact",))
            await history.live(EVENTS)
            history.configure(min_cleanable_dirty_ratio=0.0)
            await history.come_to_rest()
            assert history.manifest is not None
            assert history.manifest.compaction is not None
            cleaned_offset = history.manifest.compaction.cleaned_offset
            assert cleaned_offset == history.manifest.end_offset
            rows = [r for r in await history.records() if r.offset < cleaned_offset]
            assert [r.key for r in rows if r.value is None] == []
            await history.lose_disk()
            history.check()
            await history.assert_nothing_is_lost()

    live()


@pytest.mark.slow
@pytest.mark.parametrize("seed", first(1, SEEDS))
def test_any_history_of_a_tiered_compacted_log_keeps_the_latest_of_each_key(
    tmp_path: Path, seed: int, monkeypatch: Patch
) -> None:
    run_history(tmp_path, seed, monkeypatch)


@asynchronous
async def test_what_a_producer_committed_after_an_abort_stays_however_often_it_is_compacted(
    tmp_path: Path,
) -> None:
    """The marker of the abort goes with an early round; its entry in the index goes with it."""
    draw = random.Random(1)
    async with History(tmp_path, config=COMPACTED, merge=0, draw=draw) as history:
        history.transact((b"a", b"aborted"), commits=False)
        history.transact((b"a", b"committed"), commits=True)
        history.seal()
        for number in range(6):
            history.put((b"other", b"%d" % number))
            history.seal()
            await history.clean()
            await history.settle()
            history.check()
            assert [r.value for r in await history.records() if r.key == b"a"] == [b"committed"]
            history.pass_ms(COMPACTED.delete_retention_ms + GRACE_MS)
        # Both markers are gone, so nothing may name the transaction any more.
        (first, *_) = history.entries(history.manifest)
        batches = list(walk(history.memory._objects[first.log_key].body))
        assert [batch.header.is_control for batch in batches].count(True) <= 1
        meta = segment_meta.decode(history.memory._objects[first.meta_key].body)
        assert segment_meta.Section.TXN_INDEX not in meta
        await history.lose_disk()
        await history.assert_nothing_is_lost()


# --- planted faults ------------------------------------------------------------------------------


def tombstones_go_at_the_next_round(patch: Patch) -> None:
    patch.setattr(CompactionMark, "droppable_below", lambda self, **_: self.horizon_offset)


def tombstones_go_when_their_own_time_is_over(patch: Patch) -> None:
    request = CompactionRound._request

    def forgets(self: CompactionRound) -> CleaningRequest:
        return replace(request(self), horizon_end_offset=LONG_MAX)

    patch.setattr(CompactionRound, "_request", forgets)


def the_disk_is_forgotten_when_tombstones_go(patch: Patch) -> None:
    def forgets(before: CompactionMark | None, **known: int) -> CompactionMark:
        return next_mark(before, **{**known, "local_start_offset": known["cleaned_offset"]})

    patch.setattr(compaction, "next_mark", forgets)


def the_time_of_tombstones_begins_with_the_first_round(patch: Patch) -> None:
    def never_later(before: CompactionMark | None, **known: int) -> CompactionMark:
        mark = next_mark(before, **known)
        return mark if before is None else replace(mark, horizon_ms=before.horizon_ms)

    patch.setattr(compaction, "next_mark", never_later)


def what_was_copied_meanwhile_is_taken_as_clean(patch: Patch) -> None:
    mark = CompactionSteps._next_mark

    def too_far(self: CompactionSteps, done: CleaningStatistics) -> CompactionMark:
        end_offset = self._owner.manifest().end_offset
        return replace(mark(self, done), cleaned_offset=end_offset)

    patch.setattr(CompactionSteps, "_next_mark", too_far)


def the_first_dirty_segment_is_not_indexed(patch: Patch) -> None:
    request = CompactionRound._request

    def skips(self: CompactionRound) -> CleaningRequest:
        wanted = request(self)
        dirty = [s for s in wanted.segments if s.end_offset > wanted.first_dirty_offset]
        return replace(wanted, first_dirty_offset=dirty[0].end_offset if dirty else 0)

    patch.setattr(CompactionRound, "_request", skips)


def a_run_is_committed_over_the_manifest_of_the_begin(patch: Patch) -> None:
    begin, commit = CompactionSteps._begin_compacting, CompactionSteps._commit_runs
    first: dict[int, Manifest] = {}

    async def remembers(self: CompactionSteps) -> bool:
        if self._owner.remote.manifest is not None:
            first[id(self)] = self._owner.remote.manifest
        return await begin(self)

    async def goes_back(
        self: CompactionSteps, manifest: Manifest, runs: Sequence[Replacement]
    ) -> bool:
        old = replace(first[id(self)], revision=manifest.revision)
        return await commit(self, old, runs)

    patch.setattr(CompactionSteps, "_begin_compacting", remembers)
    patch.setattr(CompactionSteps, "_commit_runs", goes_back)


def replaced_objects_are_forgotten(patch: Patch) -> None:
    for module in (manifest, manifest_store):
        patch.setattr(module, "replaced_marks", lambda *_, **__: ())


def a_replaced_page_is_forgotten(patch: Patch) -> None:
    replaced = Manifest.with_replaced_page

    def without_page(self: Manifest, old: object, new: object, marks: Sequence[object]) -> Manifest:
        return replaced(self, old, new, marks[:-1])  # type: ignore[arg-type]

    patch.setattr(Manifest, "with_replaced_page", without_page)


def replaced_objects_go_at_once(patch: Patch) -> None:
    marks = manifest.replaced_marks

    def long_ago(old: Sequence[SegmentEntry], new: Sequence[SegmentEntry], **_: int) -> object:
        return marks(old, new, marked_ms=0)

    for module in (manifest, manifest_store):
        patch.setattr(module, "replaced_marks", long_ago)


def aborted_transactions_count(patch: Patch) -> None:
    def reads_none(self: CompactionRound) -> None:
        self._unread.clear()

    patch.setattr(CompactionRound, "_read_some_aborted", reads_none)


def the_index_names_transactions_whose_markers_are_gone(patch: Patch) -> None:
    """As it was until this model found it, with what made it lose records."""
    patch.setattr(CleanedTransactions, "_end_below", lambda *_: None)
    publish = merging.SegmentMerger.publish

    def of_the_run(self: object, *given: object, **more: object) -> object:
        return publish(self, *given, **{**more, "aborted": None})  # type: ignore[arg-type]

    patch.setattr(merging.SegmentMerger, "publish", of_the_run)


def the_index_of_aborted_transactions_is_lost(patch: Patch) -> None:
    sections_of = merging.sections_of

    def without(*given: object, aborted: set[AbortedTransaction], **more: object) -> object:
        return sections_of(*given, aborted=set(), **more)  # type: ignore[arg-type]

    patch.setattr(merging, "sections_of", without)


def a_record_is_lost_at_the_border_of_a_run(patch: Patch) -> None:
    """The first batch of every rewritten file but the first goes."""
    publish = merging.SegmentMerger.publish

    def cuts(self: object, partition: object, run: object, path: Path, **more: object) -> object:
        content = path.read_bytes()
        batches = list(walk(content))
        if len(batches) > 2:
            path.write_bytes(content[batches[1].position :])
        return publish(self, partition, run, path, **more)  # type: ignore[arg-type]

    patch.setattr(merging.SegmentMerger, "publish", cuts)


def a_mark_is_never_written(patch: Patch) -> None:
    patch.setattr(Manifest, "with_compaction", lambda self, _mark: self)


def a_page_is_made_of_the_wrong_entries(patch: Patch) -> None:
    right = manifest_store.with_replaced_runs

    def replaces_the_first(
        store: ObjectStore, old: Manifest, runs: Sequence[Replacement], *, marked_ms: int
    ) -> Manifest:
        page = old.find_page(runs[0].old[0].base_offset)
        if page is None:
            return right(store, old, runs, marked_ms=marked_ms)
        entries = manifest_store.read_page(store, page)
        # As if the first run stood at the begin of the page.
        changed = [runs[0].new, *entries[len(runs[0].old) :]]
        if (changed[0].base_offset, changed[-1].end_offset) != (page.base_offset, page.end_offset):
            raise ValueError
        ref = manifest_store.write_page(store, old.topic_id_partition, changed)
        return old.with_replaced_page(page, ref, ())

    patch.setattr(manifest_store, "with_replaced_runs", replaces_the_first)


def of_some_runs_only_the_first_is_committed(patch: Patch) -> None:
    right = manifest_store.with_replaced_runs

    def replaces_the_first(
        store: ObjectStore, old: Manifest, runs: Sequence[Replacement], *, marked_ms: int
    ) -> Manifest:
        return right(store, old, runs[:1], marked_ms=marked_ms)

    patch.setattr(manifest_store, "with_replaced_runs", replaces_the_first)


# Each with the first history that showed it. One that does so no more, since the history of a seed
# is another one after a change, costs a search and no find.
FAULTS: dict[Callable[[Patch], None], int] = {
    tombstones_go_at_the_next_round: 110,
    tombstones_go_when_their_own_time_is_over: 101,
    the_disk_is_forgotten_when_tombstones_go: 101,
    the_time_of_tombstones_begins_with_the_first_round: 110,
    what_was_copied_meanwhile_is_taken_as_clean: 106,
    the_first_dirty_segment_is_not_indexed: 100,
    a_run_is_committed_over_the_manifest_of_the_begin: 100,
    replaced_objects_are_forgotten: 100,
    a_replaced_page_is_forgotten: 102,
    replaced_objects_go_at_once: 100,
    aborted_transactions_count: 100,
    the_index_names_transactions_whose_markers_are_gone: 102,
    the_index_of_aborted_transactions_is_lost: 125,
    a_record_is_lost_at_the_border_of_a_run: 100,
    a_mark_is_never_written: 100,
    a_page_is_made_of_the_wrong_entries: 102,
    of_some_runs_only_the_first_is_committed: 102,
}


def searched(fault: Callable[[Patch], None]) -> list[int]:
    """Seeds in the order in which they are tried: all of them, whichever comes first."""
    if os.environ.get(SEARCH_VARIABLE):
        return list(SEARCHED)
    return sorted(SEARCHED, key=lambda seed: seed != FAULTS[fault])


@pytest.mark.slow
@pytest.mark.parametrize("fault", first(3, FAULTS), ids=lambda fault: fault.__name__)
def test_the_model_finds(
    fault: Callable[[Patch], None], tmp_path: Path, monkeypatch: Patch
) -> None:
    fault(monkeypatch)
    for seed in searched(fault):
        with monkeypatch.context() as pages:
            try:
                run_history(tmp_path / str(seed), seed, pages)
            except AssertionError as error:
                print(f"seed {seed}: {str(error)[:200]}")
                return
            except TimeoutError:
                # A slow machine shows nothing.
                continue
    pytest.fail(f"no history shows it: {fault.__name__}")
