"""The time of the run before survives it, and its loss is no reason not to start."""

from __future__ import annotations

from pathlib import Path

from strandline.storage.local.log_dirs.last_known_time import FILE_NAME, NOTE_MS, LastTime


def test_what_was_noted_is_read_from_whichever_folder_is_there(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    assert LastTime(lambda: folders).read() is None
    LastTime(lambda: folders).note(1_000_000)
    LastTime(lambda: folders[1:]).note(2_000_000)
    assert LastTime(lambda: folders).read() == 2_000_000
    assert LastTime(lambda: folders[:1]).read() == 1_000_000


def test_a_note_that_is_nearly_as_good_is_not_written_again(tmp_path: Path) -> None:
    last_time = LastTime(lambda: [tmp_path])
    last_time.note(1_000_000)
    last_time.note(1_000_000 + NOTE_MS - 1)
    assert last_time.read() == 1_000_000
    for late_ms in (0, 1, NOTE_MS - 1):
        last_time.note(1_000_000 + NOTE_MS + late_ms)
        assert last_time.read() == 1_000_000 + NOTE_MS


def test_a_note_that_cannot_be_read_or_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"?")
    assert LastTime(lambda: [tmp_path]).read() is None
    (tmp_path / FILE_NAME).unlink()
    (tmp_path / FILE_NAME).mkdir()
    last_time = LastTime(lambda: [tmp_path, tmp_path / "gone"])
    last_time.note(1_000_000)
    assert last_time.read() is None
