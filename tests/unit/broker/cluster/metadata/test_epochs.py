"""The epoch of the controller that wrote an entry, where a process of its own did."""

from __future__ import annotations

import json

import pytest

from strandline.broker.cluster.metadata.image import MetadataDelta, MetadataImage
from strandline.broker.cluster.metadata.log_format import Entry
from strandline.broker.protocol.formats.metadata_records import NoOpRecord
from strandline.storage.errors import CorruptFile
from strandline.storage.remote.keys import metadata_log_key, metadata_snapshot_key
from tests.support.memory_store import MemoryStore
from tests.unit.broker.cluster.metadata_rig import opened


def test_each_begin_raises_the_epoch_and_what_follows_keeps_it() -> None:
    store = MemoryStore()
    log = opened(store)
    assert log.image.epoch == 0
    before = log.image
    log.begin_epoch()
    # As many offsets as the control records that followers get for it.
    assert (log.image.epoch, log.image.next_offset) == (1, before.next_offset + 2)
    log.append([NoOpRecord()])
    assert log.image.epoch == 1
    again = opened(store)
    assert again.image.epoch == 1
    again.begin_epoch()
    assert opened(store).image.epoch == 2


def test_a_snapshot_has_the_epoch_where_it_ends() -> None:
    store = MemoryStore()
    log = opened(store, snapshot_interval=1)
    log.begin_epoch()
    assert json.loads(store.get(metadata_snapshot_key(log.image.version)))["epoch"] == 1
    assert opened(store).image.epoch == 1


def test_the_log_of_a_lone_broker_says_nothing_of_epochs() -> None:
    store = MemoryStore()
    log = opened(store)
    log.append([NoOpRecord()])
    assert "epoch" not in json.loads(store.get(metadata_log_key(log.image.version)))


def test_an_entry_of_an_earlier_epoch_is_another_history() -> None:
    delta = MetadataDelta(MetadataImage(version=3, next_offset=5, epoch=2, cluster_id="c"))
    entry = Entry(cluster_id="c", previous="", offset=5, epoch=1, records=(NoOpRecord(),))
    with pytest.raises(CorruptFile, match="of epoch 1, those before it are of 2"):
        entry.replay(delta)
