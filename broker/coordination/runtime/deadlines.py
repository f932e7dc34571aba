"""One timer queue for all groups: a heap of deadlines.

Each group has at most one valid deadline. Setting an earlier one leaves the later one in the heap,
which is skipped when it is due; a later one is not even set, since an early check costs little and
yields the next deadline.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator


class GroupDeadlines:
    """Deadlines in monotonic milliseconds, by group."""

    def __init__(self) -> None:
        # Pairs of deadline and group id.
        self._heap: list[tuple[int, str]] = []
        self._armed: dict[str, int] = {}

    @property
    def next_ms(self) -> int | None:
        """The earliest possible deadline."""
        return self._heap[0][0] if self._heap else None

    def arm(self, group_id: str, deadline_ms: int) -> bool:
        """Sets the deadline unless an earlier one is set; True if it is now the earliest of all."""
        armed_ms = self._armed.get(group_id)
        if armed_ms is not None and armed_ms <= deadline_ms:
            return False
        self._armed[group_id] = deadline_ms
        heapq.heappush(self._heap, (deadline_ms, group_id))
        return self._heap[0][0] == deadline_ms

    def ring(self, now_ms: int) -> Iterator[str]:
        """Yields the groups that are due; clears their deadlines. Others may be armed meanwhile.

        Those that the caller does not take stay due.
        """
        while self._heap and self._heap[0][0] <= now_ms:
            deadline_ms, group_id = heapq.heappop(self._heap)
            if self._armed.get(group_id) == deadline_ms:
                del self._armed[group_id]
                yield group_id
