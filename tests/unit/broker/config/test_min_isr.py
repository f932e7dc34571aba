"""One value of min.insync.replicas for leaders and the controller (KIP-966)."""

from __future__ import annotations

import uuid

import pytest

from strandline.broker.cluster.metadata.controller_messages import Refusal
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.records import topic_records
from strandline.broker.config.min_isr import MIN_ISR, begin_elr, check_min_isr, clear_elr
from strandline.broker.protocol.formats.metadata_records import (
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
)
from strandline.broker.protocol.schema.config_resources import ConfigResourceType

EMPTY = MetadataImage()
ON = EMPTY.apply_entry(
    [FeatureLevelRecord(name="eligible.leader.replicas.version", feature_level=1)]
)


def of_broker(name: str, value: str | None, key: str = MIN_ISR) -> ConfigRecord:
    return ConfigRecord(
        resource_type=ConfigResourceType.BROKER, resource_name=name, name=key, value=value
    )


def of_topic(name: str, value: str | None) -> ConfigRecord:
    return of_broker(name, value).replaced(resource_type=ConfigResourceType.TOPIC)


def test_it_begins_with_one_value_for_all_brokers() -> None:
    image = EMPTY.apply_entry([of_broker("1", "3"), of_broker("2", "9", "num.io.threads")])
    begun = image.apply_entry(begin_elr(image, "2"))
    assert begun.finalized_level("eligible.leader.replicas.version") == 1
    assert begun.broker_properties[None] == {MIN_ISR: "2"}
    assert 1 not in begun.broker_properties
    assert begun.broker_properties[2] == {"num.io.threads": "9"}
    assert begin_elr(begun, "5") == ()


def test_a_value_that_all_brokers_have_already_stays() -> None:
    image = EMPTY.apply_entry([of_broker("", "3")])
    begun = image.apply_entry(begin_elr(image, "2"))
    assert begun.broker_properties[None] == {MIN_ISR: "3"}


def test_a_single_broker_gets_no_value_and_all_lose_theirs_never() -> None:
    check_min_isr(ON, None, {MIN_ISR: "1"}, {MIN_ISR: "2"})
    check_min_isr(ON, 1, {}, {"num.io.threads": "9"})
    with pytest.raises(Refusal, match=r"Broker-level min.insync.replicas cannot be altered"):
        check_min_isr(ON, 1, {}, {MIN_ISR: "2"})
    with pytest.raises(Refusal, match=r"Cluster-level min.insync.replicas cannot be removed"):
        check_min_isr(ON, None, {MIN_ISR: "2"}, {})
    check_min_isr(EMPTY, 1, {}, {MIN_ISR: "2"})
    check_min_isr(EMPTY, None, {MIN_ISR: "2"}, {})


@pytest.mark.parametrize(
    ("change", "left"),
    [
        (of_topic("t", "2"), {"t": (), "u": (2,)}),
        (of_topic("t", None), {"t": (), "u": (2,)}),
        (of_broker("", "2"), {"t": (), "u": ()}),
        (of_broker("", "2", "num.io.threads"), {"t": (2,), "u": (2,)}),
    ],
)
def test_nobody_stays_eligible_by_a_value_that_changed(
    change: ConfigRecord, left: dict[str, tuple[int, ...]]
) -> None:
    image = ON
    for number, name in enumerate("tu", 1):
        topic_id = uuid.UUID(int=number)
        records: list[MetadataRecord] = topic_records(name, topic_id, ((1, 2),), {MIN_ISR: "9"})
        records.append(
            PartitionChangeRecord(
                partition_id=0,
                topic_id=topic_id,
                isr=[1],
                eligible_leader_replicas=[2],
                last_known_elr=[1],
            )
        )
        image = image.apply_entry(records)
    after = image.apply_entry([change, *clear_elr(image, [change])])
    partitions = {name: topic.partitions[0] for name, topic in after.topics.items()}
    assert {name: one.eligible_leader_replicas for name, one in partitions.items()} == left
    assert {name: one.last_known_elr for name, one in partitions.items()} == {
        name: (1,) if nodes else () for name, nodes in left.items()
    }
    assert all(one.isr == (1,) for one in partitions.values())


@pytest.mark.parametrize("change", [of_topic("t", "1"), of_broker("", "3")])
def test_where_nobody_is_in_sync_who_may_lead_stays_so(change: ConfigRecord) -> None:
    """Nothing is acknowledged without a leader; and nobody else would ever lead."""
    topic_id = uuid.UUID(int=1)
    image = ON.apply_entry(topic_records("t", topic_id, ((1, 2), (2, 1), (1, 2)), {}))

    def became(number: int, **what: object) -> PartitionChangeRecord:
        return PartitionChangeRecord(partition_id=number, topic_id=topic_id, **what)  # type: ignore[arg-type]

    image = image.apply_entry(
        [
            became(0, leader=-1, isr=[], eligible_leader_replicas=[2]),
            became(1, leader=-1, isr=[], last_known_elr=[1]),
            became(2, isr=[1], eligible_leader_replicas=[2]),
        ]
    )
    after = image.apply_entry([change, *clear_elr(image, [change])])
    found = [
        (one.eligible_leader_replicas, one.last_known_elr) for one in after.topics["t"].partitions
    ]
    assert found == [((2,), ()), ((), (1,)), ((), ())]


def test_a_cluster_without_eligible_replicas_clears_nothing() -> None:
    assert clear_elr(EMPTY, [of_topic("t", "2")]) == ()
