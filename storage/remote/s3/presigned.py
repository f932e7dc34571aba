"""URLs that let another process read an object for a while, without the SDK or its credentials.

Only the host is signed, so one URL serves every range of its object. A URL is used for REUSED_S;
the first is signed by the SDK, and those like it without (`s3_signing`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from strandline.storage.clock import Clock
from strandline.storage.remote.object_store.direct_read import DirectRead
from strandline.storage.remote.object_store.known_sources import KnownSources
from strandline.storage.remote.s3.signing import Secrets, UrlSigner

# The URL outlives its use here by the time that any request may take.
VALID_S = 900
# Temporary credentials are renewed ten minutes before they end, and a URL ends with what it was
# signed with.
REUSED_S = 300.0
# Two for each segment that is read at the same time, with room to spare.
URLS_MAX = 1024


class PresignedReads:
    """Remembers what `sign` said of a key; thread-safe.

    `secrets` are what URLs are signed with now, and `full_key` is what they call a key.
    """

    def __init__(
        self,
        sign: Callable[[str], DirectRead | None],
        secrets: Callable[[], Secrets | None],
        full_key: Callable[[str], str],
        clock: Clock,
    ) -> None:
        self._sign = sign
        self._secrets = secrets
        self._full_key = full_key
        # The first source, and who signs URLs like its own.
        self._learned: tuple[DirectRead, UrlSigner] | None = None
        self._clock = clock
        self._lock = threading.Lock()
        self._sources = KnownSources(known_s=REUSED_S, count_max=URLS_MAX)

    def source(self, key: str) -> DirectRead | None:
        """Where `key` can be read. None if the way there is more than a URL."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            is_known, source = self._sources.find(key, now_s)
        if is_known:
            return source
        source = self._new_source(key)
        with self._lock:
            self._sources.note(key, source, now_s)
        return source

    def _new_source(self, key: str) -> DirectRead | None:
        learned = self._learned
        if learned is None:
            source = self._sign(key)
            secrets = None if source is None else self._secrets()
            if source is not None and secrets is not None:
                signer = UrlSigner.like(source.url, self._full_key(key), secrets)
                self._learned = None if signer is None else (source, signer)
            return source
        secrets = self._secrets()
        if secrets is None:
            return self._sign(key)
        source, signer = learned
        return source._replace(url=signer.url(self._full_key(key), secrets, self._clock.now_ms()))
