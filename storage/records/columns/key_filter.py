"""A split-block Bloom filter over the keys of a segment, built while the segment is inspected.

    section   magic u32 | version u8 | 0 u8 | 0 u16 | block count u32 | record count u64 | blocks
    block     eight little-endian words of 32 bits; a key sets one bit in each of them

    hash      crc32c and crc32 of the key side by side, multiplied by an odd constant
              |  block: the top bits  | ... |  8 x 5 bits: which bit of each word  |

A block is half a cache line, as in Parquet's filters: one test touches 32 bytes. The hash is not
Parquet's, because the broker must compute it without compiled loops: both checksums are C functions
of packages that it has anyway. The *top* bits select the block, so a filter is folded to half its
size by joining neighbours. Keys are added to a filter of the largest size, which is then folded to
the size they need; their number need not be known in advance.

A "no" of the filter is always right. Records without a key and control records are not in it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from strandline.storage.errors import CorruptFile, UnsupportedFormat
from strandline.storage.model import Buffer
from strandline.storage.system import crc32c

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MAGIC: Final = 0x736C6B66  # "slkf"
FORMAT_VERSION: Final = 1
FORMAT_VERSIONS: Final = range(1, 2)
_HEADER = struct.Struct("<IBBHIQ")
BLOCK_BYTES: Final = 32
WORDS: Final = 8

# 1 MiB: one key in a hundred is a false "maybe" up to some 800,000 different keys of a segment.
BLOCKS_MAX: Final = 1 << 15
# Folded as long as a false "maybe" stays rarer than this, which is about ten bits per key.
FALSE_SHARE: Final = 0.01
# A filter with more false answers than this would cost requests and spare little: none is kept.
FALSE_SHARE_MAX: Final = 0.3

# After this many keys the filter is checked for being full: then further keys are skipped.
CHECK_KEYS: Final = 1 << 19

# Recent keys, which are not hashed again; long keys are not kept.
SEEN_MAX: Final = 1 << 16
SEEN_KEY_BYTES_MAX: Final = 64

MULTIPLIER: Final = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, odd
_MASK64: Final = (1 << 64) - 1


def key_hash(key: Buffer) -> int:
    """64-bit hash. The checksums are linear; the product makes similar keys differ in all bits."""
    return (((crc32c.crc32c(key) << 32) | zlib.crc32(key)) * MULTIPLIER) & _MASK64


def _bits(low: int) -> tuple[int, ...]:
    """For ten bits of a hash: the two bits they set in words `low` and `low + 1` of a block."""
    return tuple(
        (1 << (32 * low + (bits & 31))) | (1 << (32 * (low + 1) + (bits >> 5)))
        for bits in range(1024)
    )


_TABLES: Final = tuple(_bits(low) for low in (0, 2, 4, 6))


def block_bits(hashed: int) -> int:
    """Returns the bits that a hash sets in its block, as a 256-bit number."""
    first, second, third, fourth = _TABLES
    mixed = hashed ^ (hashed >> 32)
    return (
        first[mixed & 1023]
        | second[(mixed >> 10) & 1023]
        | third[(mixed >> 20) & 1023]
        | fourth[(mixed >> 30) & 1023]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFilter:
    """A finished filter; `blocks` are as in the section."""

    record_count: int
    blocks: bytes

    @property
    def block_count(self) -> int:
        return len(self.blocks) // BLOCK_BYTES

    def may_have(self, key: Buffer) -> bool:
        """False only if no record with this key was added."""
        hashed = key_hash(key)
        start = _block_number(hashed, self.block_count) * BLOCK_BYTES
        block = int.from_bytes(self.blocks[start : start + BLOCK_BYTES], "little")
        wanted = block_bits(hashed)
        return block & wanted == wanted

    def encode(self) -> bytes:
        header = _HEADER.pack(MAGIC, FORMAT_VERSION, 0, 0, self.block_count, self.record_count)
        return header + self.blocks

    @classmethod
    def decode(cls, content: Buffer, *, source: str = "") -> KeyFilter:
        """Raises CorruptFile or UnsupportedFormat."""
        if len(content) < _HEADER.size:
            raise CorruptFile(f"{source}: {len(content)} bytes are no key filter")
        magic, version, _, _, count, record_count = _HEADER.unpack_from(content)
        if magic != MAGIC:
            raise CorruptFile(f"{source}: is no key filter")
        if version != FORMAT_VERSION:
            raise UnsupportedFormat.of_version(f"{source}: key filter", version, FORMAT_VERSIONS)
        blocks = bytes(memoryview(content)[_HEADER.size :])
        if not count or count & (count - 1) or len(blocks) != count * BLOCK_BYTES:
            raise CorruptFile(f"{source}: key filter of {count} blocks in {len(blocks)} bytes")
        return cls(record_count=record_count, blocks=blocks)


class KeyFilterBuilder:
    """Builds a segment's filter: `add` in plain Python, or compiled loops that fill `words`.

    A caller that cannot read some keys calls `abandon`: half a filter would be wrong.
    """

    def __init__(self) -> None:
        self._record_count = 0
        self._blocks: list[int] | None = [0] * BLOCKS_MAX
        self._words: npt.NDArray[np.uint32] | None = None
        self._seen: set[bytes] = set()
        self._is_complete = True
        self._keys_until_check = CHECK_KEYS

    @property
    def words(self) -> npt.NDArray[np.uint32]:
        """The filter as the compiled loop fills it; `add` works no longer afterwards."""
        import numpy as np

        if self._words is None:
            assert self._blocks is not None
            if self._record_count:
                self._words = np.frombuffer(bytearray(_joined(self._blocks)), np.uint32)
            else:
                self._words = np.zeros(BLOCKS_MAX * WORDS, np.uint32)
            self._blocks = None
        return self._words

    def add(self, key: bytes) -> None:
        """Adds the key of one record."""
        self._record_count += 1
        if key in self._seen:
            return
        if len(key) <= SEEN_KEY_BYTES_MAX:
            if len(self._seen) >= SEEN_MAX:
                self._seen.clear()
            self._seen.add(key)
        assert self._blocks is not None
        hashed = key_hash(key)
        self._blocks[hashed >> 49] |= block_bits(hashed)
        self._check_false_share(1)

    def count(self, records: int) -> None:
        """Records with a key that were added through `words`."""
        self._record_count += records
        self._check_false_share(records)

    def abandon(self) -> None:
        """Builds no filter: some key is missing in it."""
        self._is_complete = False

    @property
    def is_complete(self) -> bool:
        return self._is_complete

    def _check_false_share(self, keys: int) -> None:
        self._keys_until_check -= keys
        if self._keys_until_check <= 0:
            self._keys_until_check = CHECK_KEYS
            if false_share(self._all_blocks()) > FALSE_SHARE_MAX:
                self.abandon()

    def _all_blocks(self) -> list[int]:
        if self._words is None:
            assert self._blocks is not None
            return self._blocks
        joined = self._words.tobytes()
        return [
            int.from_bytes(joined[at : at + BLOCK_BYTES], "little")
            for at in range(0, len(joined), BLOCK_BYTES)
        ]

    def finish(self) -> KeyFilter | None:
        """Returns the smallest filter that is good enough; None if none is, or keys are missing."""
        if not self._is_complete:
            return None
        if not self._record_count:
            return KeyFilter(record_count=0, blocks=bytes(BLOCK_BYTES))
        blocks = _folded(self._all_blocks())
        if blocks is None:
            return None
        return KeyFilter(record_count=self._record_count, blocks=blocks)


def _folded(blocks: list[int]) -> bytes | None:
    """Returns the smallest filter of the same keys that is good enough; None if this one is not."""
    if false_share(blocks) > FALSE_SHARE_MAX:
        return None
    while len(blocks) > 1:
        folded = [left | right for left, right in zip(blocks[::2], blocks[1::2], strict=True)]
        if false_share(folded) > FALSE_SHARE:
            break
        blocks = folded
    return _joined(blocks)


# The probability of a false "maybe" from a block with that many bits.
_SHARES: Final = tuple((bits / 256) ** WORDS for bits in range(257))


def false_share(blocks: Sequence[int]) -> float:
    """Returns the probability of a "maybe" for a key that was never added."""
    return sum(_SHARES[block.bit_count()] for block in blocks) / len(blocks)


def _joined(blocks: Sequence[int]) -> bytes:
    return b"".join(block.to_bytes(BLOCK_BYTES, "little") for block in blocks)


def _block_number(hashed: int, block_count: int) -> int:
    return hashed >> (65 - block_count.bit_length())


assert BLOCKS_MAX == 1 << (64 - 49)
