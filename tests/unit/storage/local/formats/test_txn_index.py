"""The index of aborted transactions: 34 bytes each, and damage is an error."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from strandline.storage.errors import CorruptFile, DiskError
from strandline.storage.local.formats.txn_index import TxnIndex
from strandline.storage.model import AbortedTransaction
from strandline.storage.records.txn_index import decode_entries
from tests.unit.storage.local.formats.half_written import half_then_full


def test_a_transaction_index_of_which_a_full_disk_took_a_half_is_whole_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = TxnIndex(tmp_path / "x.txnindex")
    with monkeypatch.context() as patch:
        half_then_full(patch)
        with pytest.raises(DiskError, match="No space left"):
            index.append(AbortedTransaction(5, 10, 20, 21))
    index.append(AbortedTransaction(6, 15, 30, 31))
    assert list(TxnIndex.open(index.path).entries) == list(index.entries)
    assert len(index) == 2


# --- transaction index ---------------------------------------------------------------------------


def test_a_transaction_index_has_34_bytes_per_abort(tmp_path: Path) -> None:
    index = TxnIndex(tmp_path / "x.txnindex")
    index.append(AbortedTransaction(5, 10, 20, 21))
    index.append(AbortedTransaction(6, 15, 30, 31))
    content = index.path.read_bytes()
    assert content == struct.pack(">hqqqqhqqqq", 0, 5, 10, 20, 21, 0, 6, 15, 30, 31)
    assert list(TxnIndex.open(index.path).entries) == list(index.entries)
    index.truncate(30)
    assert decode_entries(index.path.read_bytes(), source="") == (
        AbortedTransaction(5, 10, 20, 21),
    )
    index.truncate(20)
    assert not index.path.exists()


@pytest.mark.parametrize("content", [b"x", bytes(33), bytes(35), b"\x00\x01" + bytes(32)])
def test_a_damaged_transaction_index_is_an_error(content: bytes) -> None:
    with pytest.raises(CorruptFile):
        decode_entries(content, source="")
