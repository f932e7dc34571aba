"""Valid frames made into broken ones, and how they are sent."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Sequence

from tests.system.calls import frame_of, software

# A mutated fetch may ask to wait for days; its client goes away instead.
PATIENCE_S = 0.3
# Answers to a mutated request are told from this one's by the correlation id.
LAST_CORRELATION_ID = 0x5AFE

EXTREMES = [b"\x00", b"\x01", b"\x7f", b"\x80", b"\xff"]
WIDE_EXTREMES = [
    struct.pack(">i", number)
    for number in (-1, 0, 1, 2**31 - 1, -(2**31), 0x00FFFFFF, 32767, 65536)
] + [b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x07", b"\x80\x80\x80\x80\x01"]


def mutated(generator: random.Random, frames: Sequence[bytes]) -> bytes:
    """One frame, changed in one to three places; mostly with a length that is true again."""
    body = bytearray(generator.choice(frames)[4:])
    for _ in range(generator.randint(1, 3)):
        # The first bytes say which API it is; most mutations leave them, to get behind the door.
        low = 0 if generator.random() < 0.1 else min(8, len(body) - 1)
        position = generator.randrange(low, len(body)) if len(body) > low else 0
        match generator.randrange(8):
            case 0:
                body[position] ^= 1 << generator.randrange(8)
            case 1:
                body[position : position + 1] = generator.choice(EXTREMES)
            case 2:
                wide = generator.choice(WIDE_EXTREMES)
                body[position : position + len(wide)] = wide
            case 3:
                del body[position : position + generator.randint(1, 12)]
            case 4:
                body[position:position] = generator.randbytes(generator.randint(1, 12))
            case 5:
                end = min(len(body), position + generator.randint(1, 40))
                body[position:position] = body[position:end] * generator.randint(1, 30)
            case 6:
                other = generator.choice(frames)
                body[position:] = other[generator.randrange(4, len(other)) :]
            case _:
                del body[position:]
        if not body:
            body = bytearray(b"\x00")
    length = len(body) if generator.random() < 0.9 else generator.choice((0, 7, len(body) + 5, -3))
    return struct.pack(">i", length) + bytes(body)


def fire(port: int, frame: bytes) -> None:
    """Sends a frame and a good one behind it; returns when the broker has dealt with both."""
    good = frame_of(software(), 3, correlation_id=LAST_CORRELATION_ID)
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connected:
        try:
            connected.sendall(frame + good)
            received = bytearray()
            while struct.pack(">i", LAST_CORRELATION_ID) not in received:
                part = connected.recv(65536)
                if not part:
                    return
                received += part
        except OSError:
            return  # It closed in the middle, or waits for more: both are answers.
