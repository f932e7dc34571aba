"""Faults that are planted into replication, in simulated clusters and in real ones."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from strandline.broker.cluster.in_sync.in_sync_set import InSyncSet, Proposal
from strandline.broker.cluster.in_sync.leading import Leading
from strandline.broker.cluster.in_sync.progress import FollowerProgress
from strandline.broker.cluster.replicas.partition import Partition
from strandline.broker.controller import registration
from strandline.broker.coordination.runtime.journal import Journal
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.replication.followed import Followed
from strandline.storage.config.log_config import LogConfig
from strandline.storage.local.log.log import LocalLog
from strandline.storage.local.log_dirs.log_dirs import LogDirs
from strandline.storage.model import Isolation
from strandline.storage.tiering.copy import open_segment
from strandline.storage.tiering.partition.manifest_owner import ManifestOwner

# Behind every log.
OFFSETS_END = 2**62


def acknowledged_before_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leading, "wait", lambda *_: ErrorCode.NONE)


def the_high_watermark_is_the_leaders_end(patch: pytest.MonkeyPatch) -> None:
    def advance(own: Leading) -> None:
        own._local.advance_high_watermark(own._local.end_offset)
        own._tell()

    appended = Leading.appended

    def at_once(own: Leading, info: Any) -> None:
        appended(own, info)
        own.advance()

    patch.setattr(Leading, "advance", advance)
    patch.setattr(Leading, "appended", at_once)


def logs_are_cut_at_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """Whenever somebody else leads, as before KIP-101."""
    begin = Followed.__init__

    def begun(own: Followed, *given: Any) -> None:
        begin(own, *given)
        own.truncate(own.partition.log.local.high_watermark)

    patch.setattr(Followed, "__init__", begun)


def a_crash_is_taken_for_a_clean_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(registration, "crash", registration.leave)


def a_loss_of_power_is_taken_for_a_kill(patch: pytest.MonkeyPatch) -> None:
    run = LogDirs._run

    def on_any_boot(own: LogDirs, directory: Any, epoch: int, _boot_of: Any) -> Any:
        return run(own, directory, epoch, lambda _: "any")

    patch.setattr(LogDirs, "_run", on_any_boot)


def divergence_is_not_looked_for(patch: pytest.MonkeyPatch) -> None:
    """A follower goes on at its end, whatever epoch its last record has."""

    def asked(own: Followed) -> Any:
        return _asked(own)._replace(last_epoch=-1)

    _asked = Followed.asked.fget  # type: ignore[attr-defined]
    patch.setattr(Followed, "asked", property(asked))


def the_high_watermark_moves_below_min_in_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leading, "is_under_min_in_sync", property(lambda _: False))


def a_follower_joins_wherever_it_is(patch: pytest.MonkeyPatch) -> None:
    def expand(own: Leading, follower: FollowerProgress) -> None:
        in_sync = own.in_sync
        is_new = follower.broker_id not in in_sync.committed
        if in_sync.pending is None and is_new and own._cluster.may_join(follower):
            own._propose(in_sync.committed | {follower.broker_id}, joining=follower.broker_id)

    patch.setattr(Leading, "_expand", expand)


def a_broker_answers_though_it_does_not_lead(patch: pytest.MonkeyPatch) -> None:
    # A follower serves consumers too (KIP-392): one that led before knows them by their epoch.
    for name in ("refusal", "epoch_refusal"):
        patch.setattr(Partition, name, lambda *_: None)


def coordinators_tell_what_is_not_replicated(patch: pytest.MonkeyPatch) -> None:
    async def settled(_own: Journal, *, must_flush: bool = False) -> None:
        del must_flush

    patch.setattr(Journal, "settled", settled)


def a_follower_joins_below_the_start_of_the_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leading, "_start_of_epoch", lambda _: 0)


def the_high_watermark_does_not_wait_for_who_joins(patch: pytest.MonkeyPatch) -> None:
    propose = InSyncSet.propose

    def proposed(own: InSyncSet, *given: Any, **named: Any) -> Any:
        proposal = propose(own, *given, **named)
        own.maximal = own.committed
        return proposal

    def advance(own: Leading) -> None:
        if own.is_under_min_in_sync:
            return
        followers = [own.follower(one) for one in own.in_sync.committed]
        ends = [one.end_offset for one in followers if one is not None]
        own._local.advance_high_watermark(min(ends, default=own._local.end_offset))
        own._tell()

    patch.setattr(InSyncSet, "propose", proposed)
    patch.setattr(Leading, "advance", advance)


def consumers_read_above_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Isolation, "of_consumer", lambda _level: Isolation.LOG_END)


# --- the archive of replicated logs ------------------------------------------------------------


def pieces_of_the_open_segment_ignore_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    extents = open_segment._extents
    patch.setattr(open_segment, "_extents", lambda run, _high_watermark: extents(run, OFFSETS_END))


def a_new_leader_does_not_claim_the_archive(patch: pytest.MonkeyPatch) -> None:
    """A commit of the earlier leader that is late succeeds."""

    async def claim(_: ManifestOwner) -> None:
        pass

    patch.setattr(ManifestOwner, "claim", claim)


def a_minimum_counts_late(patch: pytest.MonkeyPatch) -> None:
    """Behind changes of the in-sync set that came after it."""
    update = LocalLog.update_config

    def late(own: LocalLog, config: LogConfig) -> None:
        asyncio.get_running_loop().call_later(1.0, update, own, config)

    patch.setattr(LocalLog, "update_config", late)


def who_left_counts_with_the_answer(patch: pytest.MonkeyPatch) -> None:
    """The metadata may have a minimum before that."""

    def altered(own: Leading, proposal: Proposal, broker_ids: frozenset[int], *epochs: int) -> None:
        in_sync, (leader_epoch, partition_epoch) = own.in_sync, epochs
        is_newer = partition_epoch >= in_sync.partition_epoch
        if in_sync.pending is proposal and leader_epoch == own.leader_epoch and is_newer:
            in_sync.commit(broker_ids, partition_epoch, 0)
            own.advance()

    patch.setattr(Leading, "altered", altered)
