"""Reading whole files of every size, small ones with one read."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.storage import files
from strandline.storage.errors import DiskError

FIRST, MORE = files.SMALL_FILE_BYTES, files.LARGE_READ_BYTES


@pytest.mark.parametrize(
    "size_bytes",
    [0, 1, FIRST - 1, FIRST, FIRST + 1, FIRST + MORE - 1, FIRST + MORE, FIRST + MORE + 1],
)
def test_a_file_is_read_to_its_end(tmp_path: Path, size_bytes: int) -> None:
    content = bytes(range(251)) * (size_bytes // 251 + 1)
    path = tmp_path / "file"
    path.write_bytes(content[:size_bytes])
    assert files.read_whole(path) == content[:size_bytes]
    assert files.read_if_there(str(path)) == content[:size_bytes]


def test_a_file_that_is_not_there_is_nothing_or_an_error(tmp_path: Path) -> None:
    assert files.read_if_there(tmp_path / "none") is None
    with pytest.raises(DiskError, match="No such file"):
        files.read_whole(tmp_path / "none")
    with pytest.raises(DiskError):
        files.read_if_there(tmp_path)
