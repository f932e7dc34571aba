"""The codecs of record batches, with a bound on the decompressed size.

Producers differ in framing: Java wraps snappy in the "xerial" stream format, librdkafka writes raw
snappy, and lz4 always has the frame format. A few bytes can decompress to gigabytes, so every
decompression has a bound.
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Iterator
from contextlib import suppress
from enum import IntEnum

from strandline.storage.errors import CorruptRecords, DecompressedTooLarge, UnsupportedCodec
from strandline.storage.model import Buffer

# A batch is at most max.message.bytes compressed; Kafka streams records out of it without a limit.
# This is over a hundred times Kafka's default batch, and still harmless to one worker.
DECOMPRESSED_BYTES_MAX = 512 * 1024 * 1024

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_BLOCK_LENGTH = struct.Struct(">i")
GZIP_WINDOW_BITS = 31
GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
# The library knows one level less than Kafka's property accepts; 17 is 16 with more patience.
_LZ4_LEVEL_MAX = 16
# Four bytes of zstd can stand for 128 KiB, and a slice is decompressed as a whole: with slices of
# this size the bound is exceeded by at most 64 MiB before it is noticed.
_ZSTD_SLICE_BYTES = 2048
# A frame's stated content size is trusted up to here: this many bytes are allocated at once.
_ZSTD_TRUSTED_BYTES_MAX = 16 * 1024 * 1024
# Most lz4 records decompress to less than this; larger ones are decompressed in two steps.
_LZ4_OUTPUT_BYTES_MIN = 64 * 1024
_LZ4_LIKELY_RATIO = 16
# Three bytes of lz4 decompress to 64 at most.
_SNAPPY_RATIO_MAX = 22
_LZ4_FRAME_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_CONTENT_SIZE_BIT = 0x08


_OF_THREAD = threading.local()


class Codec(IntEnum):
    """Attribute bits 0 to 2 of a batch."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def decompress(
    codec: int, data: Buffer, *, bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> bytes | memoryview:
    """Returns the decompressed records behind a batch header.

    Raises UnsupportedCodec for an unknown codec, CorruptRecords if the data do not decompress, and
    DecompressedTooLarge if they would take more than `bytes_max` bytes.
    """
    try:
        match codec:
            case Codec.NONE:
                return memoryview(data)
            case Codec.GZIP:
                return _gunzip(data, bytes_max)
            case Codec.SNAPPY:
                return _unsnappy(data, bytes_max)
            case Codec.LZ4:
                return _unlz4(data, bytes_max)
            case Codec.ZSTD:
                return _unzstd(data, bytes_max)
            case _:
                raise UnsupportedCodec(f"compression codec {codec} is unknown")
    except (CorruptRecords, UnsupportedCodec):
        raise
    except Exception as error:  # each library has its own error family, none shares a root
        raise no_records(codec, error) from error


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """Compresses as the Java client would frame it. Raises UnsupportedCodec."""
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            packer = zlib.compressobj(
                -1 if level is None else level, zlib.DEFLATED, GZIP_WINDOW_BITS
            )
            return packer.compress(data) + packer.flush()
        case Codec.SNAPPY:
            import cramjam

            block = bytes(cramjam.snappy.compress_raw(data))
            return _XERIAL_MAGIC + struct.pack(">ii", 1, 1) + _BLOCK_LENGTH.pack(len(block)) + block
        case Codec.LZ4:
            import lz4.frame

            # The Java client refuses blocks that depend on the one before.
            packed: bytes = lz4.frame.compress(
                bytes(data),
                compression_level=min(level or 0, _LZ4_LEVEL_MAX),
                block_linked=False,
                store_size=False,
            )
            return packed
        case Codec.ZSTD:
            import zstandard

            return zstandard.ZstdCompressor(level=3 if level is None else level).compress(data)
        case _:
            raise UnsupportedCodec(f"compression codec {codec} is unknown")


def no_records(codec: int, error: Exception) -> CorruptRecords:
    """Returns the error to raise where a codec's library raises `error`."""
    return CorruptRecords(f"{Codec(codec).name.lower()} data do not decompress: {error}")


def too_large(bytes_max: int) -> DecompressedTooLarge:
    """Returns the error for records that would take more than `bytes_max` bytes."""
    return DecompressedTooLarge(f"decompressed records exceed {bytes_max} bytes")


def _gunzip(data: Buffer, bytes_max: int) -> bytes:
    parts: list[bytes] = []
    left_bytes, rest = bytes_max, data
    # As Java's GZIPInputStream: reads consecutive members and ignores other trailing bytes.
    while not parts or bytes(rest[: len(GZIP_MAGIC)]) == GZIP_MAGIC:
        unpacker = zlib.decompressobj(GZIP_WINDOW_BITS)
        # To zlib, a bound of 0 is none.
        part = unpacker.decompress(rest, left_bytes + 1)
        left_bytes -= len(part)
        if unpacker.unconsumed_tail or left_bytes < 0:
            raise too_large(bytes_max)
        if not unpacker.eof:
            raise CorruptRecords("gzip stream ends early")
        parts.append(part)
        rest = unpacker.unused_data
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _unsnappy(data: Buffer, bytes_max: int) -> bytes:
    blocks = list(iter_snappy(data, bytes_max))
    return blocks[0] if len(blocks) == 1 else b"".join(blocks)


def iter_snappy(data: Buffer, bytes_max: int) -> Iterator[bytes]:
    """Yields the blocks of a xerial stream, or the one of raw snappy. Raises as `decompress`."""
    view = memoryview(data)
    if bytes(view[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        yield _unsnappy_block(view, bytes_max)
        return
    total_bytes = 0
    position = _XERIAL_HEADER_BYTES
    while position < len(view):
        if view[position : position + len(_XERIAL_MAGIC)] == _XERIAL_MAGIC:
            # Java reads consecutive streams as one.
            position += _XERIAL_HEADER_BYTES
            continue
        if position + _BLOCK_LENGTH.size > len(view):
            raise CorruptRecords("snappy stream ends inside a block length")
        (length,) = _BLOCK_LENGTH.unpack_from(view, position)
        position += _BLOCK_LENGTH.size
        if length < 0 or position + length > len(view):
            raise CorruptRecords(f"snappy block of {length} bytes exceeds its stream")
        block = _unsnappy_block(view[position : position + length], bytes_max - total_bytes)
        total_bytes += len(block)
        position += length
        yield block


def _unsnappy_block(view: memoryview, bytes_max: int) -> bytes:
    import cramjam

    # The first varint of a raw block is its decompressed length: refuse before allocating.
    length = shift = 0
    for byte in view[:5]:
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    if length > bytes_max:
        raise too_large(bytes_max)
    if length > _SNAPPY_RATIO_MAX * len(view):
        raise CorruptRecords(f"snappy block of {len(view)} bytes claims to become {length}")
    return bytes(cramjam.snappy.decompress_raw(view))


def _unlz4(data: Buffer, bytes_max: int) -> bytes:
    import lz4.frame

    unpacker = lz4.frame.LZ4FrameDecompressor()
    # The library allocates its whole output bound, so it is asked for a likely size first.
    likely_bytes = min(bytes_max, max(_LZ4_OUTPUT_BYTES_MIN, _LZ4_LIKELY_RATIO * len(data)))
    unpacked: bytes = unpacker.decompress(bytes(data), max_length=likely_bytes)
    if not unpacker.eof and len(unpacked) == likely_bytes < bytes_max:
        unpacked += unpacker.decompress(b"", max_length=bytes_max - likely_bytes)
    if not unpacker.eof:
        if len(unpacked) >= bytes_max:
            raise too_large(bytes_max)
        raise CorruptRecords("lz4 frame ends early")
    return unpacked


def _unzstd(data: Buffer, bytes_max: int) -> bytes:
    import zstandard

    decompressor = getattr(_OF_THREAD, "zstd", None)
    if decompressor is None:
        # Creating one costs more than decompressing a small batch, and threads may not share one.
        decompressor = _OF_THREAD.zstd = zstandard.ZstdDecompressor()
    size_bytes = zstandard.frame_content_size(data)
    if size_bytes > bytes_max:
        raise too_large(bytes_max)
    if 0 < size_bytes <= _ZSTD_TRUSTED_BYTES_MAX:
        # An error means several frames, which Java reads, or damage: the slices below tell.
        with suppress(zstandard.ZstdError):
            unpacked: bytes = decompressor.decompress(data, allow_extra_data=False)
            return unpacked
    # Streams of Java producers do not carry the content size, so they are unpacked in slices.
    parts: list[bytes] = []
    total_bytes = position = 0
    view = memoryview(data)
    unpacker = decompressor.decompressobj()
    while not unpacker.eof and position < len(view):
        piece = view[position : position + _ZSTD_SLICE_BYTES]
        part = unpacker.decompress(piece)
        total_bytes += len(part)
        if total_bytes > bytes_max:
            raise too_large(bytes_max)
        parts.append(part)
        position += len(piece) - len(unpacker.unused_data)
        if unpacker.eof and view[position : position + len(_ZSTD_MAGIC)] == _ZSTD_MAGIC:
            unpacker = decompressor.decompressobj()
    if not unpacker.eof:
        raise CorruptRecords("zstd frame ends early")
    return parts[0] if len(parts) == 1 else b"".join(parts)


# --- lz4 of message format v0 ---------------------------------------------------------------------


def mend_old_lz4_frame(data: Buffer) -> bytes:
    """Returns an lz4 frame of message format v0 with a correct header checksum.

    Kafka's first lz4 hashed the frame's magic as well (KAFKA-3160), so libraries refuse it. Data
    that are no lz4 frame are returned as they are, for the decoder to refuse.
    """
    frame = bytearray(data)
    if len(frame) < 7 or frame[:4] != _LZ4_FRAME_MAGIC:
        return bytes(frame)
    end = 14 if frame[4] & _LZ4_CONTENT_SIZE_BIT else 6
    if len(frame) > end:
        frame[end] = _xxh32_of_few(bytes(frame[4:end])) >> 8 & 0xFF
    return bytes(frame)


_XXH_PRIMES = (2654435761, 2246822519, 3266489917, 668265263, 374761393)


def _xxh32_of_few(data: bytes) -> int:
    """xxHash32 with seed 0, of fewer than 16 bytes."""
    assert len(data) < 16, len(data)
    _, second, third, fourth, fifth = _XXH_PRIMES
    state = fifth + len(data)
    position = 0
    while position + 4 <= len(data):
        lane = int.from_bytes(data[position : position + 4], "little")
        state = _rotated(state + lane * third, 17) * fourth
        position += 4
    for byte in data[position:]:
        state = _rotated(state + byte * fifth, 11) * _XXH_PRIMES[0]
    state &= 0xFFFFFFFF
    state = (state ^ state >> 15) * second & 0xFFFFFFFF
    state = (state ^ state >> 13) * third & 0xFFFFFFFF
    return state ^ state >> 16


def _rotated(number: int, bits: int) -> int:
    number &= 0xFFFFFFFF
    return (number << bits | number >> (32 - bits)) & 0xFFFFFFFF
