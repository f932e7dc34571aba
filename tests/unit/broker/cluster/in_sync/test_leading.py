"""The lead of a partition, step by step: Kafka's PartitionTest, with the clock in our hand."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline.broker.cluster.in_sync.in_sync_set import Proposal, SyncedReplica
from strandline.broker.cluster.in_sync.leading import LeaderContext, Leading, StaleFollower
from strandline.broker.cluster.in_sync.throttle import LEADERS
from strandline.broker.cluster.metadata.image import PartitionImage
from strandline.broker.protocol.formats.metadata_records import RegisterBrokerRecord
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.config.log_config import LogConfig
from tests.unit.broker.cluster.controlled import registered
from tests.unit.broker.cluster.throttled import throttle_of
from tests.unit.storage.local.builders import TOPIC_ID, batch, open_log

LAG_MS = 1000.0
ME, TWO, THREE = 1, 2, 3


class Lead:
    """Broker 1 leads, with followers 2 and 3; proposals wait for the test."""

    def __init__(self, path: Path, **config: Any) -> None:
        self.now_ms = 5000.0
        self.brokers: dict[int, RegisterBrokerRecord] = {
            node: registered(node).replaced(broker_epoch=100 + node) for node in (ME, TWO, THREE)
        }
        self.proposals: list[Proposal] = []
        self.advanced: list[int] = []
        self.log = open_log(path, config=LogConfig(**config)) if config else open_log(path)
        self.leading = Leading(
            LeaderContext(
                node_id=ME,
                now_ms=lambda: self.now_ms,
                lag_ms_max=lambda: LAG_MS,
                brokers=lambda: self.brokers,
                broker_epoch=lambda: 101,
                propose=lambda _id, _index, _lead, proposal: self.proposals.append(proposal),
                throttle=throttle_of(LEADERS),
            ),
            TOPIC_ID,
            self.log,
            on_advanced=self.advanced.append,
        )
        self.epoch = 0

    def lead(self, isr: tuple[int, ...] = (1, 2, 3), *, epoch: int = 4, **values: Any) -> None:
        self.epoch += 1
        self._follow(isr, leader_epoch=epoch, **values)

    def _follow(self, isr: tuple[int, ...], *, leader_epoch: int, **values: Any) -> None:
        image = PartitionImage(
            **{
                "partition": 0,
                "leader": ME,
                "leader_epoch": leader_epoch,
                "partition_epoch": self.epoch,
                "replicas": (1, 2, 3),
                "isr": isr,
                **values,
            }
        )
        is_new = self.leading.leader_epoch < 0
        self.leading.follow(image, is_new=is_new)

    def append(self, count: int = 1) -> int:
        info = self.log.append(batch(count), leader_epoch=self.leading.leader_epoch)
        self.leading.appended(info)
        return info.last_offset + 1

    def fetch(self, broker_id: int, offset: int, *, epoch: int | None = None) -> None:
        follower = self.leading.follower(broker_id)
        assert follower is not None
        self.leading.fetched(
            follower,
            offset,
            0,
            now_ms=self.now_ms,
            broker_epoch=100 + broker_id if epoch is None else epoch,
        )

    @property
    def high_watermark(self) -> int:
        return self.log.high_watermark

    def commit(self, *isr: int) -> None:
        """The controller carries out the last proposal, and the metadata follow."""
        self.answer(*isr)
        self.tell(*isr)

    def answer(self, *isr: int) -> None:
        """The controller has carried out the last proposal."""
        self.epoch += 1
        self.leading.altered(
            self.proposals[-1], frozenset(isr), self.leading.leader_epoch, self.epoch
        )

    def tell(self, *isr: int) -> None:
        """The metadata have what was answered."""
        self._follow(isr, leader_epoch=self.leading.leader_epoch)


@pytest.fixture
def led(tmp_path: Path) -> Iterator[Lead]:
    made = Lead(tmp_path / "t")
    yield made
    made.log.close()


def test_the_high_watermark_is_the_lowest_end_of_those_in_sync(led: Lead) -> None:
    led.lead()
    end = led.append(10)
    led.fetch(TWO, end)
    assert led.high_watermark == 0
    led.fetch(THREE, 0)
    assert led.high_watermark == 0
    led.fetch(THREE, 10)
    assert led.high_watermark == 10
    assert sum(led.advanced) > 0


def test_a_new_leader_keeps_the_high_watermark_until_its_followers_have_fetched(led: Lead) -> None:
    led.log.append(batch(6), leader_epoch=3)
    led.log.advance_high_watermark(4)
    led.lead()
    assert led.high_watermark == 4
    led.fetch(TWO, 6)
    led.fetch(THREE, 5)
    assert led.high_watermark == 5


def test_a_leader_that_alone_is_in_sync_has_everything_replicated(led: Lead) -> None:
    led.log.append(batch(6), leader_epoch=3)
    led.lead((ME,))
    assert led.high_watermark == 6
    assert led.append() == led.high_watermark == 7


def test_followers_have_the_time_of_a_lag_to_show_themselves_to_a_new_leader(led: Lead) -> None:
    led.lead()
    led.append()
    led.now_ms += LAG_MS
    led.leading.shrink()
    assert led.proposals == []
    led.now_ms += 1
    led.leading.shrink()
    assert led.proposals[0].broker_ids == {ME}


def test_one_that_follows_all_the_time_stays_in_sync_although_it_never_has_the_newest_record(
    led: Lead,
) -> None:
    led.lead()
    led.fetch(TWO, 0)
    led.fetch(THREE, 0)
    end = 0
    for _ in range(5):
        before, end = end, led.append(3)
        led.now_ms += LAG_MS * 0.6
        # It asks for what was the end at its last fetch.
        led.fetch(TWO, before)
        led.leading.shrink()
        assert all(TWO in one.broker_ids for one in led.proposals)
    assert led.proposals[0].broker_ids == {ME, TWO}


def test_an_idle_follower_was_caught_up_when_its_session_asked_last(led: Lead) -> None:
    """Its fetches do not name a partition without news."""
    led.lead()
    follower = led.leading.follower(TWO)
    assert follower is not None

    class Session:
        asked_ms = 0.0

    session = Session()
    follower.asking = session  # type: ignore[assignment]
    led.fetch(TWO, 0)
    led.fetch(THREE, 0)
    led.now_ms += 100 * LAG_MS
    session.asked_ms = led.now_ms
    led.append()
    led.now_ms += LAG_MS / 2
    assert led.leading.late_followers() == {THREE}
    led.now_ms += LAG_MS
    assert led.leading.late_followers() == {TWO, THREE}


def test_a_follower_with_the_whole_log_is_never_late(led: Lead) -> None:
    led.lead()
    end = led.append()
    led.fetch(TWO, end)
    led.fetch(THREE, end)
    led.now_ms += 100 * LAG_MS
    assert not led.leading.late_followers()


def test_one_change_of_the_set_is_proposed_at_a_time_with_the_epochs_of_the_brokers(
    led: Lead,
) -> None:
    led.lead((ME,))
    led.fetch(TWO, 0)
    led.fetch(THREE, 0)
    (proposal,) = led.proposals
    assert list(proposal.replicas) == [SyncedReplica(ME, 101), SyncedReplica(TWO, 102)]
    assert (proposal.leader_epoch, proposal.partition_epoch) == (4, 1)
    led.commit(ME, TWO)
    led.fetch(THREE, 0)
    assert [one.broker_id for one in led.proposals[1].replicas] == [ME, TWO, THREE]
    assert led.proposals[1].partition_epoch == 2


def test_until_it_is_decided_who_may_have_joined_is_waited_for_and_who_may_have_left_too(
    led: Lead,
) -> None:
    led.lead((ME, TWO))
    led.fetch(THREE, 0)
    assert led.leading.in_sync.maximal == {ME, TWO, THREE}
    end = led.append()
    led.fetch(TWO, end)
    assert led.high_watermark == 0
    led.commit(ME, TWO, THREE)
    led.now_ms += 2 * LAG_MS
    led.leading.shrink()
    assert led.proposals[-1].broker_ids == {ME, TWO}
    assert led.leading.in_sync.maximal == {ME, TWO, THREE}
    assert led.high_watermark == 0
    led.commit(ME, TWO)
    assert led.high_watermark == end


def test_who_joined_counts_with_the_answer_and_who_left_with_the_metadata(tmp_path: Path) -> None:
    """A minimum that was raised comes with the metadata, before who left by it: that one may lead,
    and has nothing of what this leader alone has.
    """
    led = Lead(tmp_path / "t", min_insync_replicas=1)
    led.lead((ME, TWO))
    led.fetch(THREE, 0)
    led.answer(ME, TWO, THREE)
    assert led.leading.in_sync.committed == {ME, TWO, THREE}
    led.tell(ME, TWO, THREE)
    end = led.append()
    led.now_ms += 2 * LAG_MS
    led.leading.shrink()
    led.answer(ME)
    assert led.high_watermark == 0
    led.leading.shrink()
    assert len(led.proposals) == 2
    led.log.update_config(LogConfig(min_insync_replicas=2))
    led.tell(ME)
    assert led.leading.in_sync.pending is None
    assert led.high_watermark == 0
    assert led.leading.wait(end) is None
    led.log.close()


def test_a_caught_up_follower_that_may_join_is_waited_for_as_if_it_had(led: Lead) -> None:
    """Else the high watermark would run away from it, for ever."""
    led.lead((ME, TWO))
    end = led.append(5)
    led.fetch(THREE, 3)
    led.fetch(TWO, end)
    assert led.high_watermark == 3
    led.fetch(THREE, end)
    assert led.high_watermark == end
    assert led.proposals[-1].joining == THREE


def test_a_late_follower_outside_of_the_set_is_not_waited_for(led: Lead) -> None:
    led.lead((ME, TWO))
    led.fetch(THREE, 0)
    led.leading.refused(led.proposals[0], ErrorCode.INELIGIBLE_REPLICA)
    led.append(5)
    led.now_ms += 2 * LAG_MS
    led.fetch(TWO, 5)
    assert led.high_watermark == 5


def test_below_the_high_watermark_or_the_start_of_the_epoch_nobody_joins(led: Lead) -> None:
    led.log.append(batch(8), leader_epoch=3)
    led.log.advance_high_watermark(2)
    led.lead((ME, TWO))
    # The epoch begins at 8: the follower may have other records below it.
    led.fetch(THREE, 7)
    assert led.proposals == []
    led.fetch(THREE, 8)
    assert led.proposals[0].joining == THREE


@pytest.mark.parametrize("state", ["fenced", "stopping", "gone", "restarted"])
def test_a_broker_that_the_controller_would_refuse_is_not_proposed(led: Lead, state: str) -> None:
    led.lead((ME, TWO))
    known = led.brokers[THREE]
    changed = {
        "fenced": known.replaced(fenced=True),
        "stopping": known.replaced(in_controlled_shutdown=True),
        "gone": None,
        "restarted": known,
    }[state]
    if changed is None:
        del led.brokers[THREE]
    else:
        led.brokers[THREE] = changed
    led.fetch(THREE, 0, epoch=104 if state == "restarted" else None)
    assert led.proposals == []
    # It holds the high watermark back no more than one that never came.
    led.append()
    led.fetch(TWO, 1)
    assert led.high_watermark == 1


def test_a_fetch_of_an_incarnation_that_is_gone_is_refused(led: Lead) -> None:
    led.lead()
    led.append()
    with pytest.raises(StaleFollower):
        led.fetch(TWO, 1, epoch=99)
    follower = led.leading.follower(TWO)
    assert follower is not None
    assert follower.end_offset == -1
    # Those of older protocols do not say their epoch.
    led.fetch(TWO, 1, epoch=-1)
    assert follower.end_offset == 1


def test_with_too_few_in_sync_nothing_more_becomes_visible(tmp_path: Path) -> None:
    led = Lead(tmp_path / "t", min_insync_replicas=2)
    led.lead((ME,))
    assert led.leading.is_under_min_in_sync
    assert led.leading.is_under_replicated
    led.append()
    assert led.high_watermark == 0
    led.fetch(TWO, 1)
    led.commit(ME, TWO)
    assert led.high_watermark == 1
    led.log.close()


def test_the_minimum_is_at_most_the_number_of_replicas(tmp_path: Path) -> None:
    led = Lead(tmp_path / "t", min_insync_replicas=9)
    led.lead()
    assert led.leading.min_in_sync == 3
    assert not led.leading.is_under_replicated
    assert not led.leading.is_under_min_in_sync
    led.log.close()


def test_a_follower_that_left_is_behind_since_it_was_caught_up_last(led: Lead) -> None:
    led.lead()
    led.now_ms += 1000
    end = led.append()
    led.fetch(TWO, end)
    led.fetch(THREE, end)
    assert list(led.leading.followers_behind()) == []
    led.append()
    led.now_ms += 7000
    led.fetch(TWO, end + 1)
    led.leading.shrink()
    led.commit(ME, TWO)
    assert list(led.leading.followers_behind()) == [(THREE, 7000)]
    assert not led.leading.is_at_min_in_sync
    # Another election of the same leader does not begin anew.
    led.now_ms += 1000
    led.lead((ME, TWO))
    led.now_ms += 1000
    assert list(led.leading.followers_behind()) == [(THREE, 9000)]


def test_a_shrunk_set_is_told_to_who_was_appended_before(tmp_path: Path) -> None:
    led = Lead(tmp_path / "t", min_insync_replicas=3)
    led.lead()
    end = led.append()
    assert led.leading.wait(end) is None
    for node in (TWO, THREE):
        led.fetch(node, end)
    assert led.leading.wait(end) is ErrorCode.NONE
    led.lead((ME, TWO))
    assert led.leading.wait(end) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    led.log.close()


@pytest.mark.parametrize("code", [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA])
def test_what_was_surely_not_carried_out_is_withdrawn(led: Lead, code: ErrorCode) -> None:
    led.lead((ME, TWO))
    led.fetch(THREE, 0)
    assert led.leading.refused(led.proposals[0], code) is False
    assert led.leading.in_sync.pending is None
    assert led.leading.in_sync.maximal == {ME, TWO}


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    ],
)
def test_what_may_have_been_carried_out_is_pending_until_the_metadata_say(
    led: Lead, code: ErrorCode
) -> None:
    led.lead((ME, TWO))
    led.fetch(THREE, 0)
    assert led.leading.refused(led.proposals[0], code) is False
    assert led.leading.in_sync.maximal == {ME, TWO, THREE}
    led.fetch(THREE, 0)
    assert len(led.proposals) == 1
    led.lead((ME, TWO, THREE))
    assert led.leading.in_sync.pending is None


def test_an_unknown_failure_is_tried_again(led: Lead) -> None:
    led.lead((ME, TWO))
    led.fetch(THREE, 0)
    assert led.leading.refused(led.proposals[0], ErrorCode.UNKNOWN_SERVER_ERROR) is True


def test_an_answer_after_an_election_is_nobodys(led: Lead) -> None:
    led.lead((ME, TWO))
    led.fetch(THREE, 0)
    (proposal,) = led.proposals
    led.lead((ME, TWO), epoch=5)
    led.leading.altered(proposal, frozenset({ME, TWO, THREE}), 4, 9)
    assert led.leading.in_sync.committed == {ME, TWO}
    assert led.leading.refused(proposal, ErrorCode.UNKNOWN_SERVER_ERROR) is False


def test_metadata_that_are_older_than_an_answer_change_nothing(led: Lead) -> None:
    led.lead((ME, TWO))
    led.fetch(THREE, 0)
    led.leading.altered(led.proposals[0], frozenset({ME, TWO, THREE}), 4, 7)
    led.lead((ME, TWO))
    assert led.leading.in_sync.committed == {ME, TWO, THREE}
    led.epoch = 6
    led.lead((ME, TWO, THREE))
    assert led.leading.in_sync.partition_epoch == 7


def test_a_leader_that_is_elected_again_keeps_what_it_knows_of_its_followers(led: Lead) -> None:
    led.lead()
    end = led.append(2)
    for node in (TWO, THREE):
        led.fetch(node, end)
    led.lead(epoch=5)
    end = led.append()
    led.fetch(TWO, end)
    follower = led.leading.follower(THREE)
    assert follower is not None
    assert follower.end_offset == 2
    assert led.high_watermark == 2


def test_a_replica_that_is_added_begins_without_a_past_and_one_removed_is_not_waited_for(
    led: Lead,
) -> None:
    led.lead((ME, TWO))
    end = led.append(3)
    led.brokers[4] = registered(4).replaced(broker_epoch=104)
    led.lead((ME, TWO), replicas=(1, 2, 3, 4), adding_replicas=(4,))
    led.fetch(4, end)
    assert led.proposals[-1].joining == 4
    led.lead((ME, 4), replicas=(1, 4))
    assert led.high_watermark == end
    assert led.leading.follower(TWO) is None


def test_the_low_watermark_is_that_of_all_replicas_whose_brokers_live(led: Lead) -> None:
    led.lead()
    end = led.append(10)
    for node, start in ((TWO, 4), (THREE, 2)):
        follower = led.leading.follower(node)
        assert follower is not None
        led.leading.fetched(follower, end, start, now_ms=led.now_ms, broker_epoch=100 + node)
    assert led.leading.low_watermark(7) == 2
    led.brokers[THREE] = led.brokers[THREE].replaced(fenced=True)
    assert led.leading.low_watermark(7) == 4
    assert led.leading.low_watermark(3) == 3


def test_a_caught_up_follower_whose_log_folder_failed_is_not_waited_for(led: Lead) -> None:
    folder, other = uuid.UUID(int=1000), uuid.UUID(int=1001)
    led.brokers[THREE] = led.brokers[THREE].replaced(log_dirs=(folder, other))
    unknown = uuid.UUID(int=0)
    led.lead(directories=(unknown, unknown, folder))
    end = led.append()
    led.fetch(TWO, end)
    led.fetch(THREE, end - 1)
    led.lead(isr=(ME, TWO), directories=(unknown, unknown, folder))
    # The controller tells of the folder after the partitions in it.
    assert led.high_watermark == 0
    led.brokers[THREE] = led.brokers[THREE].replaced(log_dirs=(other,))
    led.leading.advance()
    assert led.high_watermark == end
    led.fetch(THREE, end)
    assert led.proposals == []
