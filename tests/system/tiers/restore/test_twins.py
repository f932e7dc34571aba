"""Two brokers with one identity on one bucket: a machine was cloned, or restored from an image.

Both take records under the same offsets. The bucket can have one history only: of the other broker
nothing is archived any more, and so nothing of it is freed.
"""

from __future__ import annotations

import shutil

import pytest

from tests.support.broker import eventually
from tests.support.heavy import heavy
from tests.system.tiers.conftest import MakeBroker
from tests.system.tiers.log_client import end_of, make_batches
from tests.system.tiers.tiered_broker import (
    ARCHIVE_ALL,
    FREE_LOCALLY,
    SEGMENT_BYTES,
    TIERED,
    WAIT_S,
    Archive,
    TieredBroker,
)

pytestmark = [pytest.mark.slow, pytest.mark.s3]

FIRST = make_batches(size_bytes=SEGMENT_BYTES // 2)
# What each of the two is sent while the other one is there; then the rest of its segments.
OURS, THEIRS = (
    make_batches(base_offset=end_of(FIRST), size_bytes=size_bytes, leader_epoch=1, seed=seed)
    for seed, size_bytes in ((1, 3 * SEGMENT_BYTES), (2, 4 * SEGMENT_BYTES))
)
FEW = 4


@pytest.mark.parametrize("restarts", [False, heavy(True)])
def test_of_two_brokers_with_one_identity_one_archives_and_neither_loses_a_record(
    make_broker: MakeBroker, archive: Archive, restarts: bool
) -> None:
    one, twin = make_broker(name="one"), make_broker(name="twin")
    one.start()
    with one.client("cloned") as client:
        client.create_topic({**TIERED, **FREE_LOCALLY})
        client.produce(FIRST)
    one.stop()
    shutil.copytree(one.data, twin.data)
    one.start()
    with one.client("cloned") as client:
        client.produce(OURS[:FEW])
    twin.start()
    with twin.client("cloned") as client:
        client.produce(THEIRS)
    eventually(lambda: twin.warnings("another broker's"), timeout_s=WAIT_S)
    with one.client("cloned") as client:
        client.produce(OURS[FEW:])
        one.wait_until_archived(client)
        one.wait_until_freed(client)
    if restarts:
        twin.stop()
        twin.start()
        eventually(lambda: len(twin.warnings("another broker's")) >= 2, timeout_s=WAIT_S)
    assert_has(one, OURS)
    assert_has(twin, THEIRS)
    assert archive.findings() == []


def assert_has(broker: TieredBroker, batches: list[bytes]) -> None:
    with broker.client("cloned") as client:
        assert client.read(0, end_of(batches)) == FIRST + batches


def test_an_idle_topic_takes_records_as_soon_as_the_broker_is_ready_again(
    make_broker: MakeBroker, archive: Archive
) -> None:
    """All of it lies in the archive, so the start finds out whose that is before it is ready."""
    broker = make_broker()
    broker.start()
    with broker.client("idle") as client:
        client.create_topic({**TIERED, **FREE_LOCALLY, **ARCHIVE_ALL})
        client.produce(FIRST)
        broker.wait_until_all_cold(client)
    broker.kill()
    broker.start()
    with broker.client("idle") as client:
        client.produce(make_batches(base_offset=end_of(FIRST), size_bytes=1, leader_epoch=1))
    assert archive.end_offset("idle") >= end_of(FIRST)
