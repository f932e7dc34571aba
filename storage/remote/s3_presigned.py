"""URLs that let another process read an object for a while, without the SDK or its credentials.

Only the host is signed, so one URL serves every range of its object. Signing takes half a
millisecond, so a URL is used for REUSED_S.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from strandline.storage.clock import Clock
from strandline.storage.remote.direct_read import DirectRead

# The URL outlives its use here by the time that any request may take.
VALID_S = 900
# Temporary credentials are renewed ten minutes before they end, and a URL ends with what it was
# signed with.
REUSED_S = 300.0
# As many segments as are read at the same time, with room to spare.
URLS_MAX = 512


class PresignedReads:
    """Remembers what `sign` said of a key; thread-safe."""

    def __init__(self, sign: Callable[[str], DirectRead | None], clock: Clock) -> None:
        self._sign = sign
        self._clock = clock
        self._lock = threading.Lock()
        # Key -> how to read it (None: only through the SDK), and when that is found out anew.
        self._sources: OrderedDict[str, tuple[DirectRead | None, float]] = OrderedDict()

    def source(self, key: str) -> DirectRead | None:
        """Where `key` can be read. None if the way there is more than a URL."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            found, until_s = self._sources.get(key, (None, 0.0))
        if now_s < until_s:
            return found
        source = self._sign(key)
        with self._lock:
            self._sources[key] = (source, now_s + REUSED_S)
            self._sources.move_to_end(key)
            while len(self._sources) > URLS_MAX:
                self._sources.popitem(last=False)
        return source
