"""A machine comes back with an older image of its disk while its store is away.

Its broker serves and takes records, as after every start without the store. Other records have
their offsets in the archive already: when the store is back, they get new ones behind it.
"""

from __future__ import annotations

import os
import shutil
import signal

import pytest

from strandline.storage.crash_points import GIVE_BACK_AFTER_PIECE
from strandline.storage.records.batch.batch import CRC_START
from tests.support.broker import eventually
from tests.support.fault_proxy import FaultProxy
from tests.support.heavy import heavy
from tests.system.crash.dead_brokers import wait_for_death
from tests.system.tiers.conftest import MakeBroker
from tests.system.tiers.log_client import LATEST, end_of, make_batches
from tests.system.tiers.tiered_broker import (
    ARCHIVE_ALL,
    FREE_LOCALLY,
    SEGMENT_BYTES,
    TIERED,
    WAIT_S,
    Archive,
)

pytestmark = [pytest.mark.slow, pytest.mark.s3, pytest.mark.crash]

TOPIC = "imaged"
FIRST = make_batches(size_bytes=SEGMENT_BYTES // 2)
LATER = make_batches(base_offset=end_of(FIRST), size_bytes=3 * SEGMENT_BYTES, seed=1)


@pytest.mark.parametrize(
    ("own_bytes", "dies_at"),
    [
        (SEGMENT_BYTES // 2, ""),
        heavy(5 * SEGMENT_BYTES, ""),
        (5 * SEGMENT_BYTES, GIVE_BACK_AFTER_PIECE),
    ],
)
@pytest.mark.heavy
def test_what_an_older_image_acknowledged_without_its_store_is_not_lost(
    make_broker: MakeBroker,
    archive: Archive,
    fault_proxy: FaultProxy,
    own_bytes: int,
    dies_at: str,
) -> None:
    own = make_batches(base_offset=end_of(FIRST), size_bytes=own_bytes, leader_epoch=1, seed=2)
    broker = make_broker(endpoint_url=fault_proxy.endpoint_url)
    image = broker.folder.with_name("image")
    broker.start()
    with broker.client(TOPIC) as client:
        client.create_topic({**TIERED, **FREE_LOCALLY, **ARCHIVE_ALL})
        client.produce(FIRST)
        os.kill(broker.pid, signal.SIGSTOP)
        shutil.copytree(broker.data, image)
        os.kill(broker.pid, signal.SIGCONT)
        client.produce(LATER)
        broker.wait_until_all_cold(client)
    broker.kill()
    shutil.rmtree(broker.data)
    image.rename(broker.data)

    fault_proxy.go_away()
    if dies_at:
        broker.start_to_crash_at(dies_at)
    else:
        broker.start()
    with broker.client(TOPIC) as client:
        client.produce(own)
    fault_proxy.come_back()
    if dies_at:
        wait_for_death(broker)
        broker.start()
    behind = end_of(LATER)
    end = behind + end_of(own) - end_of(FIRST)
    eventually(lambda: broker.warnings("have their new offsets"), timeout_s=WAIT_S)
    with broker.client(TOPIC) as client:
        assert client.offset_at(LATEST) == end
        assert client.read(0, behind) == FIRST + LATER
        given_back = client.read(behind, end)
        # All but offset and epoch, which no checksum covers, is as it was sent.
        assert [batch[CRC_START:] for batch in given_back] == [batch[CRC_START:] for batch in own]
        broker.wait_until_all_cold(client)
        assert client.read(behind, end) == given_back
    assert archive.findings() == []
