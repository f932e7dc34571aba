"""The checkers of a cluster find faults that are planted: in one of a few worlds, each.

A fault takes one check out of the product. The first world is one that reveals it; the next ones
are for a product that draws other numbers since.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from strandline.broker.cluster.membership.channel import ControllerChannel
from strandline.broker.cluster.membership.replay import MetadataReplay
from strandline.broker.cluster.metadata import active_controller
from strandline.broker.cluster.metadata.controller_messages import Decision, Refusal
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.replicas.partition import Partition
from strandline.broker.controller import heartbeats, producer_ids, registration
from strandline.broker.controller.attended_time import AttendedTime
from strandline.broker.controller.feed import ServedMetadataLog
from strandline.broker.controller.heartbeats import BrokerControlState
from strandline.broker.controller.messages import AllocateBlock, AllocatedBlock
from strandline.broker.controller.partitions.decided import Partitions
from strandline.broker.controller.sessions import EVERYWHERE, BrokerSessions, Session
from strandline.broker.coordination.transactions.verification import PartitionVerification
from strandline.broker.protocol.formats.metadata_records import RegisterBrokerRecord
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.local.formats.producer_state import ProducerEntry
from strandline.storage.model import NO_EPOCH
from tests.sim.several.faults import Fault, by_name
from tests.sim.several.scenarios import nothing, records, transactions

ALONE = ("double", "pause", "cut", "kill", "reset")


# --- requests of clients -----------------------------------------------------------------------


def epochs_are_not_checked(patch: pytest.MonkeyPatch) -> None:
    checked = Partition.epoch_refusal
    patch.setattr(Partition, "epoch_refusal", lambda own, _epoch: checked(own, NO_EPOCH))


def duplicates_are_appended(patch: pytest.MonkeyPatch) -> None:
    def forget(own: ProducerEntry, first_sequence: int, _last: int) -> None:
        # What came before is not known either.
        own.next_sequence = first_sequence

    patch.setattr(ProducerEntry, "find_duplicate", forget)


def acknowledged_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partition, "must_flush", False)


def markers_leave_before_prepare_is_durable(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partition, "may_rely_on", lambda *_: True)


def transactions_are_not_verified(patch: pytest.MonkeyPatch) -> None:
    async def elsewhere(*arguments: Any) -> Mapping[object, ErrorCode]:
        return dict.fromkeys(arguments[4], ErrorCode.NONE)

    patch.setattr(PartitionVerification, "confirm", lambda *_: ErrorCode.NONE)
    patch.setattr(PartitionVerification, "confirm_elsewhere", elsewhere)


# --- brokers and their controller --------------------------------------------------------------


def any_broker_epoch_is_accepted(patch: pytest.MonkeyPatch) -> None:
    def check(image: MetadataImage, node_id: int, _epoch: int) -> RegisterBrokerRecord:
        broker = image.brokers.get(node_id)
        if broker is None:
            raise Refusal(ErrorCode.STALE_BROKER_EPOCH)
        return broker

    patch.setattr(heartbeats, "check_epoch", check)


def an_id_is_given_while_its_broker_lives(patch: pytest.MonkeyPatch) -> None:
    checked = registration.register
    patch.setattr(
        registration, "register", lambda image, asked, _: checked(image, asked, Session.NONE)
    )


def a_closed_connection_is_a_death(patch: pytest.MonkeyPatch) -> None:
    """Whatever the folders are."""
    checked = registration.register

    def register(partitions: Partitions, asked: Any, session: Session) -> Decision[Any]:
        return checked(
            partitions, asked, Session.NONE if session is Session.UNCONNECTED else session
        )

    patch.setattr(registration, "register", register)


def time_that_stood_still_counts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AttendedTime, "now_s", lambda own: own._monotonic_s())


def answers_of_a_deposed_controller_are_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ControllerChannel, "_is_believed", lambda *_: True)


def a_fenced_broker_keeps_its_leaderships(patch: pytest.MonkeyPatch) -> None:
    leave = heartbeats.leave

    def stay(*given: Any, **named: Any) -> Decision[Any]:
        return leave(*given, **{**named, "places": ()})

    patch.setattr(heartbeats, "leave", stay)


def a_broker_may_stop_before_its_leaders_are_moved(patch: pytest.MonkeyPatch) -> None:
    decided = heartbeats.next_state

    def next_state(standing: Any, asked: Any, leads: Callable[[], bool]) -> BrokerControlState:
        return decided(standing, asked, lambda: False)

    patch.setattr(heartbeats, "next_state", next_state)


def a_broker_may_stop_before_others_know_who_leads(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BrokerSessions, "lowest_active", lambda *_: EVERYWHERE)


def incarnations_of_one_entry_share_an_epoch(patch: pytest.MonkeyPatch) -> None:
    """As if an entry had several decisions."""
    record_of = registration._record_of
    patch.setattr(
        registration, "_record_of", lambda asked, epoch: record_of(asked, epoch - epoch % 32)
    )


def producer_ids_are_given_twice(patch: pytest.MonkeyPatch) -> None:
    allocated = producer_ids.allocate

    def allocate(image: MetadataImage, asked: AllocateBlock) -> Decision[AllocatedBlock]:
        decision = allocated(image, asked)
        (block,) = decision.results
        return replace(decision, results=(replace(block, first_id=0),))

    patch.setattr(producer_ids, "allocate", allocate)


# --- the metadata ------------------------------------------------------------------------------


def an_entry_is_applied_twice(patch: pytest.MonkeyPatch) -> None:
    position, take = ServedMetadataLog._position, MetadataReplay.take

    def again(own: MetadataReplay, fetched: Any, high_watermark: int) -> Any:
        own.next_offset = 0
        return take(own, fetched, high_watermark)

    patch.setattr(
        ServedMetadataLog, "_position", lambda own, offset: max(0, position(own, offset) - 1)
    )
    patch.setattr(MetadataReplay, "take", again)


def a_follower_goes_on_one_behind_its_snapshot(patch: pytest.MonkeyPatch) -> None:
    restart = MetadataReplay.restart

    def one_behind(own: MetadataReplay, snapshot: Any, end_offset: int, epoch: int) -> Any:
        applied = restart(own, snapshot, end_offset, epoch)
        own.next_offset += 1
        return applied

    patch.setattr(MetadataReplay, "restart", one_behind)


def an_entry_is_left_out(patch: pytest.MonkeyPatch) -> None:
    position, reads = ServedMetadataLog._position, count(1)

    def skipped(own: ServedMetadataLog, offset: int) -> int:
        return position(own, offset) + (next(reads) % 5 == 0)

    patch.setattr(ServedMetadataLog, "_position", skipped)


def an_entry_is_given_up_with_who_asked_for_it(patch: pytest.MonkeyPatch) -> None:
    async def at_once(work: Coroutine[object, object, Any]) -> Any:
        return await work

    patch.setattr(active_controller, "to_its_end", at_once)


FAULTS = by_name(
    (
        Fault(
            plant=epochs_are_not_checked,
            clients=records,
            words=["answered under epoch"],
            first_world=6,
        ),
        Fault(plant=duplicates_are_appended, clients=records, words=["twice"], first_world=5),
        Fault(plant=acknowledged_before_the_sync, clients=records, words=["lost"], only=("power",)),
        Fault(
            plant=markers_leave_before_prepare_is_durable,
            clients=transactions,
            words=["lost", "aborted"],
            only=("power",),
            troubles=14,
            first_world=112,
        ),
        Fault(
            plant=any_broker_epoch_is_accepted,
            clients=nothing,
            words=["was accepted under epoch"],
            only=("double", "pause"),
        ),
        Fault(
            plant=an_id_is_given_while_its_broker_lives,
            clients=nothing,
            words=["taken from a living"],
            only=ALONE,
        ),
        Fault(
            plant=a_closed_connection_is_a_death,
            clients=nothing,
            words=["taken from a living"],
            only=("double", "reset"),
        ),
        Fault(
            plant=time_that_stood_still_counts,
            clients=nothing,
            words=["its session lasts"],
            only=("pause controller",),
            first_world=15,
        ),
        Fault(
            plant=a_fenced_broker_keeps_its_leaderships,
            clients=nothing,
            words=["and is fenced"],
            only=("pause", "cut"),
        ),
        Fault(
            plant=a_broker_may_stop_before_its_leaders_are_moved,
            clients=nothing,
            words=["may stop"],
            only=("restart", "slow link"),
        ),
        Fault(
            plant=a_broker_may_stop_before_others_know_who_leads,
            clients=nothing,
            words=["may stop"],
            only=("restart", "slow link"),
            first_world=7,
        ),
        Fault(
            plant=incarnations_of_one_entry_share_an_epoch,
            clients=nothing,
            words=["two incarnations of", "the epoch of"],
            only=("kill",),
        ),
        Fault(plant=producer_ids_are_given_twice, clients=records, words=["given twice"]),
        Fault(plant=an_entry_is_applied_twice, clients=nothing, words=["has another image"]),
        Fault(
            plant=an_entry_is_left_out,
            clients=nothing,
            words=["has another image"],
            first_world=1,
        ),
        Fault(
            plant=a_follower_goes_on_one_behind_its_snapshot,
            clients=nothing,
            words=["has another image"],
            first_world=4,
        ),
        Fault(
            plant=an_entry_is_given_up_with_who_asked_for_it,
            clients=nothing,
            words=["has another image"],
            only=("reset", "slow disk", "slow disk", "restart"),
            first_world=14,
        ),
    )
)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = FAULTS[name]
    fault.plant(monkeypatch)
    assert fault.world_that_reveals(tmp_path) is not None
