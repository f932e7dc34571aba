"""Two restores into the same folders: the second one takes nothing from the first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.broker.commands.restore import MARK_FORMAT, MARK_VERSIONS, Restore, RestoreSummary
from strandline.broker.config.loading import load_config
from strandline.broker.server.folder_marks import RESTORE_MARK, RestoreRefused
from strandline.storage.clock import ManualClock
from strandline.storage.crash_points import RESTORE_BEFORE_UNMARK
from strandline.storage.errors import LogDirLocked
from strandline.storage.local.formats.checkpoint import META_PROPERTIES, read_properties
from strandline.storage.local.log_dirs.log_dirs import LogDirs
from strandline.storage.remote.manifest.cluster_info import ClusterInfo, create_cluster_info
from strandline.storage.remote.manifest.json_document import encode_document
from strandline.storage.remote.object_store.local_directory import LocalDirectoryStore

CLUSTER = "cluster-of-the-tests00"
CLOCK = ManualClock(1_700_000_000_000)


class Meanwhile:
    """Does something while the archive is read."""

    def __init__(self, call: Callable[[], object] = lambda: None) -> None:
        self._call = call

    def begin(self, what: str, total: int) -> None:
        if what == "metadata":
            self._call()

    def advance(self, count: int = 1) -> None:
        pass


def restore(folder: Path, meanwhile: Callable[[], object] = lambda: None) -> RestoreSummary:
    config = load_config(None, [f"log.dirs={folder / 'data'}", "node.id=1"])
    store = LocalDirectoryStore(folder / "archive", clock=CLOCK)
    create_cluster_info(store, ClusterInfo(cluster_id=CLUSTER))
    return Restore(config, store, clock=CLOCK, progress=Meanwhile(meanwhile)).run()


def test_a_restore_that_another_one_overtook_leaves_the_folders_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(RestoreRefused, match="is not empty"):
        restore(tmp_path, lambda: restore(tmp_path))
    found = read_properties(tmp_path / "data" / META_PROPERTIES)
    assert found is not None
    assert found["cluster.id"] == CLUSTER
    assert not (tmp_path / "data" / RESTORE_MARK).exists()


def test_a_restore_beside_one_that_is_under_way_takes_nothing_from_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    restore(tmp_path)
    # As the first one has it in its middle.
    fields = {"cluster_id": CLUSTER, "url": ""}
    (data / RESTORE_MARK).write_bytes(encode_document(MARK_FORMAT, MARK_VERSIONS.start, fields))
    opened = LogDirs.open([data], node_id=1, cluster_id=CLUSTER, clock=CLOCK)
    with pytest.raises(LogDirLocked):
        restore(tmp_path)
    assert (data / META_PROPERTIES).exists()
    opened.close()


def test_a_restore_beside_one_that_takes_its_marks_away_empties_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []

    def try_another(point: str) -> None:
        if point == RESTORE_BEFORE_UNMARK:
            with pytest.raises(LogDirLocked) as caught:
                restore(tmp_path)
            refused.append(str(caught.value))

    monkeypatch.setattr("strandline.broker.commands.restore.crash_point", try_another)
    restore(tmp_path)
    assert len(refused) == 1
    assert (tmp_path / "data" / META_PROPERTIES).exists()
    assert not (tmp_path / "data" / RESTORE_MARK).exists()
    LogDirs.open([tmp_path / "data"], node_id=1, cluster_id=CLUSTER, clock=CLOCK).close()
