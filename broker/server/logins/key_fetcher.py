"""Fetches the keys that sign tokens, and keeps the last good ones while their provider is away.

    at the start, every sasl.oauthbearer.jwks.endpoint.refresh.ms, and for a token by an unknown key
        a file is looked at every FILE_S instead

A fetch runs in a thread, one at a time. Unknown keys cause one fetch in UNKNOWN_KEY_S at most,
however many clients send them: a hostile token must not become requests to the provider. After a
failure the pauses grow as Kafka's do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor

from strandline.broker.security.jwks import KEYS_BYTES_MAX, KeySet, NoKeys, read_keys
from strandline.broker.security.oauth_config import OAuthConfig
from strandline.broker.security.provider_request import read_url
from strandline.storage.clock import Clock
from strandline.storage.concurrency.tasks import result_of, wait_within
from strandline.storage.files import read_named
from strandline.storage.quiet_log import QuietLog

log = logging.getLogger(__name__)

UNKNOWN_KEY_S = 30.0
FILE_S = 10.0
_FILE = "file://"


class KeyFetcher:
    """The keys of one listener's provider; `run` keeps them up to date."""

    def __init__(
        self,
        config: OAuthConfig,
        worker: Executor,
        clock: Clock,
        read: Callable[[], bytes],
        *,
        listener: str,
    ) -> None:
        """`read` returns the key set, in a thread of `worker`; raises OSError or NoKeys."""
        self._config = config
        self._worker = worker
        self._clock = clock
        self._read = read
        self._listener = listener
        self._current = KeySet(())
        self._asked = asyncio.Event()
        self._coming: asyncio.Future[None] | None = None
        self._asked_s = float("-inf")
        self._quiet_log = QuietLog(log, clock)

    @property
    def current(self) -> KeySet:
        """As TokenKeys."""
        return self._current

    def fetched(self) -> Awaitable[None] | None:
        """As TokenKeys."""
        if self._coming is not None:
            return result_of(self._coming)
        now_s = self._clock.monotonic_s()
        if now_s - self._asked_s < UNKNOWN_KEY_S:
            return None
        self._asked_s = now_s
        self._asked.set()
        self._coming = asyncio.get_running_loop().create_future()
        return result_of(self._coming)

    async def run(self) -> None:
        failures = 0
        try:
            while True:
                if self._coming is None:
                    self._coming = asyncio.get_running_loop().create_future()
                self._asked.clear()
                failures = 0 if await self._fetch() else failures + 1
                self._end_wait()
                await wait_within(self._asked, self._pause_s(failures))
        finally:
            self._end_wait()

    def _end_wait(self) -> None:
        if self._coming is not None and not self._coming.done():
            self._coming.set_result(None)
        self._coming = None

    def _pause_s(self, failures: int) -> float:
        config = self._config
        if failures:
            # From 2**30 on the bound holds in any case.
            pause_ms = config.backoff_ms << min(failures - 1, 30)
            return min(pause_ms, config.backoff_ms_max) / 1000
        is_file = config.keys_url is not None and config.keys_url.startswith(_FILE)
        return FILE_S if is_file else config.refresh_ms / 1000

    async def _fetch(self) -> bool:
        """Returns whether there are keys of now."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._worker, self._read_keys)
        except (OSError, NoKeys) as error:
            self._quiet_log.say(
                logging.WARNING,
                "keys of tokens not fetched, the last good ones stay",
                self._listener,
                {
                    "listener": self._listener,
                    "url": self._config.keys_url,
                    "reason": str(error),
                    "keys": len(self._current.keys),
                },
            )
            return False
        if [key.key_id for key in found.keys] != [key.key_id for key in self._current.keys]:
            log.info(
                "keys of tokens fetched",
                extra={"fields": {"listener": self._listener, "keys": len(found.keys)}},
            )
        self._current = found
        return True

    def _read_keys(self) -> KeySet:
        return read_keys(self._read())


def reader_of(config: OAuthConfig, authority: str, clock: Clock) -> Callable[[], bytes]:
    """Returns what reads the key set of a configuration.

    `authority` has certificates in PEM that alone are trusted; empty: those of the system.
    """
    url = config.keys_url or ""
    if url.startswith(_FILE):
        return lambda: read_named(url.removeprefix(_FILE), KEYS_BYTES_MAX)
    return lambda: read_url(url, authority, clock, bytes_max=KEYS_BYTES_MAX)
