"""A boot is named only where it keeps what was written, for as long as it lasts."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.storage.system import boot
from strandline.storage.system.boot import boot_of

ID = "fbdb33be-05f3-465f-b040-4c553be72882"
ROOT = "22 1 254:0 / / rw,relatime shared:1 - {type} /dev/vda rw"


def of(folder: Path, tmp_path: Path, *lines: str, text: str = f"{ID}\n") -> str | None:
    boot_id, mounts = tmp_path / "boot_id", tmp_path / "mountinfo"
    boot_id.write_text(text)
    mounts.write_text("".join(f"{line}\n" for line in lines))
    return boot_of(folder, boot_id=boot_id, mounts=mounts)


@pytest.mark.parametrize("kind", sorted(boot.LOCAL_FILE_SYSTEMS))
def test_a_folder_on_a_disk_of_the_machine_is_kept_by_its_boot(kind: str, tmp_path: Path) -> None:
    assert of(tmp_path, tmp_path, ROOT.format(type=kind)) == ID


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "9p", "virtiofs", "fuse.sshfs", "ceph", "?"])
def test_of_a_folder_behind_somebody_else_nothing_is_said(kind: str, tmp_path: Path) -> None:
    assert of(tmp_path, tmp_path, ROOT.format(type=kind)) is None


def test_the_mount_that_is_seen_decides(tmp_path: Path) -> None:
    """Names with a space are escaped, and the later one of two over the same point hides it."""
    folder = tmp_path / "a b"
    folder.mkdir()
    point = str(folder).replace(" ", "\\040")
    disk = f"30 22 254:1 / {point} rw - xfs /dev/vdb rw"
    other = f"31 22 0:50 / {point} rw master:1 propagate_from:2 - nfs4 host:/a rw"
    root = ROOT.format(type="ext4")
    assert of(folder, tmp_path, root, other) is None
    assert of(folder, tmp_path, root, other, disk) == ID
    assert of(folder, tmp_path, root, disk, other) is None
    # Of a name that only begins like it.
    assert of(tmp_path / "a bc", tmp_path, root, other) == ID
    assert of(folder / "logs", tmp_path, root, other) is None


def test_a_link_is_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "near").symlink_to(tmp_path / "far")
    far = f"30 22 0:50 / {tmp_path / 'far'} rw - nfs4 host:/a rw"
    assert of(tmp_path / "near", tmp_path, ROOT.format(type="ext4"), far) is None


def test_without_the_kernels_word_nothing_is_said(tmp_path: Path) -> None:
    root = ROOT.format(type="ext4")
    assert of(tmp_path, tmp_path, root, text="") is None
    assert of(tmp_path, tmp_path) is None
    assert of(tmp_path, tmp_path, "22 1 254:0") is None
    mounts = tmp_path / "mountinfo"
    assert boot_of(tmp_path, boot_id=tmp_path / "none", mounts=mounts) is None
    assert boot_of(tmp_path, boot_id=tmp_path / "boot_id", mounts=tmp_path / "none") is None


def test_a_file_in_place_of_the_kernels_is_not_believed(tmp_path: Path) -> None:
    """As a container may have one, which stays the same when the machine starts again."""
    own = tmp_path / "boot_id"
    own.write_text(ID)
    assert boot_of(tmp_path, boot_id=own) is None


def test_the_same_boot_has_the_same_name(tmp_path: Path) -> None:
    assert boot_of(tmp_path) == boot_of(tmp_path)
