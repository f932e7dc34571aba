"""The store fails, in all the ways it can, and another owner turns up."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path

import pytest

from strandline.storage.errors import (
    AccessDenied,
    CorruptFile,
    ObjectNotFound,
    TierError,
    TierUnavailable,
)
from strandline.storage.remote.manifest.entries import SegmentEntry
from strandline.storage.remote.object_store.interface import (
    FileBody,
    ObjectInfo,
    PutBody,
    PutCondition,
)
from strandline.storage.tiering.copy.copier import Copying, SegmentCopier
from tests.support.memory_store import Fault, MemoryStore, Timing
from tests.unit.storage.tiering.harness import (
    Rig,
    asynchronous,
    keys_of,
)

# --- the store fails -----------------------------------------------------------------------------


@asynchronous
async def test_with_the_store_away_what_is_archived_is_not_freed_either(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(2)
        await rig.manager.run_once()
        rig.memory.add_fault(Fault(error=TierUnavailable, times=-1))
        rig.pass_ms(2000)
        for _ in range(3):
            assert await rig.enforcer.run_once() == 0
        # What was deleted goes all the same.
        rig.log.move_log_start(10)
        assert await rig.enforcer.run_once() == 1
        rig.memory.clear_faults()
        rig.pass_ms(30_000)
        await rig.settle()
        assert rig.local_segments == [(20, 20)]


@asynchronous
async def test_what_an_emptied_bucket_had_stays_on_the_disk_and_is_archived_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(3)
        await rig.manager.run_once()
        rig.memory.delete([one.key for one in rig.memory.list("")])
        rig.pass_ms(2000)
        for _ in range(3):
            assert await rig.settle() == 0
        assert "retention does not succeed" in caplog.text
        failure = rig.statistics.copy_failure
        assert failure is not None
        assert "was there before" in failure.reason
        await rig.crash()
        assert await rig.settle() == 3
        assert rig.archived == [(0, 10), (10, 20), (20, 30)]
        await rig.assert_everything_is_readable()
        rig.assert_archive_is_whole()


@asynchronous
async def test_with_the_store_away_nothing_is_freed_and_copying_resumes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(1)
        rig.pass_ms(2000)
        await rig.settle()
        rig.memory.add_fault(Fault(error=TierUnavailable, times=-1))
        with caplog.at_level(logging.WARNING):
            for _ in range(10):
                rig.produce_segments(1)
                rig.pass_ms(2000)
                await rig.settle()
        assert rig.log.end_offset == 110
        assert rig.local_segments[0] == (10, 20)
        assert rig.log.read(10, bytes_max=1000) is not None
        warned = [r for r in caplog.records if "does not succeed" in r.message]
        assert len(warned) <= 2, "once per change of the reason"
        assert "attempt" in rig.reasons[0]
        assert rig.statistics.copy_failure is not None
        rig.memory.clear_faults()
        with caplog.at_level(logging.INFO):
            rig.pass_ms(30_000)
            await rig.settle()
        assert any("succeeds again" in r.message for r in caplog.records)
        assert rig.archived[-1] == (100, 110)
        assert rig.statistics.copy_failure is None
        await rig.settle()
        assert rig.local_segments == [(110, 110)]
        await rig.assert_everything_is_readable()


@asynchronous
async def test_an_outage_costs_one_small_request_each_few_seconds(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(3)
        rig.memory.add_fault(Fault(error=TierUnavailable, times=-1))
        rig.memory.requests.clear()
        for _ in range(600):
            rig.pass_ms(500)
            await rig.manager.run_once()
        # 300 s: after 0.5, 1, 2, 4 and then each 5 s.
        assert 55 <= rig.memory.count_requests("get", "cluster") <= 65
        assert rig.memory.count_requests("put|get|head", "topics") <= 2


@asynchronous
async def test_waits_after_other_failures_grow_and_are_bounded(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(1)
        rig.memory.add_fault(
            Fault(operation="put", key_pattern=r"\.log$", error=AccessDenied, times=-1)
        )
        for _ in range(600):
            rig.pass_ms(500)
            await rig.manager.run_once()
        # 300 s: 0.5 + 1 + 2 + 4 + 8 + 16, then one attempt each 30 s.
        assert 14 <= rig.memory.count_requests("put", r"\.log$") <= 17


@pytest.mark.parametrize("error", [TierUnavailable, AccessDenied])
@pytest.mark.parametrize(
    ("operation", "pattern"),
    [("put", r"\.log$"), ("put", r"\.meta$"), ("head", ""), ("put", "topic.json"), ("get", "")],
)
@asynchronous
async def test_any_failed_request_is_repeated_until_the_segment_is_archived(
    tmp_path: Path, operation: str, pattern: str, error: type[TierError]
) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(2)
        rig.memory.add_fault(Fault(operation=operation, key_pattern=pattern, error=error, times=2))
        for _ in range(4):
            await rig.settle()
            rig.pass_ms(5000)
        assert rig.archived == [(0, 10), (10, 20)]
        await rig.assert_everything_is_readable()


@asynchronous
async def test_a_failed_copy_cleans_up_after_itself(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(1)
        rig.memory.add_fault(Fault(operation="put", key_pattern=r"\.meta$", error=AccessDenied))
        await rig.manager.run_once()
        assert rig.data_keys() == []


@asynchronous
async def test_copies_that_cannot_be_taken_back_are_said_once_until_one_succeeds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Rig(tmp_path) as rig:
        with caplog.at_level(logging.INFO, "strandline.storage.tiering.copy.copier"):
            for episode in (1, 2):
                rig.produce_segments(1)
                for operation, pattern in (("put", r"\.meta$"), ("delete", r"\.log$")):
                    rig.memory.add_fault(
                        Fault(
                            operation=operation,
                            key_pattern=pattern,
                            error=AccessDenied,
                            times=-1,
                        )
                    )
                for _ in range(5):
                    rig.pass_ms(30_000)
                    await rig.manager.run_once()
                assert rig.memory.count_requests("delete") >= 5 * episode
                said = [r for r in caplog.records if "left as an orphan" in r.message]
                assert len(said) == episode
                rig.memory.clear_faults()
                rig.pass_ms(60_000)
                await rig.settle()
                assert len(rig.archived) == episode


@pytest.mark.parametrize("suffix", [".log", ".meta"])
@asynchronous
async def test_a_copy_that_did_not_arrive_is_not_committed(suffix: str, tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(1)
        rig.pass_ms(5000)
        rig.memory.add_fault(Fault(operation="head", error=ObjectNotFound, key_pattern=suffix))
        await rig.settle()
        assert rig.archived == []
        assert rig.local_segments[0] == (0, 10)


class DamagingStore(MemoryStore):
    """One bit of the first object with this suffix is another one on its way."""

    def __init__(self, suffix: str) -> None:
        super().__init__()
        self._suffix = suffix

    def put(self, key: str, body: PutBody, *, condition: PutCondition | None = None) -> ObjectInfo:
        if not key.endswith(self._suffix):
            return super().put(key, body, condition=condition)
        self._suffix = "none"
        content = bytearray(body.path.read_bytes() if isinstance(body, FileBody) else body)
        content[-1] ^= 1
        return super().put(key, bytes(content), condition=condition)


@pytest.mark.parametrize("suffix", [".log", ".meta"])
@asynchronous
async def test_a_copy_that_arrived_damaged_is_not_committed(suffix: str, tmp_path: Path) -> None:
    async with Rig(tmp_path, store=DamagingStore(suffix)) as rig:
        rig.produce_segments(1)
        rig.pass_ms(5000)
        await rig.settle()
        assert rig.archived == []
        assert rig.data_keys() == []
        assert rig.local_segments[0] == (0, 10)
        rig.pass_ms(5000)
        await rig.settle()
        assert rig.archived == [(0, 10)]
        await rig.assert_everything_is_readable()


@asynchronous
async def test_a_damaged_local_segment_is_never_archived(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(2)
        path = rig.log.local.segments[0].log_path
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        rig.pass_ms(5000)
        await rig.settle()
        assert rig.archived == []
        assert rig.data_keys() == []
        assert "CRC" in rig.reasons[0]
        assert len(rig.local_segments) == 3


@asynchronous
async def test_a_lost_answer_to_the_commit_is_no_lost_segment(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(2)
        rig.memory.add_fault(
            Fault(
                operation="put",
                key_pattern=r"manifest\.json$",
                error=TierUnavailable,
                moment=Timing.AFTER,
            )
        )
        await rig.settle()
        rig.pass_ms(1000)
        await rig.settle()
        assert rig.archived == [(0, 10), (10, 20)]
        assert set(rig.data_keys()) == keys_of(rig.manifest)


@asynchronous
async def test_a_commit_of_unknown_outcome_is_repeated_without_a_second_upload(
    tmp_path: Path,
) -> None:
    """The commit fails, and so does asking what became of it."""
    async with Rig(tmp_path) as rig:
        rig.produce_segments(1)
        for operation in ("put", "get"):
            rig.memory.add_fault(
                Fault(operation=operation, key_pattern=r"manifest\.json$", error=TierUnavailable)
            )
        await rig.manager.run_once()
        assert rig.archived == []
        rig.pass_ms(1000)
        await rig.manager.run_once()
        assert rig.archived == [(0, 10)]
        assert rig.memory.count_requests("put", r"\.log$") == 1
        assert set(rig.data_keys()) == keys_of(rig.manifest)


@asynchronous
async def test_a_commit_that_went_through_unnoticed_is_recognised(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(1)
        manifest = r"manifest\.json$"
        rig.memory.add_fault(
            Fault(
                operation="put",
                key_pattern=manifest,
                error=TierUnavailable,
                moment=Timing.AFTER,
            )
        )
        rig.memory.add_fault(Fault(operation="get", key_pattern=manifest, error=TierUnavailable))
        await rig.manager.run_once()
        assert rig.log.highest_remote_offset == -1
        rig.pass_ms(1000)
        await rig.manager.run_once()
        assert rig.log.highest_remote_offset == 9
        assert rig.memory.count_requests("put", r"\.log$") == 1


@asynchronous
async def test_a_copy_that_missed_its_deadline_is_not_committed(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(1)
        gate = threading.Event()
        rig.memory.add_fault(Fault(operation="put", key_pattern=r"\.meta$", gate=gate))

        async def be_late() -> None:
            while not rig.memory.count_requests("put", r"\.log$"):
                await asyncio.sleep(0.001)
            rig.pass_ms(rig.tiering_config.copy_timeout_ms + 1)
            gate.set()

        await asyncio.gather(rig.manager.run_once(), be_late())
        assert rig.archived == []
        rig.pass_ms(1000)
        await rig.manager.run_once()
        assert rig.archived == [(0, 10)]


@asynchronous
async def test_a_copy_that_was_done_in_time_and_is_late_for_its_commit_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is older than its deadline may be taken for an orphan."""
    finish = SegmentCopier.finish
    async with Rig(tmp_path) as rig:
        rig.produce_segments(1)

        async def finish_and_wait(self: SegmentCopier, copying: Copying) -> SegmentEntry:
            copied = await finish(self, copying)
            monkeypatch.setattr(SegmentCopier, "finish", finish)
            rig.pass_ms(rig.tiering_config.copy_timeout_ms + 1)
            return copied

        monkeypatch.setattr(SegmentCopier, "finish", finish_and_wait)
        await rig.manager.run_once()
        assert rig.archived == [(0, 10)]
        manifest = rig.manifest
        assert manifest is not None
        assert rig.memory.count_requests("put", r"\.log$") == 2
        uploads = [r.key for r in rig.memory.requests if r.operation == "put"]
        assert [key for key in uploads if key.endswith(".log")][-1] == manifest.segments[0].log_key


# --- two owners ----------------------------------------------------------------------------------


@asynchronous
async def test_a_newer_leader_fences_the_older_one(tmp_path: Path) -> None:
    async with Rig(tmp_path / "old", leader_epoch=5) as old:
        old.produce_segments(1)
        await old.settle()
        async with Rig(tmp_path / "new", store=old.store, leader_epoch=6) as new:
            assert new.log.end_offset == 10, "it begins where the archive ends"
            new.produce_segments(1)
            await new.settle()
            assert new.archived == [(0, 10), (10, 20)]
        old.produce_segments(2)
        for _ in range(3):
            await old.settle()
            old.pass_ms(5000)
        assert old.archived == [(0, 10), (10, 20)]
        assert "another broker owns" in old.reasons[0]
        assert old.local_segments[-2] == (20, 30), "nothing that only it has is freed"


@asynchronous
async def test_a_damaged_manifest_is_named_to_whoever_reads_and_never_written_over(
    tmp_path: Path,
) -> None:
    async with Rig(tmp_path) as rig:
        rig.produce_segments(2)
        rig.pass_ms(5000)
        await rig.settle()
        rig.produce_segments(1)
        rig.memory.damage(
            rig.manifest_key, lambda content: content.replace(b"segments", b"sEgments")
        )
        damaged = rig.store.get(rig.manifest_key)
        await rig.crash()
        await rig.settle()
        with pytest.raises(CorruptFile, match=r"manifest\.json: checksum"):
            await rig.log.read_remote(0, bytes_max=1000)
        rig.produce()
        assert rig.log.read(20, bytes_max=1000) is not None
        assert rig.store.get(rig.manifest_key) == damaged
