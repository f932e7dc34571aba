"""A leader and its followers, through elections: what is replicated is on all of them, once."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from strandline.broker.cluster.in_sync.leading import NotEnoughReplicas
from strandline.broker.cluster.metadata.image import MetadataDelta
from strandline.broker.handlers.services.services import RequestContext
from strandline.broker.protocol.formats.metadata_records import ConfigRecord
from strandline.broker.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.errors import DiskError, TierUnavailable
from strandline.storage.tiering.log.remote_log import RemoteLog
from tests.unit.broker.replication.rig import WAIT_S, Node, cluster, until


def test_a_follower_gets_what_its_leader_appends_and_the_high_watermark_follows(
    tmp_path: Path,
) -> None:
    async def replicate() -> None:
        async with cluster(tmp_path) as control:
            await control.create(1, 2)
            leader, follower = control.nodes[1], control.nodes[2]
            end = leader.append(3)
            assert leader.partition.high_watermark == 0
            await until(lambda: leader.partition.high_watermark == end)
            assert follower.end == end
            end = leader.append(2)
            await until(lambda: follower.partition.high_watermark == end)
            assert follower.content() == leader.content()

    asyncio.run(replicate())


def test_a_former_leader_gives_up_what_was_not_replicated(tmp_path: Path) -> None:
    async def fail_over() -> None:
        async with cluster(tmp_path) as control:
            await control.create(1, 2)
            one, two = control.nodes[1], control.nodes[2]
            replicated = one.append(3)
            await until(lambda: two.partition.high_watermark == replicated)
            one.is_cut = True
            one.append(4)
            one.append(1)
            await control.elect(2, isr=(2,))
            end = two.append(2)
            assert two.partition.high_watermark == end == replicated + 2
            one.is_cut = False
            await until(lambda: one.partition.high_watermark == end)
            assert one.content() == two.content()
            # It is in sync again, and what is acknowledged from now on is on both.
            await until(lambda: control.image.topics["t"].partitions[0].isr == (1, 2))
            end = two.append(1)
            await until(lambda: two.partition.high_watermark == end)
            assert one.content() == two.content()

    asyncio.run(fail_over())


def test_a_leader_that_missed_the_lead_of_another_relies_on_nothing_its_followers_told_before(
    tmp_path: Path,
) -> None:
    async def miss() -> None:
        async with cluster(tmp_path, 3) as control:
            await control.create(1, 2, 3, min_insync_replicas="2")
            one, two, three = control.nodes.values()
            two.is_cut = True
            diverged = one.append(2)
            await until(lambda: three.end == diverged)
            # Broker 1 stands still while broker 2 leads, and drops out.
            one.is_cut = one.is_cut_from_control = True
            two.is_cut = False
            await control.elect(2)
            end = two.append(1)
            await until(lambda: three.end == end and two.content() == three.content())
            one.is_cut_from_control, two.is_cut = False, True
            await control.elect(1, isr=(1, 3))
            assert one.end == diverged
            assert one.partition.high_watermark == 0, "broker 3 has dropped what it had of these"
            one.is_cut = False
            await until(lambda: one.partition.high_watermark == diverged)
            assert one.content() == three.content()

    asyncio.run(miss())


def test_a_disk_that_hangs_while_a_log_is_truncated_holds_up_nobody_else(tmp_path: Path) -> None:
    async def hang() -> None:
        async with cluster(tmp_path) as control:
            await control.create(1, 2)
            one, two = control.nodes[1], control.nodes[2]
            replicated = one.append(3)
            await until(lambda: two.partition.high_watermark == replicated)
            one.is_cut = True
            diverged = one.append(4)
            local = one.partition.log.local
            local.flush()
            began, answers, was_held_up = threading.Event(), threading.Event(), False

            def hanging() -> None:
                nonlocal was_held_up
                began.set()
                # The loop lets it go on: one that waits for it would do so in vain.
                was_held_up = not answers.wait(WAIT_S)

            local.on_cut = hanging
            await control.elect(2, isr=(2,))
            end = two.append(2)
            one.is_cut = False
            await until(began.is_set)
            await asyncio.sleep(0.05)
            assert one.end == diverged
            answers.set()
            await until(lambda: one.end == end)
            assert not was_held_up
            assert one.content() == two.content()

    asyncio.run(hang())


def test_logs_that_diverged_twice_agree_in_the_end(tmp_path: Path) -> None:
    """KIP-279: neither epoch at the end of the follower's log is one that the leader's has."""

    async def diverge() -> None:
        async with cluster(tmp_path, 3) as control:
            await control.create(1, 2, 3)
            one, two, three = control.nodes.values()
            base = one.append(5)
            await until(lambda: two.end == base and three.end == base)
            for node in (one, two, three):
                node.is_cut = True
            one.append(2)
            await control.elect(2, isr=(2, 3))
            two.append(1)
            two.append(1)
            await control.elect(1, isr=(1, 3))
            one.append(3)
            await control.elect(3, isr=(3,))
            end = three.append(7)
            for node in (one, two, three):
                node.is_cut = False
            await until(lambda: one.end == end and two.end == end)
            assert one.content() == three.content() == two.content()

    asyncio.run(diverge())


def test_a_follower_that_is_late_leaves_the_set_and_joins_it_again(tmp_path: Path) -> None:
    async def lag() -> None:
        async with cluster(tmp_path, lag_ms_max=100) as control:
            await control.create(1, 2)
            leader, follower = control.nodes[1], control.nodes[2]
            leading = leader.partition.leading
            assert leading is not None
            end = leader.append()
            await until(lambda: leader.partition.high_watermark == end)
            leading.shrink()
            assert leading.in_sync.pending is None
            follower.is_cut = True
            end = leader.append()
            await asyncio.sleep(0.15)
            leading.shrink()
            await until(lambda: leading.in_sync.committed == {1})
            assert leader.partition.high_watermark == end
            follower.is_cut = False
            await until(lambda: leading.in_sync.committed == {1, 2})
            assert follower.end == end

    asyncio.run(lag())


def test_a_replica_that_may_have_joined_is_waited_for(tmp_path: Path) -> None:
    async def join() -> None:
        async with cluster(tmp_path, 3, lag_ms_max=1) as control:
            await control.create(1, 2, 3, isr=(1, 2))
            control.holds = True
            one, two, three = control.nodes.values()
            await until(lambda: bool(control.proposals))
            leading, proposal = control.proposals[0]
            assert proposal.joining == 3
            assert leading.in_sync.maximal == {1, 2, 3}
            assert leading.in_sync.committed == {1, 2}
            three.is_cut = True
            await asyncio.sleep(0.1)
            end = one.append()
            await until(lambda: two.end == end)
            await asyncio.sleep(0.1)
            assert one.partition.high_watermark == 0
            # The controller has not taken it in: the others are enough.
            assert leading.refused(proposal, ErrorCode.INELIGIBLE_REPLICA) is False
            leading.advance()
            assert one.partition.high_watermark == end

    asyncio.run(join())


def test_fewer_in_sync_than_the_minimum_take_no_record_that_is_to_be_replicated(
    tmp_path: Path,
) -> None:
    async def shrink() -> None:
        async with cluster(tmp_path, 3) as control:
            for node_id in (2, 3):
                control.nodes[node_id].is_cut = True
            await control.create(1, 2, 3, isr=(1,), min_insync_replicas="2")
            leader = control.nodes[1]
            leading = leader.partition.leading
            assert leading is not None
            with pytest.raises(NotEnoughReplicas):
                leading.check_enough_in_sync()
            leader.append()
            # One record of a producer that does not wait, which nobody sees yet.
            assert leader.partition.high_watermark == 0
            control.nodes[2].is_cut = False
            await until(lambda: leader.partition.high_watermark == 1)
            leading.check_enough_in_sync()

    asyncio.run(shrink())


def test_a_minimum_that_was_raised_counts_before_a_replica_that_left_behind_it(
    tmp_path: Path,
) -> None:
    """Metadata that come late bring both at once. By the new minimum the one that left may lead,
    and has nothing of what the leader has taken alone.
    """

    async def lag() -> None:
        async with cluster(tmp_path) as control:
            await control.create(1, 2, min_insync_replicas="1")
            one, two = control.nodes[1], control.nodes[2]
            replicated = one.append(3)
            await until(lambda: two.partition.high_watermark == replicated)
            two.is_cut = one.is_cut_from_control = True
            before, raised = control.image, {"value": "2", "name": "min.insync.replicas"}
            one.append(1)
            await control.apply(
                ConfigRecord(resource_type=ConfigResourceType.TOPIC, resource_name="t", **raised)
            )
            await control.fence(2)
            await control.change(isr=(1,), eligible_leader_replicas=(2,))
            await one.replicas.follow(MetadataDelta(before, control.image), control.image)
            assert one.partition.high_watermark == replicated
            leading = one.partition.leading
            assert leading is not None
            with pytest.raises(NotEnoughReplicas):
                leading.check_enough_in_sync()

    asyncio.run(lag())


def test_a_fenced_broker_does_not_join_before_it_is_unfenced(tmp_path: Path) -> None:
    async def fence() -> None:
        async with cluster(tmp_path) as control:
            await control.fence(2)
            await control.create(1, 2, isr=(1,))
            leader, follower = control.nodes[1], control.nodes[2]
            end = leader.append()
            await until(lambda: follower.partition.high_watermark == end)
            assert control.proposals == []
            # It joins without a record in between.
            await control.unfence(2)
            await until(lambda: control.image.topics["t"].partitions[0].isr == (1, 2))

    asyncio.run(fence())


def test_a_log_that_lacks_the_beginning_of_its_leaders_begins_there(tmp_path: Path) -> None:
    async def begin() -> None:
        async with cluster(tmp_path) as control:
            await control.create(1, 2, isr=(1,))
            leader, follower = control.nodes[1], control.nodes[2]
            follower.is_cut = True
            for _ in range(4):
                leader.append(5)
            log = leader.partition.log
            # Within a batch: it is sent whole.
            log.move_log_start(12)
            log.local.roll()
            log.local.delete_segments([])
            follower.is_cut = False
            await until(lambda: follower.end == 20)
            assert follower.partition.log.log_start_offset == 12
            assert follower.partition.log.local.start_offset == 10
            await until(lambda: follower.partition.high_watermark == 20)

    asyncio.run(begin())


def test_deleted_records_are_deleted_at_followers(tmp_path: Path) -> None:
    async def delete() -> None:
        async with cluster(tmp_path) as control:
            await control.create(1, 2)
            leader, follower = control.nodes[1], control.nodes[2]
            end = leader.append(8)
            await until(lambda: follower.partition.high_watermark == end)
            leader.partition.log.delete_records(5)
            await until(lambda: follower.partition.log.log_start_offset == 5)

    asyncio.run(delete())


def test_a_producer_waits_until_all_in_sync_have_its_records(tmp_path: Path) -> None:
    class Waits:
        is_over = False

        def __init__(self) -> None:
            self.told: list[tuple[int, ErrorCode]] = []

        def acknowledged(self, index: int, code: ErrorCode) -> None:
            self.told.append((index, code))

    async def acknowledge() -> None:
        async with cluster(tmp_path) as control:
            await control.create(1, 2)
            leader, follower = control.nodes[1], control.nodes[2]
            leading = leader.partition.leading
            assert leading is not None
            end, waits = leader.append(), Waits()
            assert leading.wait(end) is None
            leading.waits.add(end, waits, 7)
            await until(lambda: waits.told == [(7, ErrorCode.NONE)])
            assert follower.end == end
            assert leading.wait(end) is ErrorCode.NONE
            follower.is_cut = True
            leading.waits.add(leader.append(), waits, 8)
            await control.elect(2, isr=(2,))
            assert waits.told[1:] == [(8, ErrorCode.NOT_LEADER_OR_FOLLOWER)]

    asyncio.run(acknowledge())


def test_a_new_leader_tells_no_end_before_it_knows_that_of_its_forerunner(tmp_path: Path) -> None:
    """KIP-207: consumers may have seen a later high watermark already."""

    def latest(node: Node, replica_id: int) -> tuple[int, int]:
        wanted = ListOffsetsPartition(partition_index=0, timestamp=-1)
        request = ListOffsetsRequest(
            replica_id=replica_id,
            topics=[ListOffsetsTopic(name="t", partitions=[wanted])],
        )
        context = cast(RequestContext, SimpleNamespace(api_version=10))
        answer = node.offsets.list_offsets(request, context)
        assert isinstance(answer, ListOffsetsResponse)
        (one,) = answer.topics[0].partitions
        return one.error_code, one.offset

    async def elect() -> None:
        async with cluster(tmp_path, 3) as control:
            await control.create(1, 2, 3)
            one, two, three = control.nodes.values()
            end = one.append(5)
            await until(lambda: two.end == end and three.end == end)
            one.is_cut = three.is_cut = True
            two.partition.log.local.high_watermark = 0
            await control.elect(2, isr=(2, 3))
            assert latest(two, -1) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
            # Followers go by the end of the log.
            assert latest(two, 3) == (0, end)
            three.is_cut = False
            await until(lambda: latest(two, -1) == (0, end))

    asyncio.run(elect())


def test_a_follower_whose_next_records_are_archived_restarts_once_behind_the_archive(
    tmp_path: Path,
) -> None:
    """One restart at a time waits for the store, and one that fails is tried again."""

    async def restart_behind() -> None:
        async with cluster(tmp_path) as control:
            await control.create(1, 2, remote_storage_enable="true")
            leader, follower = control.nodes[1], control.nodes[2]
            base = leader.append(3)
            await until(lambda: follower.partition.high_watermark == base)
            follower.is_cut = True
            archived_end = leader.append(4)
            leader.partition.log.local.roll()
            leader.partition.log.local.delete_segments(leader.partition.log.local.segments[:1])
            end = leader.append(2)
            is_answered, calls = asyncio.Event(), 0

            async def restart_replica() -> None:
                nonlocal calls
                calls += 1
                await is_answered.wait()
                if calls == 1:
                    raise TierUnavailable("manifest", "get", "planted")
                follower.partition.log.local.reset_to(archived_end)

            remote = SimpleNamespace(restart_replica=restart_replica)
            follower.partition.log.remote = cast(RemoteLog, remote)
            follower.is_cut = False
            await until(lambda: calls == 1)
            await asyncio.sleep(0.1)
            assert (calls, follower.end) == (1, base)
            is_answered.set()
            await until(lambda: follower.end == end)
            assert (calls, follower.content()) == (2, leader.content())
            follower.partition.log.remote = None

    asyncio.run(restart_behind())


def test_a_replica_whose_folder_failed_is_not_fetched_and_keeps_nobody_waiting(
    tmp_path: Path,
) -> None:
    """It was the leader, and may be told of the next one before the controller hears of it."""

    async def fail() -> None:
        async with cluster(tmp_path, 3) as control:
            await control.create(1, 2, 3)
            one, two, _ = control.nodes.values()
            end = one.append(3)
            await until(lambda: two.partition.high_watermark == end)
            one.partition.log.local.stop(DiskError("gone"))
            await control.elect(2, isr=(2, 3))
            for _ in range(3):
                await asyncio.sleep(0.05)
                two.append(1)
                await until(lambda: two.partition.high_watermark == two.end)
            assert control.image.topics["t"].partitions[0].isr == (2, 3)

    asyncio.run(fail())


def test_a_record_waits_no_longer_for_a_follower_whose_broker_is_away(tmp_path: Path) -> None:
    """The controller tells of the fenced broker after its partitions, and nothing else happens."""

    async def fence() -> None:
        async with cluster(tmp_path, 3) as control:
            await control.create(1, 2, 3)
            one, _, three = control.nodes.values()
            end = one.append(1)
            await until(lambda: one.partition.high_watermark == end)
            three.is_cut = True
            end = one.append(1)
            await control.change(isr=[1, 2])
            await asyncio.sleep(0.2)
            assert one.partition.high_watermark < end
            await control.fence(3)
            await until(lambda: one.partition.high_watermark == end)

    asyncio.run(fence())


def test_a_leader_that_hears_of_its_lead_behind_its_follower_is_asked_again_soon(
    tmp_path: Path,
) -> None:
    """Its producers wait for the follower: not for replica.fetch.backoff.ms, a minute here."""

    async def elect() -> None:
        async with cluster(tmp_path, 2, backoff_ms=60_000) as control:
            await control.create(1, 2)
            one, two = control.nodes.values()
            end = one.append(1)
            await until(lambda: one.partition.high_watermark == end)
            two.is_cut_from_control = True
            before = control.image
            await control.elect(2)
            await asyncio.sleep(0.1)
            await two.replicas.follow(MetadataDelta(before, control.image), control.image)
            end = two.append(1)
            await until(lambda: two.partition.high_watermark == end)

    asyncio.run(elect())


def test_a_follower_without_a_partition_that_waits_is_held_at_the_leader_whatever_the_backoff(
    tmp_path: Path,
) -> None:
    """Else a replica.fetch.backoff.ms below replica.fetch.wait.max.ms would have it ask without
    end.
    """

    async def idle() -> None:
        async with cluster(tmp_path, 2, backoff_ms=1, wait_ms_max=1000) as control:
            await control.create(1, 2)
            one, _ = control.nodes.values()
            end = one.append(1)
            await until(lambda: one.partition.high_watermark == end)
            asked_count = control.asked_count
            await asyncio.sleep(0.2)
            assert control.asked_count <= asked_count + 1

    asyncio.run(idle())
