"""What lies behind the archive is in the bucket in time, gives way to segments, and comes back."""

from __future__ import annotations

import shutil
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from strandline.storage.crash_points import (
    TAIL_AFTER_COMMIT,
    TAIL_AFTER_PART,
    SimulatedCrash,
    simulated_crash,
)
from strandline.storage.errors import TierUnavailable
from strandline.storage.records.batch.marker import MarkerType
from strandline.storage.remote.object_store.interface import ObjectInfo, PutBody, PutCondition
from strandline.storage.tiering.audit.orphans import compare, delete_orphans
from strandline.storage.tiering.audit.scrub import Depth, Scrub
from strandline.storage.tiering.copy import open_segment
from strandline.storage.tiering.copy.open_segment import tail_check_ms
from strandline.storage.tiering.partition.open_segment_parts import usable_tail
from strandline.storage.tiering.partition.topic_registration import TopicRegistration
from tests.support.memory_store import Fault, MemoryStore
from tests.unit.storage.tiering.harness import (
    COMPACTED,
    CONFIG,
    GRACE_MS,
    ID_PARTITION,
    Rig,
    asynchronous,
)
from tests.unit.storage.tiering.transactional_producer import Producer

UPLOAD_MS = 10_000
CONFIGURED = replace(CONFIG, strandline_remote_active_segment_upload_ms=UPLOAD_MS)


async def pass_and_settle(rig: Rig, times: int = 4) -> None:
    """Time for what is open to be uploaded, and for nothing to get old."""
    for _ in range(times):
        rig.pass_ms(UPLOAD_MS // 2)
        await rig.manager.run_once()


def tail(rig: Rig) -> list[tuple[int, int]]:
    manifest = rig.manifest
    return [] if manifest is None else [(p.base_offset, p.end_offset) for p in manifest.tail]


@asynchronous
async def test_open_records_are_in_the_bucket_in_time_and_not_before(tmp_path: Path) -> None:
    async with Rig(tmp_path, config=CONFIGURED) as rig:
        rig.produce(10)
        await rig.manager.run_once()
        assert tail(rig) == []
        rig.pass_ms(UPLOAD_MS)
        await rig.manager.run_once()
        assert tail(rig) == [(0, 10)]
        # Nothing new, nothing to do.
        requests = len(rig.memory.requests)
        await pass_and_settle(rig)
        assert len(rig.memory.requests) == requests
        assert rig.archived == []


class WatchedStore(MemoryStore):
    """Notes how far the log is synced when records arrive."""

    rig: Rig

    def __init__(self) -> None:
        super().__init__()
        self.synced: list[tuple[str, int]] = []

    def put(self, key: str, body: PutBody, *, condition: PutCondition | None = None) -> ObjectInfo:
        if key.endswith((".log", ".tail")):
            self.synced.append((Path(key).suffix, self.rig.log.local.recovery_point))
        return super().put(key, body, condition=condition)


@asynchronous
async def test_the_bucket_never_has_more_than_a_machine_that_loses_its_power(
    tmp_path: Path,
) -> None:
    store = WatchedStore()
    async with Rig(tmp_path, config=CONFIGURED, store=store) as rig:
        store.rig = rig
        rig.produce_segments(1)
        await rig.manager.run_once()
        rig.produce(10)
        await rig.manager.run_once()
        rig.pass_ms(UPLOAD_MS)
        await rig.manager.run_once()
        assert store.synced == [(".log", 10), (".tail", 20)]


@asynchronous
async def test_open_records_that_came_right_after_a_look_are_in_the_bucket_in_time(
    tmp_path: Path,
) -> None:
    """The time begins when they came, which nobody has seen, and not with the next look."""
    async with Rig(tmp_path, config=CONFIGURED) as rig:
        await rig.manager.run_once()
        rig.produce(10)
        look_ms = tail_check_ms(rig.tiering_config.task_interval_ms, UPLOAD_MS)
        assert UPLOAD_MS % look_ms == 0
        for _ in range(UPLOAD_MS // look_ms):
            assert tail(rig) == []
            rig.pass_ms(look_ms)
            await rig.manager.run_once()
        assert tail(rig) == [(0, 10)]


@asynchronous
async def test_the_closed_segment_replaces_the_open_one_and_its_parts_go(tmp_path: Path) -> None:
    async with Rig(tmp_path, config=CONFIGURED) as rig:
        rig.produce(10)
        await pass_and_settle(rig)
        rig.produce(10)
        rig.roll()
        await rig.manager.run_once()
        assert (rig.archived, tail(rig)) == ([(0, 20)], [])
        rig.produce(5)
        await pass_and_settle(rig)
        assert tail(rig) == [(20, 25)]
        rig.pass_ms(GRACE_MS)
        await rig.manager.run_once()
        assert len([info for info in rig.store.list("") if info.key.endswith(".tail")]) == 1
        assert compare(rig.store, now_ms=rig.clock.now_ms(), grace_ms=0).orphans == ()
        with ThreadPoolExecutor(2) as executor:
            report = Scrub(rig.store, executor, depth=Depth.EVERYTHING).check(ID_PARTITION)
        assert report.findings == ()


@asynchronous
async def test_a_lost_disk_comes_back_with_its_open_segment(tmp_path: Path) -> None:
    async with Rig(tmp_path, config=CONFIGURED) as rig:
        rig.produce_segments(2)
        await rig.settle()
        for _ in range(3):
            rig.produce(10)
            await pass_and_settle(rig)
        # This one is too young; it is lost with the machine, and nothing else.
        rig.produce(10)
        await rig.lose_disk()
        rig.sent.pop()
        assert rig.log.end_offset == 50
        await rig.assert_everything_is_readable()
        rig.produce(10)
        rig.roll()
        await rig.manager.run_once()
        assert rig.archived[-1] == (20, 60)
        await rig.assert_everything_is_readable()


@asynchronous
async def test_a_lost_disk_comes_back_from_an_archive_that_had_no_closed_segment(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path, config=CONFIGURED) as rig:
        rig.produce(10)
        await pass_and_settle(rig)
        await rig.lose_disk()
        await rig.assert_everything_is_readable()


@asynchronous
async def test_nobody_writes_while_the_open_segment_comes_back(tmp_path: Path) -> None:
    async with Rig(tmp_path, config=CONFIGURED) as rig:
        rig.produce(10)
        await pass_and_settle(rig)
        rig.memory.add_fault(
            Fault(operation="get", key_pattern=r"\.tail$", error=TierUnavailable, times=1)
        )
        await rig.lose_disk()
        with pytest.raises(TierUnavailable):
            rig.produce(10)
        rig.pass_ms(60_000)
        await rig.manager.run_once()
        await rig.manager.run_once()
        await rig.assert_everything_is_readable()


@asynchronous
async def test_there_are_few_parts_however_often_they_are_uploaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_segment, "PART_BYTES_MAX", 4000)
    async with Rig(tmp_path, config=CONFIGURED) as rig:
        for _ in range(40):
            rig.produce(5)
            await pass_and_settle(rig, 3)
        size_bytes = rig.log.local.size_bytes
        assert rig.manifest is not None
        assert rig.manifest.tail_end_offset == 200
        assert len(rig.manifest.tail) <= 2 * size_bytes // 4000 + 6
        await rig.lose_disk()
        await rig.assert_everything_is_readable()


@asynchronous
async def test_parts_that_get_smaller_and_smaller_are_bounded_in_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_segment, "PARTS_MANY", 8)
    async with Rig(tmp_path, config=CONFIGURED) as rig:
        for record_count in range(60, 0, -1):
            rig.produce(record_count)
            await pass_and_settle(rig, 3)
            assert len(tail(rig)) <= 8
        assert tail(rig)[-1][1] == rig.log.end_offset
        await rig.lose_disk()
        await rig.assert_everything_is_readable()


@asynchronous
async def test_open_records_of_more_than_one_part_are_in_the_bucket_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_segment, "PART_BYTES_MAX", 1000)
    async with Rig(tmp_path, config=CONFIGURED) as rig:
        for _ in range(20):
            rig.produce(20)
        await rig.manager.run_once()
        rig.pass_ms(UPLOAD_MS)
        await rig.manager.run_once()
        assert tail(rig)[-1][1] == rig.log.end_offset == 400


@asynchronous
async def test_a_batch_that_is_larger_than_a_part_reaches_the_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_segment, "PART_BYTES_MAX", 500)
    async with Rig(tmp_path, config=CONFIGURED) as rig:
        for record_count in (5, 100, 5, 200, 300):
            rig.produce(record_count)
        await pass_and_settle(rig, 3)
        assert tail(rig)[-1][1] == rig.log.end_offset
        assert rig.statistics.copy_failure is None
        await rig.lose_disk()
        await rig.assert_everything_is_readable()


@pytest.mark.parametrize("point", [TAIL_AFTER_PART, TAIL_AFTER_COMMIT])
def test_an_upload_that_dies_at_a_step_is_made_again(tmp_path: Path, point: str) -> None:
    @asynchronous
    async def run() -> None:
        async with Rig(tmp_path, config=CONFIGURED) as rig:
            rig.produce(10)
            await rig.manager.run_once()
            rig.pass_ms(UPLOAD_MS)
            with pytest.raises(SimulatedCrash), simulated_crash(point):
                await rig.manager.run_once()
            await rig.crash()
            await pass_and_settle(rig)
            assert tail(rig) == [(0, 10)]
            found = compare(rig.store, now_ms=rig.clock.now_ms(), grace_ms=0)
            assert len(found.orphans) == (1 if point == TAIL_AFTER_PART else 0)
            delete_orphans(rig.store, found.orphans)
            await rig.lose_disk()
            await rig.assert_everything_is_readable()

    run()


@asynchronous
async def test_a_disk_with_another_past_than_the_parts_replaces_them(tmp_path: Path) -> None:
    async with Rig(tmp_path, config=CONFIGURED) as rig:
        rig.produce(10)
        await pass_and_settle(rig)
        rig.log.local.truncate_to(0)
        rig.sent.clear()
        rig.produce(3)
        rig.produce(3)
        await rig.crash()
        await pass_and_settle(rig)
        assert tail(rig) == [(0, 6)]
        await rig.lose_disk()
        await rig.assert_everything_is_readable()


@pytest.mark.parametrize("image", ["before the open segment", "inside it", "inside a part"])
@asynchronous
async def test_an_older_image_of_the_disk_goes_on_with_what_the_bucket_has_of_the_open_segment(
    tmp_path: Path, image: str
) -> None:
    """It ends behind the archive, and yet the bucket has more than it."""
    async with Rig(tmp_path, config=CONFIGURED) as rig:
        rig.produce_segments(2)
        await rig.manager.run_once()

        def save(moment: str) -> None:
            if image == moment:
                shutil.copytree(rig.folder, tmp_path / "image")

        save("before the open segment")
        rig.produce(40)
        await pass_and_settle(rig)
        save("inside it")
        rig.produce(10)
        save("inside a part")
        rig.produce(6)
        await pass_and_settle(rig)
        assert tail(rig) == [(20, 60), (60, 76)]
        shutil.rmtree(rig.folder)
        shutil.copytree(tmp_path / "image", rig.folder)
        await rig.crash()
        assert rig.log.end_offset == 76
        await rig.assert_everything_is_readable()
        rig.produce(5)
        await pass_and_settle(rig)
        await rig.lose_disk()
        assert rig.log.end_offset == 81
        await rig.assert_everything_is_readable()


@asynchronous
async def test_parts_that_begin_inside_the_archive_or_end_below_the_log_start_do_not_come_back(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path, config=CONFIGURED) as rig:
        rig.produce_segments(2)
        rig.produce(10)
        await pass_and_settle(rig)
        manifest = rig.manifest
        assert manifest is not None
        assert [(part.base_offset, part.end_offset) for part in manifest.tail] == [(20, 30)]
        assert usable_tail(manifest) == manifest.tail
        overlapping = (replace(manifest.tail[0], base_offset=10),)
        assert usable_tail(replace(manifest, tail=overlapping)) == ()
        assert usable_tail(replace(manifest, log_start_offset=30)) == ()


def tails_put(rig: Rig) -> int:
    return rig.memory.count_requests("put", r"\.tail$")


@asynchronous
async def test_an_open_transaction_keeps_no_record_from_the_bucket(tmp_path: Path) -> None:
    async with Rig(tmp_path, config=CONFIGURED) as rig:
        rig.produce_segments(1)
        transaction = Producer(rig, 1)
        rig.produce(4)
        transaction.send()
        rig.produce(5)
        rig.roll()
        rig.produce_segments(2)
        rig.produce(3)
        await pass_and_settle(rig)
        # Each part ends with its segment at the latest.
        assert (rig.archived, tail(rig)) == ([(0, 10)], [(10, 20), (20, 30), (30, 40), (40, 43)])
        rig.produce(2)
        await pass_and_settle(rig)
        assert tail(rig) == [(10, 20), (20, 30), (30, 40), (40, 43), (43, 45)]
        put = tails_put(rig)
        transaction.end(MarkerType.COMMIT)
        await rig.manager.run_once()
        # What is archived now takes its parts along; those behind it are not uploaded again.
        assert rig.archived == [(0, 10), (10, 20), (20, 30), (30, 40)]
        assert tail(rig) == [(40, 43), (43, 45)]
        await pass_and_settle(rig)
        assert tail(rig) == [(40, 43), (43, 45), (45, 46)]
        assert tails_put(rig) == put + 1
        rig.assert_archive_is_whole()


@asynchronous
async def test_a_lost_disk_comes_back_with_all_that_an_open_transaction_held_back(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path, config=CONFIGURED) as rig:
        rig.produce_segments(1)
        transaction = Producer(rig, 1)
        transaction.send()
        rig.produce_segments(3)
        rig.produce(3)
        await pass_and_settle(rig)
        before = await rig.read_all()
        await rig.lose_disk()
        assert rig.log.end_offset == 44
        assert await rig.read_all() == before
        assert rig.log.local.last_stable_offset == 10
        # Its disk has one segment where the parts were of several.
        rig.roll()
        rig.produce(4)
        await pass_and_settle(rig)
        assert tail(rig)[-1] == (44, 48)
        transaction.end(MarkerType.ABORT)
        await pass_and_settle(rig)
        assert (rig.archived, tail(rig)) == ([(0, 10), (10, 44)], [(44, 48), (48, 49)])
        rig.assert_archive_is_whole()


@asynchronous
async def test_a_restart_uploads_nothing_again_of_what_an_open_transaction_holds_back(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path, config=CONFIGURED) as rig:
        Producer(rig, 1).send()
        rig.produce_segments(2)
        rig.produce(3)
        await pass_and_settle(rig)
        put, parts = tails_put(rig), tail(rig)
        await rig.crash()
        await pass_and_settle(rig)
        assert (tails_put(rig), tail(rig)) == (put, parts)
        rig.produce(3)
        await pass_and_settle(rig)
        assert (tails_put(rig), tail(rig)[:2]) == (put + 1, parts[:2])


@asynchronous
async def test_an_older_image_of_the_disk_goes_on_with_what_the_bucket_has_of_later_segments(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path, config=CONFIGURED) as rig:
        Producer(rig, 1).send()
        rig.produce_segments(2)
        rig.produce(3)
        shutil.copytree(rig.folder, tmp_path / "image")
        rig.produce(4)
        rig.produce_segments(1)
        rig.produce(3)
        await pass_and_settle(rig)
        before, end_offset = await rig.read_all(), rig.log.end_offset
        assert tail(rig)[-1][1] == end_offset
        shutil.rmtree(rig.folder)
        shutil.copytree(tmp_path / "image", rig.folder)
        await rig.crash()
        assert rig.log.end_offset == end_offset
        assert await rig.read_all() == before


@asynchronous
async def test_so_many_parts_end_the_uploads_until_a_segment_can_be_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_segment, "PARTS_MAX", 4)
    async with Rig(tmp_path, config=CONFIGURED) as rig:
        transaction = Producer(rig, 1)
        transaction.send()
        rig.produce_segments(6)
        await pass_and_settle(rig)
        assert len(tail(rig)) == 4
        transaction.end(MarkerType.COMMIT)
        rig.produce(3)
        await pass_and_settle(rig)
        assert (rig.archived[-1], tail(rig)) == ((51, 61), [(61, 65)])


@asynchronous
async def test_segments_that_wait_for_the_cleaner_are_in_the_bucket_in_time(
    tmp_path: Path,
) -> None:
    config = replace(COMPACTED, strandline_remote_active_segment_upload_ms=UPLOAD_MS)
    async with Rig(tmp_path, config=config) as rig:
        for value in (b"1", b"2", b"3"):
            rig.put((b"a", value), (b"only-" + value, value))
            rig.seal()
        await pass_and_settle(rig)
        assert (rig.archived, tail(rig)) == ([], [(0, 2), (2, 4), (4, 6)])
        await rig.lose_disk()
        await rig.assert_nothing_is_lost()
        rig.seal()
        await rig.clean()
        await pass_and_settle(rig)
        assert (rig.archived, tail(rig)) == ([(0, 6)], [])
        await rig.assert_nothing_is_lost()


@asynchronous
async def test_what_the_cleaner_replaced_is_uploaded_again_where_it_still_waits(
    tmp_path: Path,
) -> None:
    """The cleaner takes back what it did: parts of other bytes do not go on."""
    config = replace(COMPACTED, strandline_remote_active_segment_upload_ms=UPLOAD_MS)
    async with Rig(tmp_path, config=config) as rig:
        for value in (b"1", b"2"):
            rig.put((b"a", value), (b"only-" + value, value))
            rig.seal()
        await pass_and_settle(rig)
        await rig.clean()
        rig.cleaned_offset = rig.log.local.cleaned_offset = 0
        rig.put((b"b", b"3"))
        await pass_and_settle(rig)
        assert tail(rig)[-1][1] == rig.log.end_offset == 5
        await rig.lose_disk()
        await rig.assert_nothing_is_lost()


@asynchronous
async def test_segments_that_remote_copy_lag_ms_holds_back_are_not_uploaded_twice(
    tmp_path: Path,
) -> None:
    config = replace(CONFIGURED, remote_copy_lag_ms=100 * UPLOAD_MS, local_retention_ms=-2)
    async with Rig(tmp_path, config=config) as rig:
        rig.produce_segments(2)
        rig.produce(3)
        await pass_and_settle(rig)
        assert (rig.archived, tail(rig)) == ([], [])


@asynchronous
async def test_the_tail_holds_no_file_of_a_segment_that_is_gone(tmp_path: Path) -> None:
    async with Rig(tmp_path, config=CONFIGURED) as rig:
        transaction = Producer(rig, 1)
        transaction.send()
        rig.produce_segments(2)
        await pass_and_settle(rig)
        closed = [weakref.ref(segment) for segment in rig.log.local.segments[:-1]]
        transaction.end(MarkerType.COMMIT)
        await rig.settle()
        rig.pass_ms(2000)
        await rig.settle()
        assert rig.log.local.start_offset == 21
        assert [ref() for ref in closed] == [None, None]


@asynchronous
async def test_a_log_start_inside_the_open_segment_is_no_obstacle(tmp_path: Path) -> None:
    async with Rig(tmp_path, config=CONFIGURED) as rig:
        for _ in range(3):
            rig.produce(10)
        rig.log.delete_records(15)
        await rig.write_log_starts()
        await pass_and_settle(rig)
        assert tail(rig) == [(0, 30)]
        await rig.lose_disk()
        assert (rig.log.log_start_offset, rig.log.end_offset) == (15, 30)
        assert await rig.read_all(20) == rig.sent[2]


@asynchronous
async def test_a_segment_that_is_closed_while_its_topic_is_registered_is_copied_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Rig(tmp_path, config=CONFIGURED) as rig:
        rig.produce(10)
        await pass_and_settle(rig)
        rig.produce(10)
        await rig.manager.run_once()
        rig.pass_ms(UPLOAD_MS)
        registered = TopicRegistration.ensure

        async def rolls_meanwhile(registration: TopicRegistration) -> None:
            rig.roll()
            await registered(registration)

        monkeypatch.setattr(TopicRegistration, "ensure", rolls_meanwhile)
        await rig.manager.run_once()
        monkeypatch.undo()
        assert rig.log.local.active_segment.base_offset == 20
        assert rig.statistics.copy_failure is None
        await pass_and_settle(rig)
        assert (rig.archived, tail(rig)) == ([(0, 20)], [])


@asynchronous
async def test_a_limit_that_is_altered_while_records_wait_counts_from_when_they_came(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path, config=CONFIGURED) as rig:
        rig.configure(strandline_remote_active_segment_upload_ms=3_600_000)
        rig.produce(10)
        await rig.manager.run_once()
        rig.pass_ms(UPLOAD_MS // 2)
        rig.configure(strandline_remote_active_segment_upload_ms=UPLOAD_MS)
        await rig.manager.run_once()
        assert tail(rig) == [], "half of it has passed"
        rig.configure(strandline_remote_active_segment_upload_ms=2 * UPLOAD_MS)
        rig.pass_ms(UPLOAD_MS)
        await rig.manager.run_once()
        assert tail(rig) == []
        rig.pass_ms(UPLOAD_MS // 2)
        await rig.manager.run_once()
        assert tail(rig) == [(0, 10)]


@asynchronous
async def test_nothing_more_is_uploaded_while_copying_is_disabled(tmp_path: Path) -> None:
    """KIP-950: what is in the bucket stays there."""
    async with Rig(tmp_path, config=CONFIGURED) as rig:
        rig.produce(10)
        await pass_and_settle(rig)
        assert tail(rig) == [(0, 10)]
        rig.configure(remote_log_copy_disable=True)
        rig.produce(10)
        await pass_and_settle(rig)
        assert tail(rig) == [(0, 10)]
        rig.configure(remote_log_copy_disable=False)
        await pass_and_settle(rig)
        assert tail(rig)[-1][1] == 20
