"""Which replicas a throttle covers, and when its rate is exceeded (Kafka's
ReplicationQuotaManagerTest).
"""

from __future__ import annotations

import pytest

from strandline.broker.cluster.in_sync.throttle import FOLLOWERS, LEADERS, ReplicationThrottle
from strandline.broker.cluster.metadata.image import MetadataDelta, MetadataImage
from strandline.storage.model import TopicPartition
from tests.support.manual_clock import ManualClock
from tests.unit.broker.cluster.controlled import with_topic
from tests.unit.broker.cluster.throttled import throttle_of

NOTHING = MetadataImage()


def covered(throttle: ReplicationThrottle, topic: str = "a") -> list[int]:
    return [index for index in range(5) if throttle.covers(TopicPartition(topic, index))]


def follow(throttle: ReplicationThrottle, before: MetadataImage, after: MetadataImage) -> None:
    throttle.follow(MetadataDelta(before, after), after)


@pytest.mark.parametrize("side", [LEADERS, FOLLOWERS])
def test_it_covers_the_replicas_of_this_broker_that_the_topic_names(side: str) -> None:
    throttle = throttle_of(side, node_id=2)
    assert covered(throttle) == []
    named = with_topic(**{side: "1:2,2:2, 3:1,4:12"})
    follow(throttle, NOTHING, named)
    assert covered(throttle) == [1, 2]
    assert covered(throttle, "another") == []
    every = with_topic(**{side: "*"})
    follow(throttle, named, every)
    assert covered(throttle) == [0, 1, 2, 3, 4]
    # Without any here nothing is counted.
    for none in (with_topic(**{side: "0:1"}), with_topic(**{side: ""}), with_topic(), NOTHING):
        follow(throttle, every, none)
        assert (covered(throttle), throttle.topics) == ([], {})
        follow(throttle, none, every)
        assert covered(throttle)


def test_a_text_that_nobody_would_store_today_covers_nothing() -> None:
    throttle = throttle_of(LEADERS, node_id=2)
    follow(throttle, NOTHING, with_topic(**{LEADERS: "all,x:2,:2,1:2:2"}))
    assert throttle.topics == {}


def test_the_rate_is_exceeded_and_falls_below_its_bound_as_time_passes() -> None:
    clock = ManualClock()
    throttle = throttle_of(LEADERS, lambda: 100, clock, window_count=10)
    assert not throttle.is_exceeded
    throttle.record(0)
    # At half of the second window: Kafka's first one is taken for a whole one.
    clock.advance_ms(1500)
    throttle.record(1)
    assert not throttle.is_exceeded
    throttle.record(149)
    assert not throttle.is_exceeded
    throttle.record(1)
    assert throttle.byte_rate == pytest.approx(151 / 1.5)
    assert throttle.is_exceeded
    clock.advance_ms(500)
    assert throttle.byte_rate == pytest.approx(151 / 2)
    assert not throttle.is_exceeded
    clock.advance_ms(500)
    throttle.record(99)
    assert throttle.byte_rate == pytest.approx(250 / 2.5)
    assert not throttle.is_exceeded
    throttle.record(1)
    assert throttle.is_exceeded
    clock.advance_ms(2000)
    assert throttle.byte_rate == pytest.approx(251 / 4.5)
    assert not throttle.is_exceeded


def test_an_altered_rate_holds_at_once() -> None:
    bound = 100
    throttle = throttle_of(LEADERS, lambda: bound, ManualClock())
    throttle.record(1000)
    assert throttle.is_exceeded
    bound = 1000
    assert not throttle.is_exceeded
