"""Our checksum is the compiled one of the package, and Kafka's."""

from __future__ import annotations

import crc32c as whole_package

from strandline.storage.system.crc32c import crc32c, joined


def test_it_is_the_checksum_that_kafka_uses() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"") == 0


def test_it_goes_on_from_what_it_was_given() -> None:
    assert crc32c(memoryview(b"456789"), crc32c(b"123")) == crc32c(b"123456789")


def test_it_is_the_function_of_the_package() -> None:
    content = bytes(range(256)) * 33
    assert crc32c(content) == whole_package.crc32c(content)


def test_pieces_have_the_checksum_of_the_whole() -> None:
    content = bytes(range(256)) * 33
    for cut in (0, 1, 7, 255, 4096, len(content) - 1, len(content)):
        before, after = content[:cut], content[cut:]
        assert joined(crc32c(before), crc32c(after), len(after)) == crc32c(content)
