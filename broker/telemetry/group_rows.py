"""Metrics of groups: members, committed offsets and lag."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from strandline.broker.cluster.replicas.replica_manager import ReplicaManager
from strandline.broker.coordination.classic.group import Group
from strandline.broker.coordination.consumer.consumer_group import ConsumerGroup
from strandline.broker.coordination.model.classic_messages import CoordinatorFault
from strandline.broker.coordination.runtime.group_coordinator import GroupCoordinator
from strandline.broker.telemetry.exposition import Sample
from strandline.broker.telemetry.rows import LOOKED_UP_PER_STEP, Step, row_of, single


@dataclass(frozen=True, slots=True, kw_only=True)
class _Committed:
    place: tuple[str, str, str]
    committed: int
    lag: int | None


def group_rows(
    groups: GroupCoordinator,
    replicas: ReplicaManager,
    *,
    shown_max: int,
    left_out: Counter[str],
) -> Iterator[Step]:
    """Yields the families of groups; rows above `shown_max` are counted in `left_out`."""
    found = groups.statistics()
    prefix = "kafka_coordinator_group_groupmetadatamanager_"
    yield row_of(
        f"{prefix}numgroups",
        [Sample(count, (str(state),)) for state, count in found.groups_by_state.items()],
    )
    yield single(f"{prefix}numoffsets", found.offset_count)
    try:
        known = sorted(groups.groups(), key=lambda group: group.group_id)
    except CoordinatorFault:
        return  # Groups are still loading; the loaded ones would be half of them.
    left_out["groups"] = max(0, len(known) - shown_max)
    shown = known[:shown_max]
    yield row_of(
        "kafka_consumergroup_members",
        (Sample(group.member_count, (group.group_id,)) for group in shown),
    )
    offsets: list[_Committed] = []
    for number, offset in enumerate(
        _committed(groups, replicas, shown, shown_max=shown_max, left_out=left_out)
    ):
        offsets.append(offset)
        if number % LOOKED_UP_PER_STEP == 0:
            yield None
    yield row_of(
        "kafka_consumergroup_current_offset",
        (Sample(offset.committed, offset.place) for offset in offsets),
    )
    yield row_of(
        "kafka_consumergroup_lag",
        (Sample(o.lag, o.place) for o in offsets if o.lag is not None),
    )


def _committed(
    coordinator: GroupCoordinator,
    replicas: ReplicaManager,
    groups: Sequence[Group | ConsumerGroup],
    *,
    shown_max: int,
    left_out: Counter[str],
) -> Iterator[_Committed]:
    left = shown_max
    for group in groups:
        try:
            offsets = coordinator.offsets_of(group.group_id)
        except CoordinatorFault:
            continue
        for topic, partition, committed in offsets or ():
            if left <= 0:
                left_out["offsets"] += 1
                continue
            left -= 1
            served = replicas.partition(topic, partition)
            yield _Committed(
                place=(group.group_id, topic, str(partition)),
                committed=committed.offset,
                lag=None if served is None else max(0, served.high_watermark - committed.offset),
            )
