"""What is opened at a start is what it is taken for."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.broker.cluster.metadata.metadata_log import MetadataLog
from strandline.broker.config.loading import load_config
from strandline.broker.server.parts.metadata import load_metadata
from strandline.broker.server.parts.storage import open_log_dirs
from strandline.storage.errors import TierError
from strandline.storage.remote.object_store.local_directory import LocalDirectoryStore
from tests.support.manual_clock import ManualClock

CLUSTER = "cluster-of-the-tests00"


class Unreadable(LocalDirectoryStore):
    """Names are there, and nothing can be read."""

    def get(self, key: str) -> bytes:
        raise TierError(key, "get", "Permission denied")


def test_a_metadata_log_that_cannot_be_read_is_not_called_empty(tmp_path: Path) -> None:
    clock = ManualClock(1_700_000_000_000)
    mirror = LocalDirectoryStore(tmp_path / "archive", clock=clock)
    MetadataLog(
        LocalDirectoryStore(tmp_path / "data", clock=clock), None, cluster_id=CLUSTER
    ).load()
    unreadable = Unreadable(tmp_path / "data", clock=clock)
    config = load_config(None, ["node.id=1", f"log.dirs={tmp_path / 'data'}"])
    log_dirs = open_log_dirs(config, clock)
    with pytest.raises(TierError, match="Permission denied"):
        load_metadata(MetadataLog(unreadable, mirror, cluster_id=CLUSTER), config, log_dirs, mirror)
    log_dirs.close()
