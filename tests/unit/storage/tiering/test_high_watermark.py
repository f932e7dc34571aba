"""Nothing above the high watermark is read, archived or deleted, though the log has it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from strandline.storage.config.log_config import LogConfig
from strandline.storage.errors import OffsetOutOfRange
from strandline.storage.model import Isolation
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.records.batch.marker import MarkerType
from strandline.storage.tiering.log.segment_starts import offsets_before
from strandline.storage.tiering.log.unified_log import TO_HIGH_WATERMARK
from tests.unit.storage.tiering.harness import COMPACTED, CONFIG, Rig, asynchronous
from tests.unit.storage.tiering.transactional_producer import Producer

UPLOAD_MS = 10_000
WITH_PIECES = replace(CONFIG, strandline_remote_active_segment_upload_ms=UPLOAD_MS)
UNTIERED = replace(CONFIG, remote_storage_enable=False)


def offsets_in(content: bytes) -> list[int]:
    """The end offset of each batch."""
    return [batch.header.next_offset for batch in walk(content)]


def pieces(rig: Rig) -> list[tuple[int, int]]:
    manifest = rig.manifest
    return [] if manifest is None else [(p.base_offset, p.end_offset) for p in manifest.tail]


def replicate(rig: Rig, offset: int) -> None:
    rig.log.local.advance_high_watermark(offset)


# --- reading ---------------------------------------------------------------------------------


@asynchronous
async def test_consumers_read_up_to_it_and_followers_to_the_end(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce(10)
        rig.is_alone = False
        rig.produce_segments(2)
        replicate(rig, 20)
        rig.produce(10)
        expected = {
            Isolation.READ_UNCOMMITTED: [10, 20],
            Isolation.READ_COMMITTED: [10, 20],
            Isolation.LOG_END: [10, 20, 30, 40],
        }
        for isolation, ends in expected.items():
            offset, found = 0, []
            while True:
                read = rig.log.read(offset, bytes_max=1 << 20, isolation=isolation)
                assert read is not None
                if read.range is None:
                    break
                found += offsets_in(read.range.read())
                offset = read.next_offset
            assert (found, offset) == (ends, ends[-1]), isolation
        # Behind it there is nothing yet; behind the end there never was.
        for offset in (20, 25, 30, 40):
            read = rig.log.read(offset, bytes_max=1 << 20)
            assert read is not None
            assert (read.range, read.next_offset) == (None, offset)
        with pytest.raises(OffsetOutOfRange):
            rig.log.read(41, bytes_max=1 << 20)


@asynchronous
async def test_a_cold_read_ends_there(tmp_path: Path) -> None:
    """The archive's leader knew that the records are replicated, before this one knows it again."""
    async with Rig(tmp_path) as rig:
        rig.produce_segments(3)
        rig.pass_ms(10_000)
        await rig.settle()
        assert rig.archived == [(0, 10), (10, 20), (20, 30)]
        assert rig.log.local.start_offset == 30
        # What a start finds in an old checkpoint.
        rig.log.local.high_watermark = 20
        for isolation in (Isolation.READ_UNCOMMITTED, Isolation.READ_COMMITTED):
            found = await rig.log.read_remote(0, bytes_max=1 << 20, isolation=isolation)
            read, next_offset = b"".join(found.buffers), found.next_offset
            while next_offset < 20:
                found = await rig.log.read_remote(
                    next_offset, bytes_max=1 << 20, isolation=isolation
                )
                read, next_offset = read + b"".join(found.buffers), found.next_offset
            assert (offsets_in(read), next_offset) == ([10, 20], 20)
            nothing = await rig.log.read_remote(20, bytes_max=1 << 20, isolation=isolation)
            assert (list(nothing.buffers), nothing.next_offset) == ([], 20)
        assert (await rig.log.read_remote(20, bytes_max=1, isolation=Isolation.LOG_END)).buffers


@asynchronous
async def test_no_border_of_a_segment_above_it_is_told(tmp_path: Path) -> None:
    """ListOffsets 0."""
    async with Rig(tmp_path) as rig:
        rig.produce_segments(1)
        rig.is_alone = False
        rig.produce_segments(3)
        replicate(rig, 15)
        borders = offsets_before(
            rig.log, None, end_offset=rig.log.high_watermark, now_ms=2**62, count_max=9
        )
        assert borders == [15, 10, 0]


# --- deletion --------------------------------------------------------------------------------


@asynchronous
async def test_records_are_deleted_up_to_it_at_the_most(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce(10)
        rig.is_alone = False
        rig.produce(10)
        with pytest.raises(OffsetOutOfRange):
            rig.log.delete_records(11)
        assert rig.log.log_start_offset == 0
        assert rig.log.delete_records(TO_HIGH_WATERMARK) == 10


@pytest.mark.parametrize(
    "limits", [{"retention_ms": 1000}, {"retention_bytes": 1}], ids=["time", "size"]
)
@pytest.mark.parametrize("config", [CONFIG, UNTIERED], ids=["tiered", "local"])
@asynchronous
async def test_retention_deletes_no_segment_above_it(
    tmp_path: Path, config: LogConfig, limits: dict[str, int]
) -> None:
    async with Rig(tmp_path, config=replace(config, **limits)) as rig:
        rig.produce_segments(2)
        rig.is_alone = False
        rig.produce_segments(2)
        rig.produce(1)
        replicate(rig, 35)
        rig.pass_ms(100_000)
        for _ in range(3):
            await rig.settle()
        # The segment in which it lies stays as a whole.
        assert rig.log.log_start_offset == 30
        assert rig.log.local.segments[0].base_offset == 30


@asynchronous
async def test_no_local_segment_above_it_is_freed_even_if_it_is_archived(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(3)
        await rig.manager.run_once()
        assert rig.archived == [(0, 10), (10, 20), (20, 30)]
        rig.log.local.high_watermark = 20
        rig.pass_ms(100_000)
        await rig.settle()
        assert rig.local_segments == [(20, 30), (30, 30)]


# --- the archive -----------------------------------------------------------------------------


@asynchronous
async def test_no_segment_above_it_is_copied(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(1)
        rig.is_alone = False
        rig.produce_segments(3)
        for high_watermark, archived in ((10, 1), (25, 2), (30, 3), (39, 3), (40, 4)):
            replicate(rig, high_watermark)
            await rig.settle()
            assert len(rig.archived) == archived, high_watermark
        rig.assert_archive_is_whole()


@asynchronous
async def test_a_segment_is_copied_when_the_marker_in_a_later_one_is_replicated(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path) as rig:
        producer = Producer(rig, 1)
        producer.send()
        rig.roll()
        rig.is_alone = False
        marker_offset = producer.end(MarkerType.ABORT)
        rig.produce(10)
        rig.roll()
        replicate(rig, marker_offset)
        await rig.settle()
        assert rig.archived == []
        replicate(rig, marker_offset + 1)
        await rig.settle()
        assert rig.archived == rig.local_segments[:1]


@asynchronous
async def test_pieces_of_what_is_open_end_there(tmp_path: Path) -> None:
    async with Rig(tmp_path, config=WITH_PIECES) as rig:
        rig.produce(10)
        rig.is_alone = False
        rig.produce(10)
        rig.roll()
        rig.produce(10)
        rig.produce(10)
        for high_watermark in (10, 20, 30, 40):
            replicate(rig, high_watermark)
            for _ in range(4):
                rig.pass_ms(UPLOAD_MS)
                await rig.manager.run_once()
            bucket_end = max(
                [end for _, end in rig.archived] + [end for _, end in pieces(rig)], default=0
            )
            assert bucket_end == high_watermark
        rig.assert_archive_is_whole()
        assert (rig.archived, pieces(rig)[-1][1]) == ([(0, 20)], 40)


@asynchronous
async def test_a_piece_goes_on_where_the_last_one_ended_inside_a_segment(tmp_path: Path) -> None:
    async with Rig(tmp_path, config=WITH_PIECES) as rig:
        rig.is_alone = False
        for _ in range(6):
            rig.produce(10)
        for high_watermark in (20, 50, 60):
            replicate(rig, high_watermark)
            for _ in range(3):
                rig.pass_ms(UPLOAD_MS)
                await rig.manager.run_once()
        before = await rig.read_all()
        rig.is_alone = True
        await rig.lose_disk()
        assert (rig.log.high_watermark, rig.log.end_offset) == (60, 60)
        assert await rig.read_all() == before


@asynchronous
async def test_nothing_above_it_is_told_as_exposed(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce(10)
        rig.is_alone = False
        rig.produce(10)
        await rig.settle()
        exposed = rig.statistics.exposed
        assert exposed is not None
        assert exposed.record_count == 10


# --- the cleaner -----------------------------------------------------------------------------


@asynchronous
async def test_no_record_is_compacted_away_for_one_above_it(tmp_path: Path) -> None:
    """Its newer value may be cut off: then the older one is the latest."""
    config = replace(COMPACTED, remote_storage_enable=False)
    async with Rig(tmp_path, config=config) as rig:
        rig.put((b"key", b"old"))
        rig.seal()
        rig.is_alone = False
        rig.put((b"key", b"new"))
        rig.seal()
        rig.pass_ms(1000)
        await rig.clean()
        values = [record.value for record in await rig.records()]
        assert values == [b"old"]
        replicate(rig, 2)
        await rig.clean()
        values = [record.value for record in await rig.records()]
        assert values == [b"new"]
