"""An older image of the disk, started while its store is away, takes records all the same.

archive   [ 0 .. 20 )[ 20 .. 40 )      the broker before the image was put back
image     [ 0 .. 20 ) own own own      what was acknowledged since, under the same offsets
"""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from strandline.storage.config.log_config import LogConfig
from strandline.storage.crash_points import (
    CRASH_POINTS,
    GIVE_BACK_AFTER_APPEND,
    GIVE_BACK_AFTER_CUT,
    GIVE_BACK_AFTER_NOTE,
    GIVE_BACK_AFTER_PIECE,
    GIVE_BACK_AFTER_RESTART,
    GIVE_BACK_AFTER_TARGET,
    SimulatedCrash,
    simulated_crash,
)
from strandline.storage.errors import TierUnavailable
from strandline.storage.local.log import diverged_records
from strandline.storage.local.log.log import LocalLog
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.records.batch.record import Record, encode_batch, iter_records
from strandline.storage.tiering.partition.lone_disk import divergence
from strandline.storage.tiering.policy.leadership import Lead
from tests.support.lone_replica import append_alone
from tests.support.memory_store import Fault
from tests.unit.storage.tiering.harness import CONFIG, GRACE_MS, Rig, asynchronous

UPLOAD_MS = 10_000
TAILED = replace(CONFIG, strandline_remote_active_segment_upload_ms=UPLOAD_MS)


async def settle(rig: Rig) -> None:
    for _ in range(3):
        rig.pass_ms(GRACE_MS)
        await rig.settle()


async def put_back_an_older_image(rig: Rig, *, archived_after: int) -> None:
    """The disk as it was after two segments; the archive has more. The store is not asked yet."""
    rig.produce_segments(2)
    await rig.manager.run_once()
    rig.produce(3)
    shutil.copytree(rig.folder, rig.folder.with_name("image"))
    for _ in range(archived_after):
        rig.produce(10)
        rig.roll()
        await rig.manager.run_once()
    shutil.rmtree(rig.folder)
    rig.folder.with_name("image").rename(rig.folder)
    await rig.crash(start=False)


async def contents(rig: Rig) -> list[bytes]:
    """The values of all records, in order of offsets."""
    return values_in(await rig.read_all(0))


def archived_values(rig: Rig) -> list[bytes]:
    """The same, as far as they are in the bucket."""
    manifest = rig.manifest
    if manifest is None:
        return []
    keys = [entry.log_key for entry in manifest.segments] + [part.key for part in manifest.tail]
    return values_in(b"".join(rig.memory.get(key) for key in keys))


def values_in(batches: bytes) -> list[bytes]:
    values: list[bytes] = []
    for batch in walk(batches):
        for record in iter_records(batches, batch.header, batch.position):
            assert record.offset == len(values)
            assert record.value is not None
            values.append(bytes(record.value))
    return values


def sent_values(batches: list[bytes]) -> list[bytes]:
    return [
        bytes(record.value or b"")
        for batch in batches
        for record in iter_records(batch, next(walk(batch)).header)
    ]


@pytest.mark.parametrize("own_count", [1, 2, 5, 9])
@asynchronous
async def test_what_an_older_image_took_while_the_store_was_away_comes_behind_the_archive(
    tmp_path: Path, own_count: int
) -> None:
    """Whether it ends before the archive or behind it: all of both is there, and once."""
    async with Rig(tmp_path) as rig:
        await put_back_an_older_image(rig, archived_after=3)
        archived = list(rig.sent)
        for _ in range(own_count):
            rig.produce(7)
        if own_count > 2:
            rig.roll()
            rig.produce(7)
        own = rig.sent[len(archived) :]
        await settle(rig)
        assert await contents(rig) == sent_values([*archived, *own])
        rig.produce_segments(1)
        await settle(rig)
        assert rig.archived[-1][1] == rig.log.end_offset
        assert await contents(rig) == sent_values(rig.sent)
        assert not diverged_records.folder_of(rig.log.local).exists()
        await rig.lose_disk()
        assert await contents(rig) == sent_values(rig.sent)


@asynchronous
async def test_a_replica_with_others_sets_nothing_aside_and_takes_no_records(
    tmp_path: Path,
) -> None:
    """It was elected without the records that the archive has; another one may have them."""
    async with Rig(tmp_path) as rig:
        await put_back_an_older_image(rig, archived_after=2)
        rig.produce(7)
        rig.manager.begin_leading(rig.log.topic_partition, rig.leader_epoch, is_lone=False)
        archived = rig.archived
        await settle(rig)
        assert rig.archived == archived
        assert not rig.log.may_append
        assert not diverged_records.folder_of(rig.log.local).exists()
        failure = rig.statistics.copy_failure
        assert failure is not None
        assert "other records than this replica" in failure.reason
        # With the others gone it is a lone disk.
        rig.manager.begin_leading(rig.log.topic_partition, rig.leader_epoch)
        await settle(rig)
        assert await contents(rig) == sent_values(rig.sent)


@asynchronous
async def test_what_lies_before_the_first_that_comes_back_is_synced_before_its_place_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a loss of power leaves a log that ends before that place, and all of it comes twice."""
    write_note = diverged_records.write_note
    noted: list[int] = []

    def note(log: LocalLog, noting: diverged_records.SetAside) -> None:
        if noting.target_offset != diverged_records.NOT_KNOWN:
            noted.append(noting.target_offset)
            assert log.recovery_point >= noting.target_offset
        write_note(log, noting)

    monkeypatch.setattr(diverged_records, "write_note", note)
    async with Rig(tmp_path, config=TAILED) as rig:
        rig.produce_segments(2)
        await rig.manager.run_once()
        rig.produce(3)
        shutil.copytree(rig.folder, rig.folder.with_name("image"))
        rig.roll()
        rig.produce(10)
        for _ in range(3):
            rig.pass_ms(UPLOAD_MS)
            await rig.manager.run_once()
        shutil.rmtree(rig.folder)
        rig.folder.with_name("image").rename(rig.folder)
        await rig.crash(start=False)
        rig.produce(7)
        # The open segment in the bucket is appended first, and not synced by that.
        await settle(rig)
        assert noted == [33]


@pytest.mark.parametrize(
    "point",
    [
        GIVE_BACK_AFTER_NOTE,
        GIVE_BACK_AFTER_CUT,
        GIVE_BACK_AFTER_RESTART,
        GIVE_BACK_AFTER_TARGET,
        GIVE_BACK_AFTER_PIECE,
        GIVE_BACK_AFTER_APPEND,
    ],
)
@pytest.mark.parametrize("is_away_again", [False, True])
@asynchronous
async def test_a_crash_between_any_two_steps_loses_nothing_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, is_away_again: bool
) -> None:
    monkeypatch.setattr(divergence, "PIECE_BYTES", 300)
    async with Rig(tmp_path) as rig:
        await put_back_an_older_image(rig, archived_after=2)
        for _ in range(6):
            rig.produce(7)
        with simulated_crash(point), pytest.raises(SimulatedCrash):
            await settle(rig)
        if is_away_again:
            rig.memory.add_fault(Fault(key_pattern=".", error=TierUnavailable, times=4))
        await rig.crash()
        if is_away_again:
            # Who appended now would come between them.
            with pytest.raises(TierUnavailable):
                rig.produce(1)
        await settle(rig)
        rig.produce_segments(1)
        await settle(rig)
        assert await contents(rig) == sent_values(rig.sent)
        assert not diverged_records.folder_of(rig.log.local).exists()


@asynchronous
async def test_the_open_segment_in_the_bucket_comes_before_what_the_image_took(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path, config=TAILED) as rig:
        rig.produce_segments(2)
        rig.produce(5)
        await settle(rig)
        shutil.copytree(rig.folder, tmp_path / "image")
        rig.produce(10)
        await settle(rig)
        shutil.rmtree(rig.folder)
        (tmp_path / "image").rename(rig.folder)
        await rig.crash(start=False)
        rig.produce(3)
        await settle(rig)
        assert await contents(rig) == sent_values(rig.sent)
        await rig.lose_disk()
        assert await contents(rig) == sent_values(rig.sent)


@asynchronous
async def test_until_it_is_known_whose_the_archive_is_nothing_is_moved(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        await put_back_an_older_image(rig, archived_after=1)
        rig.lead = Lead.UNKNOWN
        await rig.crash(start=False)
        for _ in range(5):
            rig.produce(7)
        before = rig.local_segments
        await settle(rig)
        assert rig.local_segments == before
        rig.manager.confirm()
        await settle(rig)
        assert await contents(rig) == sent_values(rig.sent)


@asynchronous
async def test_of_another_brokers_archive_this_disk_keeps_what_it_took(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        await put_back_an_older_image(rig, archived_after=1)
        rig.lead = Lead.UNKNOWN
        await rig.crash(start=False)
        del rig.sent[3:]
        for _ in range(5):
            rig.produce(7)
        await settle(rig)
        rig.manager.lose("somebody else's start is in the bucket")
        await settle(rig)
        rig.produce(1)
        assert await contents(rig) == sent_values(rig.sent)


@asynchronous
async def test_a_producer_of_the_image_goes_on_where_it_was(tmp_path: Path) -> None:
    """What it sends once more is answered with the new offset, what comes next is in order."""
    async with Rig(tmp_path) as rig:
        await put_back_an_older_image(rig, archived_after=2)
        own = bytes(idempotent_batch(rig, sequence=0))
        append_alone(rig.log, memoryview(bytearray(own)), leader_epoch=rig.leader_epoch)
        await settle(rig)
        end_offset = rig.log.end_offset
        again = append_alone(rig.log, memoryview(bytearray(own)), leader_epoch=rig.leader_epoch)
        assert (again.duplicate, again.base_offset) == (True, end_offset - 1)
        following = idempotent_batch(rig, sequence=1)
        append_alone(rig.log, memoryview(following), leader_epoch=rig.leader_epoch)
        assert rig.log.end_offset == end_offset + 1


def idempotent_batch(rig: Rig, *, sequence: int) -> bytearray:
    record = Record(offset=0, timestamp_ms=rig.clock.now_ms(), key=None, value=b"own")
    return bytearray(
        encode_batch([record], producer_id=7, producer_epoch=0, base_sequence=sequence)
    )


@pytest.mark.parametrize("config", [CONFIG, TAILED], ids=["closed", "open too"])
@pytest.mark.parametrize("seed", range(12))
@asynchronous
async def test_whatever_happens_between_images_all_that_was_acknowledged_is_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, config: LogConfig
) -> None:
    """But for what an image takes away that the bucket never had, as a lost disk does."""
    monkeypatch.setattr(divergence, "PIECE_BYTES", 200)
    random = Random(seed)
    async with Rig(tmp_path, config=config) as rig:
        life = _Life(rig, random)
        for _ in range(60):
            await life.step()
        await life.come_back()
        assert sorted(await contents(rig)) == sorted(life.acknowledged)


class _Life:
    """Records with values that are never the same, and what has to be left of them."""

    def __init__(self, rig: Rig, random: Random) -> None:
        self._rig = rig
        self._random = random
        self._count = 0
        self._image: list[bytes] | None = None
        self._image_folder = rig.folder.with_name("image")
        self._is_away = False
        self.acknowledged: list[bytes] = []

    async def step(self) -> None:
        rig, random = self._rig, self._random
        match random.choice(
            ["produce"] * 4 + ["roll", "settle", "settle", "crash", "image", "back"]
        ):
            case "produce":
                self._produce(random.randint(1, 5))
            case "roll":
                rig.log.local.roll()
            case "settle" if not self._is_away:
                await self._settle()
            case "settle":
                await self.come_back()
            case "crash":
                await rig.crash(start=not self._is_away)
            case "image" if not self._is_away:
                shutil.rmtree(self._image_folder, ignore_errors=True)
                shutil.copytree(rig.folder, self._image_folder)
                self._image = list(self.acknowledged)
            case "back" if self._image is not None:
                await self._put_back(self._image)
            case _:
                pass

    def _produce(self, count: int) -> None:
        rig = self._rig
        found = [b"%d" % (self._count + index) for index in range(count)]
        records = [
            Record(offset=i, timestamp_ms=rig.clock.now_ms(), key=None, value=value)
            for i, value in enumerate(found)
        ]
        self._count += count
        batch = memoryview(bytearray(encode_batch(records)))
        try:
            append_alone(rig.log, batch, leader_epoch=rig.leader_epoch)
        except TierUnavailable:
            return
        self.acknowledged += found

    async def _settle(self) -> None:
        points = [None, *(point for point in CRASH_POINTS if point.startswith("give-back"))]
        point = self._random.choice(points)
        if point is None:
            await settle(self._rig)
            return
        try:
            with simulated_crash(point):
                await settle(self._rig)
        except SimulatedCrash:
            await self._rig.crash(start=self._random.random() < 0.5)

    async def come_back(self) -> None:
        """The store answers; all that follows from it is done, whatever dies in between."""
        self._rig.memory.clear_faults()
        self._is_away = False
        await self._settle()
        await settle(self._rig)
        assert self._rig.log.may_append

    async def _put_back(self, image: list[bytes]) -> None:
        rig = self._rig
        rig.memory.clear_faults()
        archived = archived_values(rig)
        image_only = [value for value in image if value not in set(archived)]
        shutil.rmtree(rig.folder)
        shutil.copytree(self._image_folder, rig.folder)
        rig.memory.add_fault(Fault(key_pattern=".", error=TierUnavailable, times=-1))
        self._is_away = True
        await rig.crash(start=False)
        self.acknowledged = [*archived, *image_only]


@asynchronous
async def test_what_is_set_aside_comes_back_when_the_topic_was_purged_and_is_tiered_again(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path) as rig:
        await put_back_an_older_image(rig, archived_after=2)
        rig.produce(7)
        own = rig.sent[-1:]
        with simulated_crash(GIVE_BACK_AFTER_CUT), pytest.raises(SimulatedCrash):
            await settle(rig)
        rig.memory.add_fault(Fault(error=TierUnavailable, times=-1))
        await rig.crash()
        rig.memory.clear_faults()
        rig.manager.disable_topic(rig.topic_info)
        await settle(rig)
        rig.manager.attach(rig.log, rig.topic_info, leader_epoch=rig.leader_epoch, is_new=True)
        await settle(rig)
        assert not diverged_records.folder_of(rig.log.local).exists()
        assert (await contents(rig))[-7:] == sent_values(own)
        rig.produce(1)


@pytest.mark.parametrize("is_crash", [False, True])
@asynchronous
async def test_what_is_taken_after_a_topic_left_the_archive_is_not_cut_off_with_what_was_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_crash: bool
) -> None:
    """It left while its records were set aside: from then on anybody may append."""
    loop = asyncio.get_running_loop()
    original = diverged_records.set_aside
    async with Rig(tmp_path) as rig:
        await put_back_an_older_image(rig, archived_after=2)
        rig.produce(7)
        own = rig.sent[-1:]

        async def leave() -> None:
            rig.manager.disable_topic(rig.topic_info)
            rig.produce(3)

        def leaving(log: LocalLog, *args: Any) -> None:
            original(log, *args)
            monkeypatch.setattr(diverged_records, "set_aside", original)
            asyncio.run_coroutine_threadsafe(leave(), loop).result()

        if is_crash:
            with simulated_crash(GIVE_BACK_AFTER_NOTE), pytest.raises(SimulatedCrash):
                await settle(rig)
            rig.memory.add_fault(Fault(error=TierUnavailable, times=-1))
            await rig.crash()
            rig.memory.clear_faults()
            await leave()
        else:
            monkeypatch.setattr(diverged_records, "set_aside", leaving)
        await settle(rig)
        rig.manager.attach(rig.log, rig.topic_info, leader_epoch=rig.leader_epoch, is_new=True)
        await settle(rig)
        batches = await rig.read_all(rig.log.log_start_offset)
        values = [
            bytes(record.value or b"")
            for batch in walk(batches)
            for record in iter_records(batches, batch.header, batch.position)
        ]
        wanted = sent_values([*own, *rig.sent[-1:]])
        assert values[-len(wanted) :] == wanted
        assert not diverged_records.folder_of(rig.log.local).exists()
