"""The name of a folder that a deleted partition waits in."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.storage.errors import CorruptFile
from strandline.storage.local.formats import checkpoint
from tests.unit.storage.local.builders import TOPIC_ID


def test_a_partition_folder_names_its_topic_id(tmp_path: Path) -> None:
    assert checkpoint.read_topic_id(tmp_path) is None
    checkpoint.write_topic_id(tmp_path, TOPIC_ID)
    content = (tmp_path / "partition.metadata").read_text()
    assert content == "version: 0\ntopic_id: Dw4NDAsKSQiHBgUEAwIBAA\n"
    assert checkpoint.read_topic_id(tmp_path) == TOPIC_ID
    (tmp_path / "partition.metadata").write_text("version: 0\n")
    with pytest.raises(CorruptFile):
        checkpoint.read_topic_id(tmp_path)
