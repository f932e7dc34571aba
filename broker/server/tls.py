"""The listeners with TLS: their contexts, which renew themselves, and the names of their clients.

    files, each LOOK_S  ──┐
    altered settings      ├─► loaded whole, in a thread ─► may it take the place? ─► swapped
                          ┘                                   └─► no: told, the present one stays

Connections that are open keep what they began with.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping

from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.listener_keys import tls_listeners, tls_of
from strandline.broker.config.running_config import RunningConfig
from strandline.broker.network.handshake import Handshakes
from strandline.broker.network.responses import CloseConnectionError
from strandline.broker.tls.certificate import parse_certificate
from strandline.broker.tls.config import TlsConfig
from strandline.broker.tls.der import MalformedDer
from strandline.broker.tls.mapping_rules import NoRuleMatches
from strandline.broker.tls.renewal import LoadedContext, check_renewal, load, signature_of
from strandline.storage.clock import Clock
from strandline.storage.concurrency.resizable_pool import Pool
from strandline.storage.errors import InvalidConfig

log = logging.getLogger(__name__)

# Kubernetes brings a renewed secret within a minute or two.
LOOK_S = 10.0
DAY_S = 86_400
# How soon altered settings are taken up.
ALTERED_S = 1.0


class TlsListener:
    """One listener: what it serves with at this moment."""

    def __init__(self, name: str, settings: TlsConfig) -> None:
        """Reads its files. Raises InvalidConfig."""
        self.name = name
        self._seen = settings, signature_of(settings)
        # What a look refused last, and why.
        self._told: tuple[object, str] | None = None
        try:
            self.loaded = load(settings)
        except InvalidConfig as error:
            raise InvalidConfig(f"listener {name}: {error}") from None

    def look(self, settings: TlsConfig, now_s: float) -> LoadedContext | None:
        """Loads what has changed since it was loaded last; None if nothing has. In a thread.

        Raises InvalidConfig for what may not take the place of what there is. Each look tries it
        again, because time and rights of access change without the files; it raises once.
        """
        seen = settings, signature_of(settings)
        if seen == self._seen:
            return None
        try:
            renewed = self.try_out(settings, now_s)
        except InvalidConfig as error:
            told, self._told = self._told, (seen, str(error))
            if told == self._told:
                return None
            raise
        self._seen, self._told = seen, None
        return renewed

    def try_out(self, settings: TlsConfig, now_s: float) -> LoadedContext:
        """Loads what may take the place of what there is. In a thread. Raises InvalidConfig."""
        wanted = load(settings)
        check_renewal(self.loaded, wanted, now_s)
        return wanted

    def user_of(self, certificate: bytes, now_s: float) -> str:
        """Returns the user whose certificate it is. Raises CloseConnectionError if it is none's.

        A session of TLS 1.2 may be resumed, and its certificate have expired meanwhile.
        """
        try:
            found = parse_certificate(certificate)
            if found.valid_until_s <= now_s:
                raise CloseConnectionError(f"the certificate of {found.subject!r} has expired")
            return self.loaded.rules.user_of(found.subject)
        except MalformedDer as error:
            raise CloseConnectionError(f"a certificate that cannot be read: {error}") from error
        except NoRuleMatches as error:
            raise CloseConnectionError(str(error)) from error


class TlsListeners:
    """All listeners with TLS."""

    def __init__(self, config: BrokerConfig) -> None:
        """Reads the files of all. Raises InvalidConfig."""
        self.by_name = {
            name: TlsListener(name, tls_of(config, name)) for name in tls_listeners(config)
        }

    def handshakes(self, workers: Pool, clock: Clock, failed_delay_ms: int) -> Handshakes:
        """Makes their handshakes; within the running loop."""
        return Handshakes(self._contexts(), workers, clock, failed_delay_s=failed_delay_ms / 1000)

    def _contexts(self) -> Mapping[str, Callable[[], ssl.SSLContext]]:
        def of(listener: TlsListener) -> Callable[[], ssl.SSLContext]:
            return lambda: listener.loaded.context

        return {name: of(listener) for name, listener in self.by_name.items()}

    def user_of(self, clock: Clock, listener: str, certificate: bytes) -> str:
        """As TlsListener."""
        return self.by_name[listener].user_of(certificate, clock.now_ms() / 1000)

    def days_left(self, clock: Clock) -> Mapping[tuple[str, str], float]:
        """Returns for how many days certificates are valid, by listener and kind."""
        now_s = clock.now_ms() / 1000
        return {
            (name, kind): (end_s - now_s) / DAY_S
            for name, listener in self.by_name.items()
            for kind, end_s in listener.loaded.ends_s.items()
        }

    async def check(self, clock: Clock, present: BrokerConfig, wanted: BrokerConfig) -> None:
        """Raises InvalidConfig if a listener cannot take up settings that were altered."""
        for name, listener in self.by_name.items():
            settings = tls_of(wanted, name)
            if settings != tls_of(present, name):
                await asyncio.to_thread(listener.try_out, settings, clock.now_ms() / 1000)

    async def renew(self, config: BrokerConfig, clock: Clock) -> None:
        """Takes up what has changed in files and settings."""
        for listener in self.by_name.values():
            settings = tls_of(config, listener.name)
            now_s = clock.now_ms() / 1000
            try:
                renewed = await asyncio.to_thread(listener.look, settings, now_s)
            except InvalidConfig as error:
                log.error(
                    "TLS not renewed, the present certificate stays",
                    extra={"fields": {"listener": listener.name, "reason": str(error)}},
                )
                continue
            if renewed is not None:
                listener.loaded = renewed
                log.info(
                    "TLS renewed",
                    extra={
                        "fields": {
                            "listener": listener.name,
                            "certificate": renewed.certificate.subject,
                        }
                    },
                )

    async def renew_forever(self, running: RunningConfig, clock: Clock) -> None:
        """Looks at the files each LOOK_S, and at the settings when they were altered."""
        # What was altered before this start is not in what the listeners were made of.
        looked_s, config = float("-inf"), running.static
        while True:
            now_s = clock.monotonic_s()
            if now_s - looked_s >= LOOK_S or running.current is not config:
                looked_s, config = now_s, running.current
                await self.renew(config, clock)
            await asyncio.sleep(ALTERED_S)
