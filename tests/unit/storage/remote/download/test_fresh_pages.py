"""Shared memory gets its pages at once, and only once."""

from __future__ import annotations

import os

import pytest

from strandline.storage.remote.download.block_memory import BlockMemory
from strandline.storage.remote.download.fresh_pages import write_pages


@pytest.mark.parametrize("size_bytes", [1, 65_536, 100_001, 3 * 1024 * 1024])
def test_new_memory_gets_all_of_its_pages(size_bytes: int) -> None:
    descriptor = os.memfd_create("test", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, size_bytes)
        assert write_pages(descriptor, size_bytes)
        found = os.fstat(descriptor)
        assert found.st_size == size_bytes
        assert found.st_blocks * 512 >= size_bytes
    finally:
        os.close(descriptor)


def test_memory_that_somebody_has_filled_is_left_alone() -> None:
    block = BlockMemory(1024 * 1024, shared=True)
    block.populate()
    assert os.fstat(block.descriptor).st_blocks * 512 >= len(block)
    block.mapping[:4] = b"text"
    block.populate()
    assert not write_pages(block.descriptor, len(block))
    assert block.mapping[:4] == b"text"


def test_private_memory_needs_nothing() -> None:
    block = BlockMemory(1000, shared=False)
    block.populate()
    assert block.mapping[:] == bytes(1000)
