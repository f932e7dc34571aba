"""Recompresses the records of a batch with another codec.

header   batch length, attributes and CRC change; offsets, times, producer and sequence stay
records  decompressed and compressed; their bytes stay
"""

from __future__ import annotations

from strandline.storage.errors import UnsupportedCodec
from strandline.storage.records.batch import batch as batch_format
from strandline.storage.records.batch.batch import BatchHeader
from strandline.storage.records.batch.record import with_crc
from strandline.storage.records.compression import DECOMPRESSED_BYTES_MAX, compress, decompress


def recompressed(
    encoded: memoryview,
    header: BatchHeader,
    *,
    codec: int,
    level: int | None,
    bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> bytearray:
    """Returns the batch of v2 that fills `encoded`, with its records under `codec`.

    Raises CorruptRecords, UnsupportedCodec, DecompressedTooLarge.
    """
    if header.magic != batch_format.MAGIC:
        raise UnsupportedCodec(f"a message of format {header.magic} is not recompressed")
    payload = decompress(header.codec, encoded[batch_format.HEADER_BYTES :], bytes_max=bytes_max)
    made = bytearray(encoded[: batch_format.HEADER_BYTES])
    made += compress(codec, payload, level)
    batch_format.LOG_OVERHEAD.pack_into(
        made, 0, header.base_offset, len(made) - batch_format.LOG_OVERHEAD_BYTES
    )
    batch_format.ATTRIBUTES_FIELD.pack_into(
        made, batch_format.CRC_START, header.attributes & ~batch_format.CODEC_MASK | codec
    )
    return with_crc(made)
