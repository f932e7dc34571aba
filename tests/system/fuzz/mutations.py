"""Valid frames made into broken ones, and how they are sent."""

from __future__ import annotations

import random
import socket
import ssl
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
    # The first bytes say which API it is; most mutations leave them, to get behind the door.
    _bend(generator, body, frames, kept_bytes=8)
    length = len(body) if generator.random() < 0.9 else generator.choice((0, 7, len(body) + 5, -3))
    return struct.pack(">i", length) + bytes(body)


def bent(generator: random.Random, content: bytes) -> bytes:
    """Other bytes than frames, changed in the same ways."""
    body = bytearray(content or b"\x00")
    _bend(generator, body, [bytes(body)], kept_bytes=0)
    return bytes(body)


def _bend(
    generator: random.Random, body: bytearray, others: Sequence[bytes], *, kept_bytes: int
) -> None:
    for _ in range(generator.randint(1, 3)):
        low = 0 if generator.random() < 0.1 else min(kept_bytes, len(body) - 1)
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
                other = generator.choice(others)
                body[position:] = other[generator.randrange(min(4, len(other) - 1), len(other)) :]
            case _:
                del body[position:]
        if not body:
            body += b"\x00"


def fire(port: int, frame: bytes, context: ssl.SSLContext | None = None) -> bool:
    """Sends a frame and a good one behind it, by TLS with a context.

    Returns when the broker has dealt with both, and whether it has answered the good one.
    """
    good = frame_of(software(), 3, correlation_id=LAST_CORRELATION_ID)
    connected = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    try:
        if context is not None:
            connected = context.wrap_socket(connected, server_hostname="localhost")
        connected.sendall(frame + good)
        received = bytearray()
        while struct.pack(">i", LAST_CORRELATION_ID) not in received:
            part = connected.recv(65536)
            if not part:
                return False
            received += part
    except OSError:
        return False  # It closed in the middle, or waits for more: both are answers.
    finally:
        connected.close()
    return True
