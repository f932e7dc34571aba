"""The metadata log loses nothing, mixes nothing, and says so when it cannot go on."""

from __future__ import annotations

import logging
import uuid
from pathlib import Path

import pytest

from strandline.broker.cluster.metadata import log_format
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.metadata_log import (
    MetadataLog,
    MetadataRaced,
)
from strandline.broker.protocol.formats.metadata_records import RemoveTopicRecord
from strandline.storage.errors import (
    CorruptFile,
    TierUnavailable,
)
from strandline.storage.remote.keys import metadata_log_key, metadata_snapshot_key
from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.remote.open_store import open_store
from tests.support.memory_store import Fault, MemoryStore, Timing
from tests.unit.broker.cluster.metadata_rig import (
    CLUSTER,
    created,
    fill,
    history,
    keys_in,
    opened,
    producer_ids,
)

# --- appending and loading ---------------------------------------------------------------------


def test_an_empty_log_begins_with_its_cluster(store: ObjectStore) -> None:
    image = opened(store).image
    assert (image.version, image.cluster_id) == (1, CLUSTER)


def test_what_was_appended_is_there_after_a_restart(store: ObjectStore) -> None:
    metadata = opened(store)
    for records in history():
        before = metadata.image
        _, after = metadata.append(records)
        assert after is metadata.image
        assert after == before.apply_entry(records)
        assert opened(store).image == after


# --- failures while appending ------------------------------------------------------------------


def test_a_failed_write_changes_nothing_and_the_next_append_goes_on() -> None:
    store = MemoryStore()
    metadata = opened(store)
    before = metadata.image
    store.add_fault(Fault(operation="put", error=TierUnavailable))
    with pytest.raises(TierUnavailable):
        metadata.append(created(0))
    assert metadata.image == before
    fill(metadata, 1)
    assert opened(store).image == metadata.image


def test_an_append_whose_answer_was_lost_is_found_by_the_next_one() -> None:
    store = MemoryStore()
    metadata = opened(store)
    store.add_fault(Fault(operation="put", error=TierUnavailable, moment=Timing.AFTER))
    with pytest.raises(TierUnavailable):
        metadata.append(created(0))
    # Decided again on the old image, the same topic would exist twice.
    with pytest.raises(MetadataRaced):
        metadata.append(created(0))
    assert "t0" in metadata.image.topics
    fill(metadata, 1, first=1)
    assert sorted(opened(store).image.topics) == ["t0", "t1"]


def test_refreshing_settles_an_open_outcome() -> None:
    store = MemoryStore()
    metadata = opened(store)
    store.add_fault(Fault(operation="put", error=TierUnavailable, moment=Timing.AFTER))
    with pytest.raises(TierUnavailable):
        metadata.append(created(0))
    assert "t0" not in metadata.image.topics
    assert "t0" in metadata.refresh().topics


def test_of_two_brokers_one_wins_and_the_other_learns_what_was_written(store: ObjectStore) -> None:
    one, two = opened(store), opened(store)
    one.append(producer_ids(1000))
    with pytest.raises(MetadataRaced, match="entry 2 was written by another broker"):
        two.append(producer_ids(1000))
    assert two.image == one.image
    two.append(producer_ids(2000))
    with pytest.raises(MetadataRaced):
        one.append(created(0))
    assert one.image.next_producer_id == 2000


def test_two_brokers_that_form_one_cluster_at_once_agree() -> None:
    store, late = MemoryStore(), MemoryStore()
    opened(store)
    # The loser has seen an empty log; the winner's first entry comes in between.
    loser = MetadataLog(late, cluster_id=CLUSTER)
    original_put = late.put

    def put_late(*args: object, **kwargs: object) -> object:
        late.put = original_put  # type: ignore[method-assign]
        original_put(metadata_log_key(1), store.get(metadata_log_key(1)))
        return original_put(*args, **kwargs)  # type: ignore[arg-type]

    late.put = put_late  # type: ignore[method-assign, assignment]
    assert loser.load().version == 1


def test_a_snapshot_that_cannot_be_written_delays_nothing_but_the_next_load(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore()
    metadata = opened(store)
    store.add_fault(Fault(operation="put", key_pattern="snapshot", error=TierUnavailable, times=2))
    with caplog.at_level(logging.WARNING):
        image = fill(metadata, 4)
    assert "metadata snapshot not written" in caplog.text
    assert metadata.statistics().snapshot_version == 0
    assert opened(store).image == image
    fill(metadata, 2, first=10)
    assert metadata.statistics().snapshot_version > 0


def test_a_snapshot_waits_for_as_many_bytes_of_entries_but_not_for_ever() -> None:
    """What a snapshot costs grows with the image, and an entry would pay for its share."""
    store = MemoryStore()
    fill(opened(store, intervals_max=3), 40)
    metadata = opened(store, intervals_max=3)
    noted = metadata.statistics().snapshot_version
    assert noted > 20
    # These are small, beside what was made before.
    versions = set()
    for number in range(24):
        metadata.append(producer_ids(1000 * (number + 1)))
        versions.add(metadata.statistics().snapshot_version)
    assert sorted(versions) == [noted, noted + 12, noted + 24][: len(versions)]
    assert len(versions) > 1
    assert opened(store).image == metadata.image


def test_a_snapshot_is_encoded_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_format, "RECORDS_PER_BATCH", 7)
    image = fill(opened(MemoryStore()), 10)
    pauses: list[int] = []
    content = log_format.encode_snapshot(
        image, head_checksum="0", pause=lambda: pauses.append(len(pauses))
    )
    assert len(pauses) == (len(list(log_format.image_records(image))) - 1) // 7
    key = metadata_snapshot_key(image.version)
    assert log_format.decode_snapshot(content, key=key, index=image.version).image == image


def test_records_that_do_not_fit_never_reach_the_store() -> None:
    store = MemoryStore()
    metadata = opened(store)
    before = keys_in(store)
    with pytest.raises(CorruptFile):
        metadata.append([RemoveTopicRecord(topic_id=uuid.UUID(int=1))])
    assert keys_in(store) == before


# --- crashes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", list(Timing))
def test_a_crash_at_any_step_loses_no_acknowledged_entry(moment: Timing) -> None:
    """Every write of a long history fails once; whoever comes after finds a whole log."""
    clean = MemoryStore()
    metadata = opened(clean)
    for records in history():
        metadata.append(records)
    step_count = clean.count_requests("put|delete")
    assert step_count > 15
    for step in range(step_count):
        store = MemoryStore()
        store.add_fault(
            Fault(operation="put|delete", error=TierUnavailable, moment=moment, skip=step)
        )
        acknowledged = MetadataImage()
        attempted = acknowledged
        try:
            metadata = MetadataLog(store, cluster_id=CLUSTER, snapshot_interval=4, intervals_max=1)
            acknowledged = attempted = metadata.load()
            for records in history():
                attempted = acknowledged.apply_entry(records)
                _, acknowledged = metadata.append(records)
        except TierUnavailable:
            pass  # The process is gone; only the store remains.
        survivor = opened(store)
        if acknowledged.version:
            assert survivor.image in (acknowledged, attempted), step
        survivor.append(producer_ids(10**6))
        assert opened(store).image == survivor.image


def test_a_folder_cut_off_while_writing_still_loads(tmp_path: Path) -> None:
    """A temporary file of a dead process is no entry."""
    (tmp_path / "s").mkdir()
    store = open_store(f"file://{tmp_path / 's'}")
    image = fill(opened(store), 3)
    folder = next(path.parent for path in (tmp_path / "s").rglob("*.json"))
    (folder / "00000000000000000005.json.123.tmp").write_bytes(b'{"format"')
    assert opened(store).image == image
