"""Somebody deletes objects that belong to no topic: cluster.json, the metadata, groups' offsets.

The broker has all of it on its disk: it notices, says so, and writes it again, while it runs and
when it starts. A restore tells what is gone before it writes anything, and does what can be done.
"""

from __future__ import annotations

import pytest

from strandline.broker.cli import main
from strandline.storage.remote.keys import CHANGES_KEY, CLUSTER_KEY
from strandline.storage.remote.manifest.cluster_info import load_cluster_info
from tests.support.broker import eventually
from tests.support.heavy import heavy
from tests.support.metrics import METRICS_ON, metric, metrics_port
from tests.support.wire import WireClient
from tests.system.group_calls import commit, committed
from tests.system.tiers.conftest import MakeBroker
from tests.system.tiers.log_client import EARLIEST, LATEST, make_batches
from tests.system.tiers.restoring import mirrors_topic, run_restore
from tests.system.tiers.tiered_broker import SEGMENT_BYTES, TIERED, WAIT_S, Archive, TieredBroker

pytestmark = [pytest.mark.slow, pytest.mark.s3]

TOPIC, LATER, GROUP = "deleted", "later", "readers"
BATCHES = make_batches(size_bytes=5 * SEGMENT_BYTES // 2)
SETTINGS = {
    **METRICS_ON,
    "strandline.remote.groups.upload.ms": "100",
    "strandline.remote.check.interval.ms": "100",
    "offsets.topic.num.partitions": "1",
}
# Longer than a test lasts: what is found is found by a change or by a start.
NEVER = {**SETTINGS, "strandline.remote.check.interval.ms": "86400000"}
DELETED = "strandline_remote_deleted_objects_total"


def fill(broker: TieredBroker, archive: Archive) -> int:
    """Archived segments, and a group that stands in their middle; where they end."""
    with broker.client(TOPIC) as client, WireClient(broker.port) as groups:
        client.create_topic(TIERED)
        client.produce(BATCHES)
        border = broker.wait_until_archived(client)
        assert commit(groups, GROUP, {(TOPIC, 0): border // 2}) == [0]
    eventually(lambda: knows_groups(archive), timeout_s=WAIT_S)
    eventually(lambda: mirrors_topic(archive, TOPIC), timeout_s=WAIT_S)
    return border


def knows_groups(archive: Archive) -> bool:
    return any(TOPIC.encode() in archive.store.get(key) for key in archive.below("groups/"))


def verified(archive: Archive, *options: str) -> int:
    bucket = archive.bucket
    where = ["--remote", bucket.url, "--endpoint-url", bucket.endpoint_url]
    return main(["archive", "verify", *where, *options])


def check_restores(make_broker: MakeBroker, border: int) -> None:
    """A machine that has the bucket alone has topic and group."""
    restored = make_broker(name="restored", settings=SETTINGS)
    outcome = run_restore(restored)
    assert outcome.returncode == 0, outcome.stderr
    restored.start()
    with restored.client(TOPIC) as client, WireClient(restored.port) as groups:
        assert (client.offset_at(EARLIEST), client.offset_at(LATEST)) == (0, border)
        assert committed(groups, GROUP, TOPIC) == border // 2


@pytest.mark.heavy
def test_what_is_deleted_beside_the_topics_is_told_and_written_again_by_a_running_broker(
    make_broker: MakeBroker, archive: Archive, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = make_broker(settings=SETTINGS)
    broker.start()
    border = fill(broker, archive)
    gone = [CLUSTER_KEY, *archive.below("metadata/"), *archive.below("groups/")]
    owner = load_cluster_info(archive.store)
    archive.store.delete([*gone, CHANGES_KEY])
    for kind in ("cluster", "metadata", "groups"):
        eventually(lambda kind=kind: metric(broker, DELETED, object=kind) > 0, timeout_s=WAIT_S)
    eventually(lambda: set(gone) <= set(archive.keys()), timeout_s=WAIT_S)
    assert load_cluster_info(archive.store) == owner
    assert metric(broker, "strandline_metadata_mirror_lag") == 0
    capsys.readouterr()
    assert main(["status", "--metrics", f"http://127.0.0.1:{metrics_port(broker)}"]) == 3
    assert "1 object of cluster" in capsys.readouterr().out
    for line in ("cluster.json was deleted", "metadata in the bucket were deleted"):
        assert line in broker.log_text()
    # Also the list for replicas, with the next change.
    with broker.client(LATER) as client:
        client.create_topic(TIERED)
    eventually(lambda: CHANGES_KEY in archive.below(""), timeout_s=WAIT_S)
    eventually(lambda: mirrors_topic(archive, LATER), timeout_s=WAIT_S)
    broker.kill()
    assert verified(archive) == 0
    check_restores(make_broker, border)


@pytest.mark.parametrize("how", [heavy("a change"), "a kill and a start"])
def test_metadata_that_were_deleted_leave_no_gap_that_stays(
    make_broker: MakeBroker, archive: Archive, how: str
) -> None:
    broker = make_broker(settings=NEVER)
    broker.start()
    border = fill(broker, archive)
    archive.store.delete(archive.below("metadata/"))
    if how == "a kill and a start":
        broker.kill()
        assert verified(archive) == 3
        broker.start()
    with broker.client(LATER) as client:
        client.create_topic(TIERED)
    eventually(lambda: mirrors_topic(archive, LATER), timeout_s=WAIT_S)
    eventually(lambda: metric(broker, "strandline_metadata_mirror_lag") == 0, timeout_s=WAIT_S)
    broker.kill()
    assert verified(archive) == 0
    check_restores(make_broker, border)


@pytest.mark.heavy
def test_a_gap_that_an_earlier_release_left_is_mended_by_a_start(
    make_broker: MakeBroker, archive: Archive
) -> None:
    broker = make_broker(settings=NEVER)
    broker.start()
    border = fill(broker, archive)
    broker.kill()
    first, *_ = archive.below("metadata/log/")
    archive.store.delete([first])
    refused = run_restore(make_broker(name="refused", settings=NEVER))
    assert refused.returncode == 1
    assert first in refused.stderr
    broker.start()
    eventually(lambda: first in archive.below("metadata/"), timeout_s=WAIT_S)
    eventually(lambda: metric(broker, "strandline_metadata_mirror_lag") == 0, timeout_s=WAIT_S)
    broker.kill()
    check_restores(make_broker, border)


def test_without_disk_and_metadata_a_restore_says_what_is_lost_and_has_the_topics(
    make_broker: MakeBroker, archive: Archive, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = make_broker(settings=NEVER)
    broker.start()
    border = fill(broker, archive)
    broker.kill()
    archive.store.delete(archive.below("metadata/"))
    for options in ((), ("--quick",), ("--deep",)):
        capsys.readouterr()
        assert verified(archive, *options) == 3
        assert "metadata/ holds no metadata" in capsys.readouterr().err
    restored = make_broker(name="restored", settings=NEVER)
    refused = run_restore(restored)
    assert refused.returncode == 1
    assert not restored.data.exists()
    outcome = run_restore(restored, "--skip-damaged")
    assert outcome.returncode == 1
    assert "metadata/ holds no metadata" in outcome.stderr
    assert "groups/" in outcome.stderr
    restored.start()
    with restored.client(TOPIC) as client:
        assert (client.offset_at(EARLIEST), client.offset_at(LATEST)) == (0, border)
    eventually(lambda: metric(restored, "strandline_metadata_mirror_lag") == 0, timeout_s=WAIT_S)
    assert metric(restored, "strandline_remote_archive_owned") == 1
    restored.kill()
    assert verified(archive) == 0


@pytest.mark.heavy
def test_without_disk_and_cluster_json_the_archive_is_restored_by_its_metadata(
    make_broker: MakeBroker, archive: Archive
) -> None:
    broker = make_broker(settings=NEVER)
    broker.start()
    border = fill(broker, archive)
    broker.kill()
    owner = load_cluster_info(archive.store)
    archive.store.delete([CLUSTER_KEY])
    # A start on new folders must not make it another cluster's.
    stranger = make_broker(name="stranger", settings=NEVER)
    with pytest.raises(AssertionError):
        stranger.start()
    assert "belongs to cluster" in stranger.log_text()
    assert verified(archive) == 3
    restored = make_broker(name="restored", settings=NEVER)
    assert run_restore(restored).returncode == 1
    assert run_restore(restored, "--skip-damaged").returncode == 1
    restored.start()
    with restored.client(TOPIC) as client, WireClient(restored.port) as groups:
        assert client.offset_at(LATEST) == border
        assert committed(groups, GROUP, TOPIC) == border // 2
    assert load_cluster_info(archive.store) == owner
