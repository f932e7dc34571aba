"""What is sent to a store: in time, not dripping, and nothing but what was meant."""

from __future__ import annotations

import os
from pathlib import Path

import crc32c
import pytest

from strandline.storage.errors import ObjectCorrupt
from strandline.storage.remote.object_store.interface import FileBody
from strandline.storage.remote.s3.attempts import DeadlineError
from strandline.storage.remote.s3.upload_body import (
    BLOCK_BYTES,
    SDK_BLOCK_BYTES,
    BodyPart,
    BodyReader,
    StalledError,
    measure_body,
)
from tests.support.manual_clock import ManualClock

CONTENT = bytes(range(256)) * 40_000
PART = BodyPart(position=0, size_bytes=len(CONTENT), crc32c=crc32c.crc32c(CONTENT))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def body(tmp_path: Path) -> FileBody:
    path = tmp_path / "segment.log"
    path.write_bytes(CONTENT)
    return FileBody(path=path, size_bytes=len(CONTENT), crc32c=PART.crc32c)


def reader(body: FileBody, clock: ManualClock, part: BodyPart = PART) -> BodyReader:
    return BodyReader("key", body, part, clock=clock, deadline_s=1000.0, progress_s=10.0)


def read_all(opened: BodyReader) -> bytes:
    found = bytearray()
    while block := opened.read(16_384):
        found += block
    return bytes(found)


def test_a_body_is_given_whole_and_again_after_a_rewind(body: FileBody, clock: ManualClock) -> None:
    with reader(body, clock) as opened:
        assert read_all(opened) == CONTENT
        opened.seek(0)
        assert read_all(opened) == CONTENT


def test_a_part_is_a_window_of_the_file(body: FileBody, clock: ManualClock) -> None:
    parts = measure_body("key", body, part_bytes=3_000_000)
    assert [part.size_bytes for part in parts] == [3_000_000, 3_000_000, 3_000_000, 1_240_000]
    found = b""
    for part in parts:
        with reader(body, clock, part) as opened:
            found += read_all(opened)
    assert found == CONTENT


def test_a_body_that_drips_is_given_up_long_before_its_deadline(
    body: FileBody, clock: ManualClock
) -> None:
    def drip(opened: BodyReader) -> None:
        for _ in range(12):
            opened.read()
            opened.seek(BLOCK_BYTES)
            clock.advance_ms(1000)

    with reader(body, clock) as opened, pytest.raises(StalledError):
        drip(opened)


def test_a_slow_body_that_goes_on_is_let_go_on(body: FileBody, clock: ManualClock) -> None:
    with reader(body, clock) as opened:
        while opened.read(SDK_BLOCK_BYTES):
            clock.advance_ms(900)


def test_nothing_is_sent_after_the_deadline(body: FileBody, clock: ManualClock) -> None:
    with reader(body, clock) as opened:
        clock.advance_ms(1001000)
        with pytest.raises(DeadlineError):
            opened.read()


@pytest.mark.parametrize("changed", [CONTENT[:-1], CONTENT[:-1] + b"x", b""])
def test_a_file_that_changed_is_found_out_while_it_is_sent(
    body: FileBody, clock: ManualClock, changed: bytes
) -> None:
    body.path.write_bytes(changed)
    with pytest.raises(ObjectCorrupt, match="changed"), reader(body, clock) as opened:
        read_all(opened)


# --- bodies ----------------------------------------------------------------------------------


def test_a_body_reader_is_a_window_that_can_be_rewound(tmp_path: Path) -> None:
    content = os.urandom(1000)
    path = tmp_path / "f"
    path.write_bytes(content)
    body = FileBody(path=path, size_bytes=1000, crc32c=crc32c.crc32c(content))
    part = BodyPart(position=100, size_bytes=300, crc32c=crc32c.crc32c(content[100:400]))
    for source in (body, content, memoryview(content)):
        with BodyReader(
            "f", source, part, clock=ManualClock(), deadline_s=10, progress_s=10
        ) as reader:
            assert reader.read(50) == content[100:150]
            assert reader.tell() == 50
            assert reader.read() == content[150:400]
            assert reader.read(1) == b""
            reader.seek(-10, os.SEEK_END)
            assert reader.read(100) == content[390:400]
            reader.seek(0)
            assert reader.read() == content[100:400]


def test_parts_cover_the_body_and_know_their_checksums(tmp_path: Path) -> None:
    content = os.urandom(1000)
    path = tmp_path / "f"
    path.write_bytes(content)
    body = FileBody(path=path, size_bytes=1000, crc32c=crc32c.crc32c(content))
    parts = measure_body("k", body, part_bytes=300)
    assert [(part.position, part.size_bytes) for part in parts] == [
        (0, 300),
        (300, 300),
        (600, 300),
        (900, 100),
    ]
    for part in parts:
        window = content[part.position : part.position + part.size_bytes]
        assert part.crc32c == crc32c.crc32c(window)
