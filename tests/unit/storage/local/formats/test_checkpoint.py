"""Kafka's file formats: golden bytes, round trips, damage; and the caches over them."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.storage.errors import CorruptFile, UnsupportedFormat
from strandline.storage.local.formats import checkpoint
from strandline.storage.model import TopicPartition
from tests.unit.storage.local.builders import TOPIC_ID

# --- checkpoints ---------------------------------------------------------------------------------


def test_offset_checkpoints_have_kafkas_text_form(tmp_path: Path) -> None:
    path = tmp_path / "recovery-point-offset-checkpoint"
    offsets = {TopicPartition("a.b_c-d", 10): 2**62, TopicPartition("a", 0): 0}
    checkpoint.write_offsets(path, offsets)
    assert path.read_text() == f"0\n2\na 0 0\na.b_c-d 10 {2**62}\n"
    assert checkpoint.read_offsets(path) == offsets


def test_an_absent_checkpoint_has_no_entries(tmp_path: Path) -> None:
    assert checkpoint.read_offsets(tmp_path / "none") == {}


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("1\n0\n", UnsupportedFormat),
        ("0\n", CorruptFile),
        ("x\n1\n", CorruptFile),
        ("0\n2\na 0 1\n", CorruptFile),
        ("0\n1\na 0\n", CorruptFile),
        ("0\n1\na b c\n", CorruptFile),
        ("0\n1\na 0 1 2\n", CorruptFile),
        (b"\xff\xfe\x00", CorruptFile),
    ],
)
def test_damaged_checkpoints_are_errors(
    tmp_path: Path, content: str | bytes, error: type[Exception]
) -> None:
    path = tmp_path / "c"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(error):
        checkpoint.read_offsets(path)


def test_ids_have_kafkas_22_characters(tmp_path: Path) -> None:
    assert checkpoint.encode_id(TOPIC_ID) == "Dw4NDAsKSQiHBgUEAwIBAA"
    assert checkpoint.decode_id("Dw4NDAsKSQiHBgUEAwIBAA") == TOPIC_ID
    assert all(len(checkpoint.random_id()) == 22 for _ in range(20))
    for bad in ("", "abc", "Dw4NDAsKSQiHBgUEAwIBAAAA", "é" * 22):
        with pytest.raises(CorruptFile):
            checkpoint.decode_id(bad)


def test_properties_are_read_as_java_writes_them(tmp_path: Path) -> None:
    path = tmp_path / "meta.properties"
    path.write_text("#\n#Mon Jan 01 00:00:00 UTC 2024\nnode.id=1\nversion=1\nx=a\\:b\n\n")
    assert checkpoint.read_properties(path) == {"node.id": "1", "version": "1", "x": "a:b"}
    path.write_text("nonsense\n")
    with pytest.raises(CorruptFile):
        checkpoint.read_properties(path)
