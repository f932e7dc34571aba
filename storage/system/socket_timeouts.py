"""Encodes timeouts of a socket's calls for the kernel."""

from __future__ import annotations

import struct


def timeval(duration_s: float) -> bytes:
    """The value of the options SO_RCVTIMEO and SO_SNDTIMEO."""
    seconds, rest_s = divmod(duration_s, 1)
    return struct.pack("@ll", int(seconds), int(rest_s * 1_000_000))
