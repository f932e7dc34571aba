"""What a stop tells the bucket, and that it neither waits for that nor depends on it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from strandline.broker.coordination.archive.state_archive import read_group_state
from strandline.broker.protocol.formats.offsets_topic import decode_offset_commit
from strandline.storage.crash_points import (
    EXIT_STATUS_KILLED,
    STOP_AFTER_GROUPS,
    STOP_AFTER_MARK,
)
from strandline.storage.errors import ObjectNotFound
from strandline.storage.local.formats.checkpoint import CLEAN_SHUTDOWN
from strandline.storage.remote.manifest import change_list
from tests.support.broker import eventually
from tests.support.fault_proxy import Action, FaultProxy, Rule
from tests.support.wire import WireClient
from tests.system.group_calls import commit, wait_until_loaded
from tests.system.tiers.conftest import MakeBroker
from tests.system.tiers.log_client import LATEST, make_batches
from tests.system.tiers.tiered_broker import SEGMENT_BYTES, TIERED, WAIT_S, Archive, TieredBroker

pytestmark = [pytest.mark.slow, pytest.mark.s3, pytest.mark.crash]

TOPIC = "stopped"
# Nothing of this is told but at a start, and at a stop.
SETTINGS = {
    "strandline.remote.changes.interval.ms": "3600000",
    "strandline.remote.groups.upload.ms": "3600000",
    "offsets.topic.num.partitions": "1",
}


def incarnation(archive: Archive) -> str | None:
    """Which start wrote the list; None if none did."""
    try:
        return change_list.load(archive.store).changes.incarnation
    except ObjectNotFound:
        return None


def work(start: Callable[[], object], broker: TieredBroker, archive: Archive, piece: int) -> None:
    """A segment more is archived, and a group commits the number of the piece.

    The list that each start writes is there before.
    """
    earlier = incarnation(archive)
    start()
    eventually(lambda: incarnation(archive) != earlier, timeout_s=WAIT_S)
    with broker.client(TOPIC) as client:
        if not piece:
            client.create_topic(TIERED)
        begun = client.offset_at(LATEST)
        client.produce(make_batches(base_offset=begun, size_bytes=SEGMENT_BYTES * 9 // 8))
        broker.wait_until_archived(client)
    with WireClient(broker.port) as groups:
        eventually(lambda: commit(groups, "g", {(TOPIC, 0): piece}) == [0], timeout_s=WAIT_S)


def told_offsets(archive: Archive) -> list[int]:
    """What the bucket has of the groups."""
    found = read_group_state(archive.store, 0)
    return [] if found is None else [decode_offset_commit(one.value).offset for one in found]


def is_told(archive: Archive) -> bool:
    """Whether the list tells the newest manifest."""
    manifest = archive.manifest(TOPIC)
    assert manifest is not None
    told = change_list.load(archive.store).changes.changes
    return any(change.order == manifest.order for change in told)


def test_a_stop_tells_the_bucket_all_of_its_run_and_may_die_at_each_step(
    make_broker: MakeBroker, archive: Archive, fault_proxy: FaultProxy
) -> None:
    broker = make_broker(settings=SETTINGS, endpoint_url=fault_proxy.endpoint_url)
    mark = broker.data / CLEAN_SHUTDOWN
    for piece, (point, offsets) in enumerate(((STOP_AFTER_MARK, []), (STOP_AFTER_GROUPS, [1]))):
        work(partial(broker.start_to_crash_at, point), broker, archive, piece)
        assert broker.stop() == EXIT_STATUS_KILLED
        assert mark.exists(), "what is on the disk comes first"
        assert (told_offsets(archive), is_told(archive)) == (offsets, False), point
    work(broker.start, broker, archive, 2)
    assert broker.stop() == 0
    assert (told_offsets(archive), is_told(archive)) == ([2], True)
    # A store that takes nothing more holds up no stop, and what it was to know it is told later.
    work(broker.start, broker, archive, 3)
    rule = fault_proxy.add(Rule(action=Action.HANG, method="PUT", times=-1))
    assert broker.stop() == 0
    assert (rule.hit_count > 0, mark.exists()) == (True, True)
    assert broker.warnings("not all metadata was uploaded before the stop")
    assert (told_offsets(archive), is_told(archive)) == ([2], False)
    fault_proxy.clear()
    earlier = incarnation(archive)
    broker.start()
    # What a stop has to tell is what was loaded since the start, by who owns the archive.
    eventually(lambda: incarnation(archive) != earlier, timeout_s=WAIT_S)
    with WireClient(broker.port) as groups:
        wait_until_loaded(groups)
    assert broker.stop() == 0
    assert told_offsets(archive) == [3]
