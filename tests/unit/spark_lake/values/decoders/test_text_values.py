"""Values as text: what is no UTF-8 does not parse, and null stays null."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.storage.errors import ObjectCorrupt
from tests.unit.spark_lake.values.valued_archive import archive_of, values_of


def test_text_that_is_no_utf_8_does_not_parse_and_null_stays_null(tmp_path: Path) -> None:
    archive = archive_of(tmp_path, ["ключ".encode(), None, b"", b"\xff"])
    rows = values_of(archive, valueFormat="string", valueErrors="null")
    assert rows == ["ключ", None, "", None]
    with pytest.raises(ObjectCorrupt, match="offset 3 does not parse: it is no UTF-8"):
        values_of(archive, valueFormat="string")
