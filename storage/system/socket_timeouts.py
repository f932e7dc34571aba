"""How long a socket's calls may wait, as the kernel is told of it."""

from __future__ import annotations

import struct


def timeval(duration_s: float) -> bytes:
    """What the options SO_RCVTIMEO and SO_SNDTIMEO take."""
    seconds, rest_s = divmod(duration_s, 1)
    return struct.pack("@ll", int(seconds), int(rest_s * 1_000_000))
