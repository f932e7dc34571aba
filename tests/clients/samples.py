"""Records that every client must carry unharmed."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """What is sent and what must come back."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes], ...] = ()


def samples(seed: int = 7) -> list[Sample]:
    """Null and empty keys and values, headers, 1 byte to 1 MB, compressible and not."""
    chance = random.Random(seed)
    base_ms = 1_700_000_000_000
    made = [
        Sample(None, b"v", base_ms),
        Sample(b"k", None, base_ms + 1),
        Sample(None, None, base_ms + 2),
        Sample(b"", b"", base_ms + 3),
        Sample(b"k", b"v", base_ms + 4, (("h", b"x"), ("h", b"y"), ("empty", b""))),
        Sample("schlüssel".encode(), "wért".encode(), base_ms + 5, (("ключ", b"\x00\xff"),)),
    ]
    for number, size in enumerate((1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)):
        # Random enough that no codec brings 1 MB below the wire's limit unnoticed, yet below
        # max.message.bytes with all overhead.
        value = chance.randbytes(size)
        made.append(Sample(f"size-{size}".encode(), value, base_ms + 10 + number))
    return made + [
        Sample(b"bulk", b"line %d " % number * 5, base_ms + 100 + number) for number in range(500)
    ]
