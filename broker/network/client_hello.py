"""The first message of a client of TLS, looked at before OpenSSL gets it (RFC 8446).

    record = 22 | version u16 | length u16      message = 1 | length u24 | ...

OpenSSL takes some 40 KiB for a connection, and then memory for a whole message as soon as its
length is there. So the first record has to be whole before it begins: who only opens a connection,
or sends a few bytes of a long message, costs no more than these bytes.
"""

from __future__ import annotations

# With keys for two groups and names of protocols it has 2 KB; more are no client's.
HELLO_BYTES_MAX = 32 * 1024
_HANDSHAKE = 22
_RECORD_HEAD, _BOTH_HEADS = 5, 9
_RECORD_BYTES_MAX = 1 << 14


class HelloRefused(Exception):
    """A first message that is not waited for; says why."""


def is_complete(head: bytes | bytearray) -> bool:
    """Returns whether OpenSSL may have what came first: a whole record, or something else than TLS.

    Raises HelloRefused.
    """
    if len(head) < _RECORD_HEAD:
        return False
    if head[0] & 0x80:
        raise HelloRefused("a first message of SSL 2")
    record_bytes = int.from_bytes(head[3:5], "big")
    if head[0] != _HANDSHAKE or record_bytes > _RECORD_BYTES_MAX:
        return True  # OpenSSL says what is wrong with it.
    if record_bytes < _BOTH_HEADS - _RECORD_HEAD:
        raise HelloRefused("a first message whose first record has not even its length")
    if len(head) < _BOTH_HEADS:
        return False
    message_bytes = int.from_bytes(head[6:9], "big")
    if message_bytes > HELLO_BYTES_MAX:
        raise HelloRefused(f"a first message of {message_bytes} bytes")
    return len(head) >= _RECORD_HEAD + record_bytes
