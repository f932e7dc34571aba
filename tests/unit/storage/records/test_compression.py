"""The codecs: every framing that producers use, and bounds on what a few bytes may become."""

from __future__ import annotations

import contextlib
import gc
import random
import struct
import tracemalloc
import zlib
from collections.abc import Callable, Iterator

import cramjam
import lz4.frame
import pytest
import zstandard

from strandline.storage.errors import CorruptRecords, DecompressedTooLarge, UnsupportedCodec
from strandline.storage.records.compression import (
    BLOCK_BYTES,
    Codec,
    compress,
    decompress,
    iter_decompressed,
)

DATA = b"".join(f"record {n % 50} ".encode() for n in range(20_000))
BOMB_BYTES = 8 * 1024 * 1024
COMPRESSED = [codec for codec in Codec if codec is not Codec.NONE]


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("data", [b"", b"x", DATA], ids=["empty", "one byte", "much"])
def test_what_is_compressed_is_decompressed(codec: Codec, data: bytes) -> None:
    assert bytes(decompress(codec, compress(codec, data))) == data


def test_uncompressed_records_are_not_copied() -> None:
    view = decompress(Codec.NONE, DATA)
    assert isinstance(view, memoryview)
    assert view.obj is DATA


def test_raw_snappy_as_librdkafka_writes_it_is_read() -> None:
    assert bytes(decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(DATA)))) == DATA


def test_xerial_snappy_of_many_blocks_as_java_writes_it_is_read() -> None:
    blocks = [
        bytes(cramjam.snappy.compress_raw(DATA[start : start + 32768]))
        for start in range(0, len(DATA), 32768)
    ]
    stream = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    stream += b"".join(struct.pack(">i", len(block)) + block for block in blocks)
    assert bytes(decompress(Codec.SNAPPY, stream)) == DATA


def test_lz4_frames_of_every_kind_are_read() -> None:
    for linked in (False, True):
        for size in (False, True):
            framed = lz4.frame.compress(DATA, block_linked=linked, store_size=size)
            assert bytes(decompress(Codec.LZ4, framed)) == DATA


@pytest.mark.parametrize("size_bytes", [65_535, 65_536, 65_537, 1_000_000, 40_000_000])
def test_lz4_that_holds_far_more_than_it_seems_is_read_whole(size_bytes: int) -> None:
    data = bytes(size_bytes)
    framed = lz4.frame.compress(data)
    assert decompress(Codec.LZ4, framed) == data
    assert decompress(Codec.LZ4, framed, bytes_max=size_bytes) == data
    with pytest.raises(CorruptRecords):
        decompress(Codec.LZ4, framed, bytes_max=size_bytes - 1)
    with pytest.raises(CorruptRecords):
        decompress(Codec.LZ4, framed[:-5])


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.ZSTD])
def test_streams_behind_each_other_are_read_as_one_as_by_java(codec: Codec) -> None:
    first, second = b"first " * 1000, b"second " * 1000
    together = compress(codec, first) + compress(codec, second)
    assert decompress(codec, together) == first + second
    with pytest.raises(DecompressedTooLarge):
        decompress(codec, together, bytes_max=len(first))
    with pytest.raises(CorruptRecords):
        decompress(codec, together[:-1])


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD])
def test_thousands_of_small_streams_behind_each_other_are_read(codec: Codec) -> None:
    assert decompress(codec, compress(codec, b"few ") * 5000 + b"trailing") == b"few " * 5000


def zstd_frame(blocks: list[bytes], *, checksum_of: bytes | None = None) -> bytes:
    """A frame without a content size and with a window of 128 KiB, as Java's but for its size."""
    flags = 0 if checksum_of is None else 4
    frame = b"\x28\xb5\x2f\xfd" + bytes([flags, 0x38])
    for number, block in enumerate(blocks):
        size, kind = (len(block), 0) if len(block) != 1 else (128 * 1024, 1)
        is_last = number == len(blocks) - 1
        frame += (size << 3 | kind << 1 | is_last).to_bytes(3, "little") + block
    if checksum_of is not None:
        whole = zstandard.ZstdCompressor(write_checksum=True).compress(checksum_of)
        frame += whole[-4:]
    return frame


def test_zstd_blocks_of_every_kind_are_read_with_and_without_a_checksum() -> None:
    noise = random.Random(4).randbytes(100_000)
    blocks = [noise, b"x", noise[:70_000], b"y", b"", b"z", noise[:2]] * 5
    data = b"".join(block * 128 * 1024 if len(block) == 1 else block for block in blocks)
    for checksum_of in (None, data):
        frame = zstd_frame(blocks, checksum_of=checksum_of)
        assert decompress(Codec.ZSTD, frame) == data
        assert decompress(Codec.ZSTD, frame * 2) == data * 2
        assert decompress(Codec.ZSTD, frame, bytes_max=len(data)) == data
        for cut in (1, 3, 100_000):
            with pytest.raises(CorruptRecords):
                decompress(Codec.ZSTD, frame[:-cut])
    wrong = bytearray(zstd_frame(blocks, checksum_of=data))
    wrong[-1] ^= 1
    with pytest.raises(CorruptRecords, match="checksum"):
        decompress(Codec.ZSTD, wrong)


def test_zstd_with_and_without_a_content_size_is_read() -> None:
    for size in (False, True):
        framed = zstandard.ZstdCompressor(write_content_size=size).compress(DATA)
        assert bytes(decompress(Codec.ZSTD, framed)) == DATA


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_few_bytes_cannot_become_more_than_the_bound(codec: Codec) -> None:
    bomb = compress(codec, bytes(BOMB_BYTES))
    with pytest.raises(CorruptRecords, match="exceed"):
        decompress(codec, bomb, bytes_max=BOMB_BYTES // 2)
    assert len(decompress(codec, bomb, bytes_max=BOMB_BYTES)) == BOMB_BYTES


def xerial(blocks: int) -> bytes:
    block = bytes(cramjam.snappy.compress_raw(bytes(2**20)))
    return (
        b"\x82SNAPPY\x00"
        + struct.pack(">ii", 1, 1)
        + (struct.pack(">i", len(block)) + block) * blocks
    )


# Few bytes that become 64 MiB or more.
BOMBS: dict[str, tuple[Codec, Callable[[], bytes]]] = {
    "gzip": (Codec.GZIP, lambda: compress(Codec.GZIP, bytes(2**26))),
    "lz4": (Codec.LZ4, lambda: compress(Codec.LZ4, bytes(2**26))),
    "snappy of Java": (Codec.SNAPPY, lambda: xerial(64)),
    "zstd": (Codec.ZSTD, lambda: compress(Codec.ZSTD, bytes(2**26))),
    "zstd of Java": (Codec.ZSTD, lambda: zstd_frame([b"0"] * 512)),
    "zstd of many frames": (Codec.ZSTD, lambda: zstd_frame([b"0"]) * 512),
}


@contextlib.contextmanager
def traced() -> Iterator[None]:
    gc.disable()
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()
        gc.enable()


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_at_its_first_block(name: str) -> None:
    codec, make = BOMBS[name]
    bomb = make()
    with traced():
        with pytest.raises(DecompressedTooLarge):
            decompress(codec, bomb, bytes_max=16 * 1024)
        _, peak_bytes = tracemalloc.get_traced_memory()
    assert peak_bytes < 3 * BLOCK_BYTES


@pytest.mark.parametrize("name", BOMBS)
def test_the_error_of_a_bomb_keeps_none_of_its_blocks(name: str) -> None:
    codec, make = BOMBS[name]
    bomb = make()
    with traced():
        with pytest.raises(DecompressedTooLarge) as kept:
            decompress(codec, bomb, bytes_max=32 * BLOCK_BYTES)
        kept_bytes, _ = tracemalloc.get_traced_memory()
        assert kept.value.__traceback__ is not None
    assert kept_bytes < BLOCK_BYTES // 4


@pytest.mark.parametrize("codec", COMPRESSED)
def test_the_error_of_damaged_data_keeps_none_of_their_blocks(codec: Codec) -> None:
    damaged = compress(codec, random.Random(3).randbytes(2**22))[: 2**21]
    with traced():
        with pytest.raises(CorruptRecords) as kept:
            decompress(codec, damaged)
        kept_bytes, _ = tracemalloc.get_traced_memory()
        assert kept.value.__traceback__ is not None
    assert kept_bytes < BLOCK_BYTES // 4


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.ZSTD])
def test_the_number_of_blocks_may_be_bounded_too(codec: Codec) -> None:
    pieces = compress(codec, bytes(1000)) * 20
    assert decompress(codec, pieces, blocks_max=20) == bytes(20_000)
    with pytest.raises(DecompressedTooLarge, match="more than 19 compressed blocks"):
        decompress(codec, pieces, blocks_max=19)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_two_may_be_read_in_turns(codec: Codec) -> None:
    sources = [random.Random(seed).randbytes(3 * BLOCK_BYTES) for seed in (1, 2)]
    readers = [iter_decompressed(codec, compress(codec, s), bytes_max=2**30) for s in sources]
    found = [bytearray(), bytearray()]
    for blocks in zip(*readers, strict=True):
        for number, block in enumerate(blocks):
            found[number] += block
        assert decompress(codec, compress(codec, DATA)) == DATA
    assert found == sources


def test_a_bomb_in_the_second_xerial_block_is_bounded_too() -> None:
    block = bytes(cramjam.snappy.compress_raw(bytes(1000)))
    stream = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    stream += (struct.pack(">i", len(block)) + block) * 3
    with pytest.raises(CorruptRecords, match="exceed"):
        decompress(Codec.SNAPPY, stream, bytes_max=2500)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_cut_streams_are_corrupt(codec: Codec) -> None:
    whole = compress(codec, DATA)
    for length in (0, 1, 5, 17, len(whole) // 2, len(whole) - 1):
        with pytest.raises(CorruptRecords):
            decompress(codec, whole[:length])


@pytest.mark.parametrize("codec", COMPRESSED)
def test_random_bytes_are_corrupt_or_harmless(codec: Codec) -> None:
    source = random.Random(20 + codec)
    good = compress(codec, DATA[:2000])
    for _ in range(300):
        damaged = bytearray(good)
        for _ in range(source.randint(1, 4)):
            damaged[source.randrange(len(damaged))] = source.randrange(256)
        with contextlib.suppress(CorruptRecords):
            decompress(codec, bytes(damaged), bytes_max=1 << 20)


def test_snappy_block_lengths_are_checked() -> None:
    head = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    for tail in (b"\x00\x00", struct.pack(">i", -5), struct.pack(">i", 9) + b"x"):
        with pytest.raises(CorruptRecords):
            decompress(Codec.SNAPPY, head + tail)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codecs_are_unsupported(codec: int) -> None:
    with pytest.raises(UnsupportedCodec):
        decompress(codec, b"")
    with pytest.raises(UnsupportedCodec):
        compress(codec, b"")


def test_a_compression_level_is_honoured() -> None:
    for codec in (Codec.GZIP, Codec.LZ4, Codec.ZSTD):
        assert bytes(decompress(codec, compress(codec, DATA, 1))) == DATA
    assert len(compress(Codec.GZIP, DATA, 9)) < len(compress(Codec.GZIP, DATA, 1))


def test_gzip_is_the_format_of_rfc_1952() -> None:
    assert zlib.decompress(compress(Codec.GZIP, DATA), 31) == DATA
