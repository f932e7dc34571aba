"""Records that every client must carry unharmed."""

from __future__ import annotations

import random
from dataclasses import dataclass

# What librdkafka lets through with its own default, message.max.bytes=1000000, overhead included.
RECORD_BYTES_MAX = 999_000


@dataclass(frozen=True, slots=True)
class Sample:
    """What is sent and what must come back."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes], ...] = ()


def samples(seed: int = 7, *, with_empty_record: bool = True) -> list[Sample]:
    """Null and empty keys and values, headers, 1 byte to 1 MB, compressible and not.

    Some clients refuse to send a record without key and value; `with_empty_record` leaves it out.
    """
    chance = random.Random(seed)
    base_ms = 1_700_000_000_000
    made = [
        Sample(None, b"v", base_ms),
        Sample(b"k", None, base_ms + 1),
        Sample(b"", b"", base_ms + 3),
        Sample(b"k", b"v", base_ms + 4, (("h", b"x"), ("h", b"y"), ("empty", b""))),
        Sample("schlüssel".encode(), "wért".encode(), base_ms + 5, (("ключ", b"\x00\xff"),)),
    ]
    for number, size in enumerate((1, 10, 100, 1_000, 10_000, 100_000, RECORD_BYTES_MAX)):
        # Random, so that no codec makes it smaller.
        value = chance.randbytes(size)
        made.append(Sample(f"size-{size}".encode(), value, base_ms + 10 + number))
    if with_empty_record:
        made.append(Sample(None, None, base_ms + 50))
    return made + [
        Sample(b"bulk", b"line %d " % number * 5, base_ms + 100 + number) for number in range(500)
    ]
