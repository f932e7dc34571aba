"""One log folder: its lock, its identity, and the cluster it belongs to."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from strandline.storage.errors import CorruptFile, DiskError, LogDirLocked, UnsupportedFormat
from strandline.storage.local.formats import checkpoint
from tests.unit.storage.local.builders import TOPIC_ID
from tests.unit.storage.local.log_folders import CONFIG, T0, load_all, open_dirs

# --- locks and identity --------------------------------------------------------------------------


def test_a_folder_has_one_owner(tmp_path: Path) -> None:
    dirs = open_dirs(tmp_path)
    with pytest.raises(LogDirLocked, match=str(tmp_path)):
        open_dirs(tmp_path)
    dirs.close()
    open_dirs(tmp_path).close()


def test_a_folder_that_another_broker_made_anew_stays_offline(tmp_path: Path) -> None:
    folder, away = tmp_path / "data", tmp_path / "away"
    dirs = open_dirs(folder)
    load_all(dirs)
    log = dirs.create_log(T0, TOPIC_ID, CONFIG)
    folder.rename(away)
    others = open_dirs(folder)
    [ours] = dirs.directories
    with pytest.raises(DiskError, match="is another broker using it"):
        ours.check_present()
    log.on_failure(DiskError("the disk went away"))
    assert dirs.revive() == []
    others.close()
    assert dirs.revive() == []
    assert dirs.has_failed
    dirs.close()


def test_a_copy_of_the_folder_in_its_place_is_locked_and_taken_up_again(tmp_path: Path) -> None:
    """As when its device went and came back: another file to the system, and the same folder."""
    folder, away = tmp_path / "data", tmp_path / "away"
    dirs = open_dirs(folder)
    load_all(dirs)
    log = dirs.create_log(T0, TOPIC_ID, CONFIG)
    folder.rename(away)
    shutil.copytree(away, folder)
    log.on_failure(DiskError("the disk went away"))
    with pytest.raises(DiskError):
        dirs.directories[0].check_present()
    [revived] = dirs.revive()
    assert revived.new.topic_partition == T0
    dirs.directories[0].check_present()
    with pytest.raises(LogDirLocked):
        open_dirs(folder)
    dirs.close()


@pytest.mark.slow
def test_the_lock_of_a_dead_process_does_not_count(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path;"
        "from tests.support.manual_clock import ManualClock;"
        "from strandline.storage.local.log_dirs.log_dirs import LogDirs;"
        "LogDirs.open([Path(sys.argv[1])], node_id=1, cluster_id=None, clock=ManualClock());"
        "os._exit(9)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, str(tmp_path)]
    assert subprocess.run(command, env=environment, timeout=60, check=False).returncode == 9
    open_dirs(tmp_path, cluster_id=None).close()


def test_where_no_folder_is_usable_the_systems_own_error_stays_behind_ours(tmp_path: Path) -> None:
    """The command line says by it what to do."""
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(DiskError, match=r"a.*b") as caught:
        open_dirs(tmp_path / "file" / "a", tmp_path / "file" / "b")
    cause = caught.value.__cause__
    assert isinstance(cause, DiskError)
    assert isinstance(cause.__cause__, NotADirectoryError)


def test_one_locked_folder_frees_the_others_again(tmp_path: Path) -> None:
    holder = open_dirs(tmp_path / "b")
    with pytest.raises(LogDirLocked):
        open_dirs(tmp_path / "a", tmp_path / "b")
    holder.close()
    open_dirs(tmp_path / "a", tmp_path / "b").close()


def test_a_cluster_id_is_made_once_and_kept(tmp_path: Path) -> None:
    dirs = open_dirs(tmp_path / "a", cluster_id=None)
    made = dirs.cluster_id
    assert len(made) == 22
    dirs.close()
    again = open_dirs(tmp_path / "a", tmp_path / "b", cluster_id=None)
    assert again.cluster_id == made
    again.close()
    properties = [checkpoint.read_properties(tmp_path / name / "meta.properties") for name in "ab"]
    assert properties[0] is not None
    assert properties[1] is not None
    assert properties[0]["version"] == "1"
    assert properties[0]["node.id"] == properties[1]["node.id"] == "1"
    assert properties[0]["cluster.id"] == properties[1]["cluster.id"] == made
    assert properties[0]["directory.id"] != properties[1]["directory.id"]


def test_the_folder_of_another_broker_or_cluster_is_refused(tmp_path: Path) -> None:
    open_dirs(tmp_path).close()
    with pytest.raises(CorruptFile, match=r"belongs to node.id=1, this broker is 2"):
        open_dirs(tmp_path, node_id=2)
    with pytest.raises(CorruptFile, match=r"belongs to cluster.id=cluster-of-the-tests00"):
        open_dirs(tmp_path, cluster_id="another")
    open_dirs(tmp_path).close()


def test_a_folder_of_a_later_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=7\nnode.id=1\n")
    with pytest.raises(UnsupportedFormat, match="version 7"):
        open_dirs(tmp_path)


def test_a_folder_of_an_old_kafka_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=0\nbroker.id=1\ncluster.id=old\n")
    dirs = open_dirs(tmp_path, cluster_id=None)
    assert dirs.cluster_id == "old"
    dirs.close()
