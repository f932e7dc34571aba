"""The codecs of record batches, with a bound on the decompressed size.

Producers differ in framing: Java wraps snappy in the "xerial" stream format, librdkafka writes raw
snappy, and lz4 always has the frame format. A few bytes can decompress to gigabytes: four bytes of
zstd stand for 128 KiB. So every codec decompresses in blocks, and the bound is checked after each:

    data ─► library, bounded ─► block of at most BLOCK_BYTES ─► bound ─► reader, or joined
                                (snappy: 22 times its input)

Invariants: whoever decompresses holds at most one block more than its bound, and an error keeps no
block, however long it lives.
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Generator, Iterator
from contextlib import suppress
from enum import IntEnum
from io import SEEK_END, BytesIO
from itertools import islice

from strandline.storage.errors import CorruptRecords, DecompressedTooLarge, UnsupportedCodec
from strandline.storage.model import Buffer

# A batch is at most max.message.bytes compressed; Kafka streams records out of it without a limit.
# This is over a hundred times Kafka's default batch, and still harmless to one worker.
DECOMPRESSED_BYTES_MAX = 512 * 1024 * 1024

# The most that a library decompresses at a time, except for snappy.
BLOCK_BYTES = 1024 * 1024

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_BLOCK_LENGTH = struct.Struct(">i")
_GZIP_WINDOW_BITS = 31
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
# RFC 8878: a block has a head of 3 bytes and becomes at most 128 KiB; one of this type has a single
# byte, which it repeats.
_ZSTD_BLOCK_BYTES_MAX = 128 * 1024
_ZSTD_HEAD_BYTES = 3
_ZSTD_TYPE_RLE = 1
_ZSTD_CHECKSUM_BYTES = 4
# A decompressor keeps its largest window, of up to 128 MiB. Java's default level has one of 2 MiB.
_ZSTD_KEPT_WINDOW_BYTES_MAX = 8 * 1024 * 1024
# The library knows one level less than Kafka's property accepts; 17 is 16 with more patience.
_LZ4_LEVEL_MAX = 16
# Most lz4 records decompress to less than this; larger ones are decompressed in several steps.
_LZ4_OUTPUT_BYTES_MIN = 64 * 1024
_LZ4_LIKELY_RATIO = 16
# Input given to zlib and lz4 at a time: they copy what they did not use, at each call.
_SLICE_BYTES = 64 * 1024
# Three bytes of snappy decompress to 64 at most.
_SNAPPY_RATIO_MAX = 22
_LZ4_FRAME_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_CONTENT_SIZE_BIT = 0x08


# The thread's decompressor of zstd while none of its blocks are being read.
_OF_THREAD = threading.local()


class Codec(IntEnum):
    """Attribute bits 0 to 2 of a batch."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def decompress(
    codec: int,
    data: Buffer,
    *,
    bytes_max: int = DECOMPRESSED_BYTES_MAX,
    blocks_max: int | None = None,
) -> bytes | memoryview:
    """Returns the decompressed records behind a batch header.

    Raises UnsupportedCodec for an unknown codec, CorruptRecords if the data do not decompress, and
    DecompressedTooLarge if they would take more than `bytes_max` bytes, or more than `blocks_max`
    blocks: thousands of empty ones take milliseconds.
    """
    if codec == Codec.NONE:
        return memoryview(data)
    blocks = iter_decompressed(codec, data, bytes_max=bytes_max)
    # A single block is not copied. A list of blocks would need their memory twice, and leave the C
    # library with many freed pieces that it does not return to the system.
    with BytesIO(next(blocks, b"")) as whole:
        whole.seek(0, SEEK_END)
        whole.writelines(islice(blocks, None if blocks_max is None else blocks_max - 1))
        if next(blocks, None) is not None:
            blocks.close()
            raise DecompressedTooLarge(f"the records have more than {blocks_max} compressed blocks")
        return whole.getvalue()


def iter_decompressed(
    codec: int, data: Buffer, *, bytes_max: int
) -> Generator[bytes | memoryview, None, None]:
    """Yields what `decompress` returns in blocks of at most BLOCK_BYTES (snappy: a block of its).

    Raises the errors of `decompress`, at the block concerned. These must not keep the memory that
    they refuse: an error often lives until the next garbage collection, together with the frames of
    its traceback, and so with their variables.
    """
    try:
        yield from _blocks(codec, data, bytes_max)
        return
    except (CorruptRecords, UnsupportedCodec) as error:
        fault: CorruptRecords | UnsupportedCodec = error.with_traceback(None)
    except Exception as error:  # each library has its own error family, none shares a root
        fault = CorruptRecords(f"{Codec(codec).name.lower()} data do not decompress: {error}")
    # Outside of the handlers, because the error would refer to the one that is being handled.
    raise fault


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """Compresses as the Java client would frame it. Raises UnsupportedCodec."""
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            packer = zlib.compressobj(
                -1 if level is None else level, zlib.DEFLATED, _GZIP_WINDOW_BITS
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


def _blocks(codec: int, data: Buffer, bytes_max: int) -> Iterator[bytes | memoryview]:
    match codec:
        case Codec.NONE:
            yield memoryview(data)
        case Codec.GZIP:
            yield from _gzip_blocks(memoryview(data), bytes_max)
        case Codec.SNAPPY:
            yield from _snappy_blocks(memoryview(data), bytes_max)
        case Codec.LZ4:
            yield from _lz4_blocks(memoryview(data), bytes_max)
        case Codec.ZSTD:
            yield from _zstd_blocks(memoryview(data), bytes_max)
        case _:
            raise UnsupportedCodec(f"compression codec {codec} is unknown")


def _too_large(bytes_max: int) -> DecompressedTooLarge:
    return DecompressedTooLarge(f"decompressed records exceed {bytes_max} bytes")


def _gzip_blocks(view: memoryview, bytes_max: int) -> Iterator[bytes]:
    left_bytes, position, is_first = bytes_max, 0, True
    # As Java's GZIPInputStream: reads consecutive members and ignores other trailing bytes.
    while is_first or view[position : position + len(_GZIP_MAGIC)] == _GZIP_MAGIC:
        is_first = False
        unpacker = zlib.decompressobj(_GZIP_WINDOW_BITS)
        given: Buffer = b""
        while not unpacker.eof:
            if not given:
                given = view[position : position + _SLICE_BYTES]
                position += len(given)
                if not given:
                    raise CorruptRecords("gzip stream ends early")
            # To zlib, a bound of 0 is none.
            block = unpacker.decompress(given, min(left_bytes + 1, BLOCK_BYTES))
            given = unpacker.unconsumed_tail
            left_bytes -= len(block)
            if left_bytes < 0:
                raise _too_large(bytes_max)
            yield block
        position -= len(unpacker.unused_data)


def _snappy_blocks(view: memoryview, bytes_max: int) -> Iterator[bytes]:
    """Yields the blocks of a xerial stream, or the one of raw snappy."""
    if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
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
        raise _too_large(bytes_max)
    if length > _SNAPPY_RATIO_MAX * len(view):
        raise CorruptRecords(f"snappy block of {len(view)} bytes claims to become {length}")
    return bytes(cramjam.snappy.decompress_raw(view))


def _lz4_blocks(view: memoryview, bytes_max: int) -> Iterator[bytes]:
    import lz4.frame

    unpacker = lz4.frame.LZ4FrameDecompressor()
    left_bytes = bytes_max
    # The library allocates its whole output bound, so it is asked for a likely size first.
    likely_bytes = min(BLOCK_BYTES, max(_LZ4_OUTPUT_BYTES_MIN, _LZ4_LIKELY_RATIO * len(view)))
    for start in range(0, len(view), _SLICE_BYTES):
        given = bytes(view[start : start + _SLICE_BYTES])
        while not unpacker.eof:
            block = unpacker.decompress(given, max_length=min(left_bytes + 1, likely_bytes))
            given, likely_bytes = b"", BLOCK_BYTES
            left_bytes -= len(block)
            if left_bytes < 0:
                raise _too_large(bytes_max)
            yield block
            if unpacker.needs_input:
                break
    if not unpacker.eof:
        raise CorruptRecords("lz4 frame ends early")


def _zstd_blocks(view: memoryview, bytes_max: int) -> Iterator[bytes]:
    import zstandard

    # Creating a decompressor costs more than decompressing a small batch. It is one stream at a
    # time, so it is taken away until the last block.
    decompressor = vars(_OF_THREAD).pop("zstd", None) or zstandard.ZstdDecompressor()
    left_bytes, position, window_bytes = bytes_max, 0, 0
    try:
        # As in Java, consecutive frames are read as one; other trailing bytes are ignored.
        while not position or view[position : position + len(_ZSTD_MAGIC)] == _ZSTD_MAGIC:
            frame = view[position:]
            parameters = zstandard.get_frame_parameters(frame)
            window_bytes = max(window_bytes, parameters.window_size)
            size_bytes = parameters.content_size
            if size_bytes != zstandard.CONTENTSIZE_UNKNOWN and size_bytes > left_bytes:
                raise _too_large(bytes_max)
            if 0 < size_bytes <= BLOCK_BYTES:
                # In one call, which is a third faster. An error means that another frame follows,
                # or damage: the pieces below tell.
                with suppress(zstandard.ZstdError):
                    block = decompressor.decompress(frame, allow_extra_data=False)
                    yield block
                    return
            unpacker = decompressor.decompressobj()
            for piece in _zstd_pieces(frame, min(bytes_max, BLOCK_BYTES)):
                block = unpacker.decompress(piece)
                position += len(piece)
                left_bytes -= len(block)
                if left_bytes < 0:
                    raise _too_large(bytes_max)
                yield block
            if not unpacker.eof:
                raise CorruptRecords("zstd frame ends early")
    finally:
        if window_bytes <= _ZSTD_KEPT_WINDOW_BYTES_MAX:
            _OF_THREAD.zstd = decompressor


def _zstd_pieces(frame: memoryview, piece_bytes_max: int) -> Iterator[memoryview]:
    """Cuts a frame between its blocks, so that each piece becomes about `piece_bytes_max` at most.

    The library bounds what it takes, not what it returns.

        frame = head | block ... | checksum                block = head | bytes
        head of a block, u24 = is last, bit 0 | type, 2 bits | size
    """
    import zstandard

    blocks_max = max(1, piece_bytes_max // _ZSTD_BLOCK_BYTES_MAX)
    start, end, block_count, is_last = 0, zstandard.frame_header_size(frame), 0, False
    while not is_last:
        head = int.from_bytes(frame[end : end + _ZSTD_HEAD_BYTES], "little")
        is_last = bool(head & 1) or end >= len(frame)
        size_bytes = 1 if head >> 1 & 3 == _ZSTD_TYPE_RLE else head >> 3
        end += _ZSTD_HEAD_BYTES + size_bytes
        block_count += 1
        if is_last and zstandard.get_frame_parameters(frame).has_checksum:
            end += _ZSTD_CHECKSUM_BYTES
        if is_last or block_count == blocks_max:
            yield frame[start:end]
            start, block_count = end, 0


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
