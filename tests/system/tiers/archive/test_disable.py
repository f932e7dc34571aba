"""Tiering is turned off with its archive, and on again, while clients go on (KIP-950)."""

from __future__ import annotations

import pytest

from tests.support.broker import eventually
from tests.system.tiers.conftest import MakeBroker
from tests.system.tiers.log_client import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    end_of,
    make_batches,
    with_epoch,
)
from tests.system.tiers.replicas import start_replica
from tests.system.tiers.restoring import mirrors_topic
from tests.system.tiers.tiered_broker import (
    FREE_LOCALLY,
    SEGMENT_BYTES,
    TIERED,
    WAIT_S,
    Archive,
)

pytestmark = [pytest.mark.slow, pytest.mark.s3]

TOPIC = "disabled"
OFFSET_OUT_OF_RANGE = 1
SET = 0
BEFORE = make_batches(size_bytes=5 * SEGMENT_BYTES // 2)
ON = {"remote.storage.enable": "true", "local.retention.bytes": "1"}
OFF = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}


def data_keys(archive: Archive) -> list[str]:
    return archive.below("topics/")


def test_turned_off_tiering_takes_its_archive_along_and_can_be_turned_on_again(
    make_broker: MakeBroker, archive: Archive
) -> None:
    broker = make_broker()
    broker.start()
    with broker.client(TOPIC) as client:
        client.create_topic({**TIERED, **FREE_LOCALLY})
        client.produce(BEFORE)
        broker.wait_until_archived(client)
        border = broker.wait_until_freed(client)
        assert broker.alter_topic(TOPIC, OFF) == 0
        # The log begins on the disk now, durably, and what lay before it is gone.
        assert client.offset_at(EARLIEST) == client.offset_at(EARLIEST_LOCAL) == border
        assert client.offset_at(LATEST_TIERED) == client.offset_at(EARLIEST_PENDING_UPLOAD) == -1
        assert client.fetch(border - 1).error_code == OFFSET_OUT_OF_RANGE
        kept = [batch for batch in BEFORE if end_of([batch]) > border]
        assert client.read(border, end_of(BEFORE)) == kept
        eventually(lambda: data_keys(archive) == [], timeout_s=WAIT_S)
        assert broker.alter_topic(TOPIC, ON) == 0
        more = make_batches(base_offset=end_of(BEFORE), size_bytes=2 * SEGMENT_BYTES)
        client.produce(more)
        broker.wait_until_archived(client)
        broker.wait_until_freed(client)
        assert archive.segments(TOPIC)[0].base_offset == border
        assert client.read(border, end_of(more)) == kept + more
    archive.wait_until_tidy()


@pytest.mark.heavy
def test_a_crash_after_tiering_was_turned_off_leaves_nothing_in_the_bucket(
    make_broker: MakeBroker, archive: Archive
) -> None:
    # The grace time keeps the purge from being done before the crash.
    broker = make_broker(settings={"strandline.remote.delete.grace.ms": "3600000"})
    broker.start()
    with broker.client(TOPIC) as client:
        client.create_topic({**TIERED, **FREE_LOCALLY})
        client.produce(BEFORE)
        broker.wait_until_archived(client)
        border = broker.wait_until_freed(client)
        assert broker.alter_topic(TOPIC, OFF) == 0
    assert data_keys(archive) != []
    broker.kill()
    # Turned on again by another start, before the purge has ended: it waits for that.
    broker.start()
    assert broker.alter_topic(TOPIC, ON) == 0
    broker.kill()
    # So long that what the killed ones may have sent comes: it waits for twice that, too.
    broker.settings["strandline.remote.copy.timeout.ms"] = "5000"
    broker.settings["strandline.remote.delete.grace.ms"] = "0"
    broker.start()
    with broker.client(TOPIC) as client:
        assert client.offset_at(EARLIEST) == border
        kept = [batch for batch in BEFORE if end_of([batch]) > border]
        assert client.read(border, end_of(BEFORE)) == kept
        more = [
            with_epoch(batch, 2)
            for batch in make_batches(base_offset=end_of(BEFORE), size_bytes=2 * SEGMENT_BYTES)
        ]
        client.produce(more)
        eventually(
            lambda: [e.base_offset for e in archive.segments(TOPIC)][:1] == [border],
            timeout_s=WAIT_S,
        )
        broker.wait_until_archived(client)
        assert client.read(border, end_of(more)) == kept + more
    archive.wait_until_tidy()


def test_a_replica_that_did_not_look_while_tiering_was_turned_off_and_on_follows_again(
    make_broker: MakeBroker, archive: Archive
) -> None:
    """It takes the manifest that was begun anew for the later one, though its revision is lower."""
    broker = make_broker(name="origin")
    broker.start()
    # Of more segments than come later.
    before = make_batches(size_bytes=11 * SEGMENT_BYTES // 2)
    with broker.client(TOPIC) as client:
        client.create_topic({**TIERED, **FREE_LOCALLY})
        client.produce(before)
        broker.wait_until_archived(client)
        border = broker.wait_until_freed(client)
        eventually(lambda: mirrors_topic(archive, TOPIC), timeout_s=WAIT_S)
        # By itself it looks once an hour; else when what it looks for is not there.
        replica = start_replica(make_broker, {"strandline.remote.replica.poll.ms": "3600000"})
        assert broker.alter_topic(TOPIC, OFF) == 0
        eventually(lambda: data_keys(archive) == [], timeout_s=WAIT_S)
        assert broker.alter_topic(TOPIC, ON) == 0
        more = make_batches(base_offset=end_of(before), size_bytes=SEGMENT_BYTES)
        client.produce(more)
        new_border = broker.wait_until_archived(client)
        with replica.client(TOPIC) as reader:
            assert reader.offset_at(LATEST) == border
            eventually(lambda: reader.fetch(0).error_code == OFFSET_OUT_OF_RANGE, timeout_s=WAIT_S)
            assert (reader.offset_at(EARLIEST), reader.offset_at(LATEST)) == (border, new_border)
            wanted = [batch for batch in before + more if border < end_of([batch]) <= new_border]
            assert reader.read(border, new_border) == wanted


def test_a_broker_without_its_remote_tier_says_which_topics_miss_it(
    make_broker: MakeBroker,
) -> None:
    broker = make_broker()
    broker.start()
    with broker.client(TOPIC) as client:
        client.create_topic(TIERED)
    broker.stop()
    broker.settings = {k: v for k, v in broker.settings.items() if "remote" not in k}
    broker.start()
    assert broker.warnings("there is no remote tier")
