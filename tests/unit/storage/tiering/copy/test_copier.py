"""Two segments of a partition are copied side by side, and committed one after the other."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from strandline.storage.errors import TierUnavailable
from strandline.storage.tiering.policy.lifecycle import COPIES_PER_PARTITION
from tests.support.memory_store import Fault, Timing
from tests.unit.storage.tiering.harness import PARTITION, Rig, asynchronous, keys_of

SECOND_LOG = r"/0{18}10-[^/]*\.log$"
FIRST_LOG = r"/0{20}-[^/]*\.log$"


async def until(condition: object) -> None:
    """Lets the loop and the threads go on until `condition()` is true."""
    assert callable(condition)
    while not condition():
        await asyncio.sleep(0.005)


@asynchronous
async def test_the_next_segment_is_uploaded_while_the_first_one_waits(tmp_path: Path) -> None:
    async with Rig(tmp_path, copies=4) as rig:
        rig.produce_segments(4)
        gate = threading.Event()
        rig.memory.add_fault(Fault(operation="put", key_pattern=FIRST_LOG, gate=gate))
        settling = asyncio.ensure_future(rig.settle())
        await until(lambda: rig.memory.count_requests("put", r"\.meta$") == 1)
        await until(lambda: rig.memory.count_requests("put", r"\.log$") == COPIES_PER_PARTITION)
        # The second is done and is not committed: the first is not there.
        assert rig.archived == []
        gate.set()
        await settling
        assert rig.archived == [(0, 10), (10, 20), (20, 30), (30, 40)]
        assert rig.memory.count_requests("put", r"\.log$") == 4
        await rig.assert_everything_is_readable()


@asynchronous
async def test_a_copy_that_is_ready_waits_for_the_one_that_failed(tmp_path: Path) -> None:
    async with Rig(tmp_path, copies=4) as rig:
        rig.produce_segments(2)
        rig.memory.add_fault(Fault(operation="put", key_pattern=FIRST_LOG, error=TierUnavailable))
        await rig.settle()
        await until(lambda: rig.memory.count_requests("put", r"\.meta$") == 1)
        assert rig.archived == []
        rig.pass_ms(5000)
        await rig.settle()
        assert rig.archived == [(0, 10), (10, 20)]
        # The first twice, the second once.
        assert rig.memory.count_requests("put", r"\.log$") == 3


@asynchronous
async def test_a_failed_copy_ahead_is_no_failure_of_the_first(tmp_path: Path) -> None:
    async with Rig(tmp_path, copies=4) as rig:
        rig.produce_segments(2)
        rig.memory.add_fault(Fault(operation="put", key_pattern=SECOND_LOG, error=TierUnavailable))
        await rig.settle()
        rig.pass_ms(5000)
        await rig.settle()
        assert rig.archived == [(0, 10), (10, 20)]
        await rig.assert_everything_is_readable()


@asynchronous
async def test_a_copy_that_waited_beyond_its_deadline_is_made_again(tmp_path: Path) -> None:
    async with Rig(tmp_path, copies=4) as rig:
        rig.produce_segments(2)
        rig.memory.add_fault(Fault(operation="put", key_pattern=FIRST_LOG, error=TierUnavailable))
        await rig.settle()
        await until(lambda: rig.memory.count_requests("put", r"\.meta$") == 1)
        rig.pass_ms(rig.tiering_config.copy_timeout_ms + 1000)
        await rig.settle()
        assert rig.archived == [(0, 10), (10, 20)]
        assert rig.memory.count_requests("put", SECOND_LOG) == 2


@asynchronous
async def test_what_went_ahead_is_taken_back_when_copying_is_turned_off(tmp_path: Path) -> None:
    async with Rig(tmp_path, copies=4) as rig:
        rig.produce_segments(2)
        gate = threading.Event()
        rig.memory.add_fault(Fault(operation="put", key_pattern=FIRST_LOG, gate=gate))
        settling = asyncio.ensure_future(rig.settle())
        # The second is whole in the bucket, and waits for the first.
        await until(lambda: rig.memory.count_requests("put", r"\.meta$") == 1)
        rig.configure(remote_log_copy_disable=True)
        gate.set()
        await settling
        await rig.settle()
        assert rig.archived == [(0, 10)]
        await until(lambda: rig.memory.count_requests("delete", r"\.meta$"))
        assert set(rig.data_keys()) == set(keys_of(rig.manifest))
        rig.configure(remote_log_copy_disable=False)
        await rig.settle()
        assert rig.archived == [(0, 10), (10, 20)]
        await rig.assert_everything_is_readable()


@asynchronous
async def test_a_copy_whose_commit_may_have_gone_through_is_not_taken_back(tmp_path: Path) -> None:
    async with Rig(tmp_path, copies=4) as rig:
        rig.produce_segments(1)
        await rig.settle()
        rig.produce_segments(1)
        for operation, moment in (("put", Timing.AFTER), ("get", Timing.BEFORE)):
            rig.memory.add_fault(
                Fault(
                    operation=operation,
                    key_pattern=r"manifest\.json$",
                    error=TierUnavailable,
                    moment=moment,
                )
            )
        await rig.settle()
        rig.configure(remote_log_copy_disable=True)
        rig.pass_ms(5000)
        await rig.settle()
        assert rig.memory.count_requests("delete") == 0
        assert rig.archived == [(0, 10), (10, 20)]
        await rig.assert_everything_is_readable()


@asynchronous
async def test_nothing_goes_ahead_without_a_thread_to_spare(tmp_path: Path) -> None:
    async with Rig(tmp_path, copies=1) as rig:
        rig.produce_segments(3)
        gate = threading.Event()
        rig.memory.add_fault(Fault(operation="put", key_pattern=FIRST_LOG, gate=gate))
        settling = asyncio.ensure_future(rig.settle())
        await until(lambda: rig.memory.count_requests("put", FIRST_LOG) == 1)
        assert rig.memory.count_requests("put", r"\.log$") == 1
        gate.set()
        await settling
        assert len(rig.archived) == 3


@pytest.mark.parametrize("copies", [1, 4])
@asynchronous
async def test_a_deleted_topic_is_purged_when_its_last_upload_has_ended(
    tmp_path: Path, copies: int
) -> None:
    """An upload that ends after the folder was emptied would leave an object for ever."""
    async with Rig(tmp_path, copies=copies) as rig:
        rig.produce_segments(3)
        gate = threading.Event()
        rig.memory.add_fault(Fault(operation="put", key_pattern=r"\.log$", gate=gate, times=-1))
        settling = asyncio.ensure_future(rig.settle())
        await until(lambda: rig.memory.count_requests("put", r"\.log$") >= 1)
        rig.manager.delete_topic(rig.topic_info)
        gate.set()
        await settling
        rig.pass_ms(rig.tiering_config.delete_grace_ms + 1000)
        await rig.settle()
        assert rig.data_keys() == []


@pytest.mark.parametrize("copies", [1, 4])
@pytest.mark.parametrize("committed_before", [0, 1])
@asynchronous
async def test_a_partition_may_go_while_it_commits(
    tmp_path: Path, copies: int, committed_before: int
) -> None:
    """The task that tiers all partitions outlives it. The first commit names nothing."""
    async with Rig(tmp_path, copies=copies) as rig:
        rig.produce_segments(3)
        gate = threading.Event()
        fault = rig.memory.add_fault(
            Fault(
                operation="put",
                key_pattern=r"manifest\.json$",
                gate=gate,
                skip=committed_before,
            )
        )
        settling = asyncio.ensure_future(rig.manager.run_once())
        await until(lambda: fault.hit_count)
        rig.manager.detach(PARTITION)
        gate.set()
        await settling
        # What was on its way to the bucket arrived, and nothing after it.
        assert rig.archived == [(0, 10)][:committed_before]
        if not committed_before:
            assert rig.data_keys() == []
        rig.attach()
        await rig.settle()
        assert rig.archived == [(0, 10), (10, 20), (20, 30)]
