"""Where objects can be read, as it was found out a little while ago."""

from __future__ import annotations

from collections import OrderedDict

from strandline.storage.remote.object_store.direct_read import DirectRead


class KnownSources:
    """At most `count_max` keys, each for `known_s`. Whoever has several threads holds a lock.

    A source of None is known, too: the object can be read through the store alone.
    """

    __slots__ = ("_count_max", "_known", "_known_s")

    def __init__(self, *, known_s: float, count_max: int) -> None:
        self._known_s = known_s
        self._count_max = count_max
        # Key -> its source, and until when that is believed.
        self._known: OrderedDict[str, tuple[DirectRead | None, float]] = OrderedDict()

    def note(self, key: str, source: DirectRead | None, now_s: float) -> None:
        """Forgets the key that was noted longest ago when there are too many."""
        self._known[key] = source, now_s + self._known_s
        self._known.move_to_end(key)
        if len(self._known) > self._count_max:
            self._known.popitem(last=False)

    def find(self, key: str, now_s: float) -> tuple[bool, DirectRead | None]:
        """Whether it is known, and the source."""
        source, until_s = self._known.get(key, (None, 0.0))
        return now_s < until_s, source
