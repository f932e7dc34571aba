"""The memory that the receive buffers of many connections may take together.

    connection ── take ──► granted, while a byte is free: the buffer grows to its whole frame
                     └───► none is free: it waits unread, in the order of arrival
    frame answered, connection closed ── give_back ──► the first of those that wait

As Kafka's pool of `queued.max.request.bytes` (KIP-72): what is granted may exceed the bytes that
are left, so a frame that is larger than the whole pool passes. A buffer takes the memory of its
whole frame at once, and gives it back before the next frame. So who waits has nothing that others
wait for, and connections cannot block each other.
"""

from __future__ import annotations

from collections.abc import Callable


class BufferPool:
    """Counts bytes; allocates none. Used on the event loop."""

    def __init__(self, bytes_max: int | None = None) -> None:
        """Without `bytes_max` there is no bound."""
        self.is_bounded = bytes_max is not None
        self._bytes_max = bytes_max
        self._taken_bytes = 0
        # By the connection's callback; in order.
        self._waiting: dict[Callable[[], None], int] = {}

    @property
    def taken_bytes(self) -> int:
        return self._taken_bytes

    def take(self, byte_count: int) -> bool:
        """Returns whether the bytes are granted."""
        if self._bytes_max is not None and self._taken_bytes >= self._bytes_max:
            return False
        self._taken_bytes += byte_count
        return True

    def take_anyway(self, byte_count: int) -> None:
        """Counts bytes that a connection brings along."""
        self._taken_bytes += byte_count

    def wait(self, byte_count: int, on_granted: Callable[[], None]) -> None:
        """Calls `on_granted` once the bytes are granted, unless it leaves before."""
        self._waiting[on_granted] = byte_count

    def leave(self, on_granted: Callable[[], None]) -> None:
        self._waiting.pop(on_granted, None)

    def give_back(self, byte_count: int) -> None:
        self._taken_bytes -= byte_count
        while self._waiting:
            on_granted, wanted_bytes = next(iter(self._waiting.items()))
            if not self.take(wanted_bytes):
                return
            del self._waiting[on_granted]
            on_granted()
