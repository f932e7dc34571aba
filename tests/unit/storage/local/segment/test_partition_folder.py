"""What else lies in the folder of a partition: half-done work is tidied, strange files stay."""

from __future__ import annotations

from pathlib import Path

from tests.unit.storage.local.restarts import filled, reopen


def test_half_done_work_of_others_is_tidied_and_strange_files_stay(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.close()
    base = f"{0:020d}"
    for name in (f"{base}.log.deleted", f"{base}.log.cleaned", "x.tmp", f"{7:020d}.index"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "folder.log").mkdir()
    (tmp_path / "12.log").write_text("mine too")
    again = reopen(tmp_path, clean=True)
    assert again.end_offset == 400
    names = {path.name for path in tmp_path.iterdir()}
    assert {"notes.txt", "folder.log", "12.log"} <= names
    assert not [name for name in names if name.endswith((".deleted", ".cleaned", ".tmp"))]
    assert f"{7:020d}.index" not in names
    assert again.recovery_report.files_removed == 4
