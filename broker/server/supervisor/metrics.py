"""The metrics listener of several brokers: one address for all of them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeAlias

from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.listeners import HTTPS
from strandline.broker.config.running_config import RunningConfig
from strandline.broker.server.parts.front import http_tls, listen_for_monitoring
from strandline.broker.server.supervisor.pages import MeasuredProcess, MergedPages
from strandline.broker.telemetry.http_server import HttpTls, MetricsServer
from strandline.storage.clock import SystemClock
from strandline.storage.concurrency.resizable_pool import ResizablePool

# What runs beside the processes.
Loop: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


class SupervisorMetrics:
    """Their listener, if there is one."""

    def __init__(
        self, config: BrokerConfig, processes: Sequence[MeasuredProcess], unready: Callable[[], str]
    ) -> None:
        """Within the running loop. Raises InvalidConfig."""
        self._listener = config.metrics.listener
        self._pages = MergedPages(processes)
        self.loops: list[Loop] = []
        self._server = MetricsServer(self._pages.page, unready, self._tls(config))

    async def listen(self) -> None:
        """Raises CannotListen."""
        if self._listener is not None:
            await listen_for_monitoring(self._server, self._listener)

    def close(self) -> None:
        self._server.close()
        self._pages.close()

    def _tls(self, config: BrokerConfig) -> HttpTls | None:
        if config.metrics.listener is None or config.metrics.listener.name != HTTPS:
            return None
        from strandline.broker.server.tls import TlsListeners

        tls, clock = TlsListeners(config), SystemClock()
        workers = ResizablePool(1, "handshakes")
        self.loops.append(partial(tls.renew_forever, RunningConfig(config), clock))
        return http_tls(tls.handshakes(workers, clock, config.sasl.failed_delay_ms))
