"""Cold reads that come to nothing: for how long a reader has asked for one offset in vain.

An empty answer is right for a store that is away for a moment: an error would make clients refresh
their metadata for nothing. After some seconds it is a lie, since there are records: then the reader
gets KAFKA_STORAGE_ERROR, which its client retries and may report.
"""

from __future__ import annotations

from typing import TypeAlias

from strandline.storage.model import Offset, TopicPartition

# A store that refuses was asked several times by then, also by the attempts of each request.
UNAVAILABLE_S = 5.0
# A large chunk from a slow store may take as long; a store that answers nothing takes for ever.
LATE_S = 30.0
# A reader that asks again later than this has been elsewhere meanwhile.
ASKS_AGAIN_S = 60.0
# Many more readers than there are threads to read for them.
READERS_MAX = 10_000

ReadKey: TypeAlias = tuple[TopicPartition, Offset]


class UnansweredReads:
    """Remembers, for each offset that was asked for in vain, since when and until when it was."""

    def __init__(self) -> None:
        self._asked_s: dict[ReadKey, tuple[float, float]] = {}

    def unanswered(self, key: ReadKey, now_s: float) -> float:
        """Notes one more read in vain; returns the seconds since the first."""
        first_s, last_s = self._asked_s.pop(key, (now_s, now_s))
        if now_s - last_s > ASKS_AGAIN_S:
            first_s = now_s
        # At the end: the first ones are those that were noted least recently.
        self._asked_s[key] = first_s, now_s
        if len(self._asked_s) > READERS_MAX:
            del self._asked_s[next(iter(self._asked_s))]
        return now_s - first_s

    def answered(self, key: ReadKey) -> None:
        self._asked_s.pop(key, None)

    def __len__(self) -> int:
        return len(self._asked_s)
