"""The checkers find faults that are planted into replication: in one of a few worlds, each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sim.several.archive import late_deletion
from tests.sim.several.faults import Fault, by_name
from tests.sim.several.planted_in_replication import (
    a_broker_answers_though_it_does_not_lead,
    a_crash_is_taken_for_a_clean_end,
    a_follower_joins_below_the_start_of_the_epoch,
    a_follower_joins_wherever_it_is,
    a_loss_of_power_is_taken_for_a_kill,
    a_minimum_counts_late,
    a_new_leader_does_not_claim_the_archive,
    acknowledged_before_the_high_watermark,
    consumers_read_above_the_high_watermark,
    coordinators_tell_what_is_not_replicated,
    divergence_is_not_looked_for,
    logs_are_cut_at_the_high_watermark,
    pieces_of_the_open_segment_ignore_the_high_watermark,
    the_high_watermark_does_not_wait_for_who_joins,
    the_high_watermark_is_the_leaders_end,
    the_high_watermark_moves_below_min_in_sync,
    who_left_counts_with_the_answer,
)
from tests.sim.several.scenarios import groups, minima, records
from tests.support.heavy import all_but

# What makes followers late, and takes the leader away then.
LATE = ("slow link", "cut", "kill", "pause", "lossy")
SAYS_LOST = (
    "lost",
    "twice",
    "changed",
    "replicas differ",
    "in-sync replica",
    "replicas have that",
    "is in sync at",
)


FAULTS = by_name(
    (
        Fault(
            plant=acknowledged_before_the_high_watermark,
            clients=records,
            words=SAYS_LOST,
            only=LATE,
            replicas=3,
            first_world=2,
        ),
        Fault(
            plant=the_high_watermark_is_the_leaders_end,
            clients=records,
            words=SAYS_LOST,
            only=LATE,
            replicas=3,
        ),
        Fault(
            plant=logs_are_cut_at_the_high_watermark,
            clients=records,
            words=SAYS_LOST,
            only=("slow leader",),
            replicas=3,
            first_world=5,
        ),
        Fault(
            plant=a_crash_is_taken_for_a_clean_end,
            clients=records,
            words=SAYS_LOST,
            only=("last one",),
            troubles=1,
            replicas=3,
            is_synced=False,
        ),
        Fault(
            plant=a_loss_of_power_is_taken_for_a_kill,
            clients=records,
            words=SAYS_LOST,
            only=("last one",),
            troubles=1,
            replicas=3,
            is_synced=False,
        ),
        Fault(
            plant=divergence_is_not_looked_for,
            clients=records,
            words=(*SAYS_LOST, "not in sync again", "hangs"),
            only=LATE,
            replicas=3,
            first_world=1,
        ),
        Fault(
            plant=the_high_watermark_moves_below_min_in_sync,
            clients=records,
            words=("replicas have that",),
            only=("apart",),
            troubles=4,
            replicas=3,
        ),
        Fault(
            plant=a_follower_joins_wherever_it_is,
            clients=records,
            words=("is in sync at", "in-sync replica"),
            only=("apart", "slow link"),
            replicas=3,
            first_world=1,
        ),
        Fault(
            plant=a_broker_answers_though_it_does_not_lead,
            clients=records,
            words=("answered as the leader",),
            only=("pause", "cut", "kill"),
            replicas=3,
            first_world=1,
        ),
        Fault(
            plant=a_follower_joins_below_the_start_of_the_epoch,
            clients=records,
            words=("is in sync at", "in-sync replica"),
            only=("slow leader",),
            replicas=3,
            first_world=8,
        ),
        Fault(
            plant=the_high_watermark_does_not_wait_for_who_joins,
            clients=records,
            words=("is in sync at", "in-sync replica"),
            only=("apart", "slow link", "slow controller", "slow controller"),
            troubles=8,
            replicas=3,
        ),
        Fault(
            plant=a_minimum_counts_late,
            clients=minima,
            words=("eligible replica",),
            replicas=3,
            first_world=43,
        ),
        Fault(
            plant=who_left_counts_with_the_answer,
            clients=minima,
            words=("eligible replica",),
            only=("slow link", "slow link", "apart"),
            troubles=8,
            replicas=3,
            first_world=15,
        ),
        Fault(
            plant=consumers_read_above_the_high_watermark,
            clients=records,
            words=("read, and lost", "changed"),
            only=LATE,
            replicas=3,
            first_world=5,
        ),
        Fault(
            plant=pieces_of_the_open_segment_ignore_the_high_watermark,
            clients=records,
            words=("is archived up to",),
            only=("slow link", "apart"),
            replicas=3,
            is_archived=True,
        ),
        Fault(
            plant=a_new_leader_does_not_claim_the_archive,
            clients=late_deletion,
            words=("deleted late",),
            troubles=0,
            replicas=3,
            is_archived=True,
        ),
        Fault(
            plant=coordinators_tell_what_is_not_replicated,
            clients=groups,
            words=("lost",),
            replicas=3,
        ),
    )
)
QUICK = (
    "acknowledged_before_the_high_watermark-records",
    "the_high_watermark_is_the_leaders_end-records",
    "divergence_is_not_looked_for-records",
    "the_high_watermark_moves_below_min_in_sync-records",
    "logs_are_cut_at_the_high_watermark-records",
    "a_crash_is_taken_for_a_clean_end-records",
    "a_loss_of_power_is_taken_for_a_kill-records",
    "pieces_of_the_open_segment_ignore_the_high_watermark-records",
    "a_new_leader_does_not_claim_the_archive-late_deletion",
    "a_follower_joins_wherever_it_is-records",
    "a_minimum_counts_late-minima",
    "who_left_counts_with_the_answer-minima",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", all_but(QUICK, FAULTS))
def test_a_fault_planted_in_replication_is_found(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = FAULTS[name]
    fault.plant(monkeypatch)
    assert fault.world_that_reveals(tmp_path) is not None
