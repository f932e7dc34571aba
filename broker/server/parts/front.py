"""What clients of a broker meet: listeners, handlers of their requests, and the metrics page."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.listener_keys import tls_listeners
from strandline.broker.config.listeners import HTTPS, CannotListen, Listener, listen_at
from strandline.broker.config.running_config import RunningConfig
from strandline.broker.handlers.auth.failed_logins import FailedLogins
from strandline.broker.handlers.fetch.fetch import FetchHandler
from strandline.broker.handlers.fetch.sessions import FetchSessionCache
from strandline.broker.handlers.services.services import Services
from strandline.broker.handlers.wiring import make_dispatcher
from strandline.broker.network.cold_scheduling import ColdSchedule
from strandline.broker.network.connection import Spawn
from strandline.broker.network.server import Server
from strandline.broker.server.environment import Environment
from strandline.broker.server.logins.sasl import ConnectionHandlers
from strandline.broker.server.parts.coordinators import CoordinatorParts
from strandline.broker.server.parts.logs import LogParts
from strandline.broker.server.parts.metadata import MetadataParts
from strandline.broker.server.parts.part import Front
from strandline.broker.server.parts.storage import StorageParts
from strandline.broker.telemetry.collector import metrics_page
from strandline.broker.telemetry.http_server import HttpTls, MetricsServer
from strandline.broker.telemetry.requests import RequestTraffic
from strandline.broker.telemetry.sources import ArchiveSources, Sources, TlsSources
from strandline.storage.clock import Clock
from strandline.storage.local.log_dirs.log_dirs import LogDirs
from strandline.storage.model import Offset

if TYPE_CHECKING:
    from strandline.broker.audit.record import AuditRecord
    from strandline.broker.cluster.membership.brokers import OtherBrokers
    from strandline.broker.cluster.membership.envelope import Forwarder
    from strandline.broker.cluster.replicas.replica_manager import ReplicaManager
    from strandline.broker.network.handshake import Handshakes
    from strandline.broker.server.parts.record import KeptRecord
    from strandline.broker.server.tls import TlsListeners

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontParts(Front):
    """The listeners; those of clients and that of the metrics."""

    running: RunningConfig
    server: Server
    metrics: MetricsServer
    # Who did what, if that is recorded.
    record: KeptRecord | None
    # Its supervisor has the metrics of all processes at their address.
    is_supervised: bool

    @classmethod
    def make(
        cls,
        environment: Environment,
        storage: StorageParts,
        metadata: MetadataParts,
        coordinators: CoordinatorParts,
        logs: LogParts,
        *,
        spawn: Spawn,
        archive: ArchiveSources | None = None,
        forwarder: Forwarder | None = None,
        followed: Callable[[], Offset] | None = None,
        others: OtherBrokers | None = None,
        throttled_rates: Mapping[str, Callable[[], float]] | None = None,
    ) -> FrontParts:
        """`spawn` starts the tasks of connections. Without an `archive` its metrics are none; with
        a `forwarder` another node decides on the metadata, and `followed` tells up to where they
        are known here. `others` are those of a cluster, and `throttled_rates` those of replicas.
        """
        clock, running = environment.clock, metadata.running
        traffic, failed_logins = RequestTraffic(), FailedLogins(clock)
        kept = kept_record(environment, metadata, replicas=logs.replicas, others=others)
        record = None if kept is None else kept.record
        authorizer = metadata.authorizer
        tls = tls_of(running.static)
        services = Services(
            running=running,
            metadata=metadata.metadata,
            controller=metadata.controller,
            replicas=logs.replicas,
            quotas=metadata.quotas,
            traffic=traffic,
            clock=clock,
            cold_pace=metadata.cold_pace,
            records=environment.workers.records,
            authorizer=authorizer,
            check_tls=None if tls is None else partial(tls.check, clock),
        )
        sessions = FetchSessionCache(
            running.static.fetch.sessions_max, clock, name_of=metadata.metadata.topic_name
        )
        fetch = _fetch_handler(services, sessions, record)
        dispatcher = make_dispatcher(
            services,
            fetch,
            groups=coordinators.groups,
            transactions=coordinators.transactions,
            markers=coordinators.markers,
            log_dirs=storage.log_dirs,
            moves=logs.moves,
            advertised=running.advertised,
            decoding=environment.workers.decoding,
            record=record,
            forwarder=forwarder,
            listener_of_brokers=None if others is None else others.listener,
        )
        handlers = ConnectionHandlers(
            running.static,
            dispatcher,
            metadata.metadata,
            clock,
            failed_logins,
            worker=environment.workers.logins,
            record=record,
            user_of=None if tls is None else partial(tls.user_of, clock),
        )
        handshakes = (
            None
            if tls is None
            else tls.handshakes(
                environment.workers.handshakes, clock, running.static.sasl.failed_delay_ms
            )
        )
        server = Server(
            handlers,
            limits=lambda: running.current.network,
            admit=metadata.quotas.connected,
            pace=lambda listener: metadata.quotas.accepted(
                listener, running.current.connection_rates
            ),
            clock=clock,
            spawn=spawn,
            network=environment.network,
            cold_turns=ColdSchedule(metadata.cold_pace, clock.monotonic_s),
            handshakes=handshakes,
        )
        sources = Sources(
            clock=clock,
            requests=traffic,
            server=server,
            failed_logins=failed_logins.by_address,
            metadata=metadata.metadata,
            replicas=logs.replicas,
            groups=coordinators.groups,
            transactions=coordinators.transactions,
            late_transactions=lambda: coordinators.late.partition_count,
            open_transaction_s=coordinators.late.open_s,
            sessions=sessions,
            parked_fetches=lambda: fetch.parked_count,
            log_dirs=storage.log_dirs,
            partitions_max=running.static.metrics.partitions_max,
            cold_pace=metadata.cold_pace,
            cleaner=logs.cleaner.figures,
            archive=archive,
            tls=None if tls is None or handshakes is None else tls_sources(tls, handshakes, clock),
            authorizer=authorizer,
            lost_lines=None if kept is None else lambda: kept.lost_count,
            followed=followed,
            throttled_rates=throttled_rates or {},
        )
        return cls(
            running=running,
            server=server,
            record=kept,
            is_supervised=environment.is_supervised,
            metrics=MetricsServer(
                partial(metrics_page, sources),
                partial(_why_not_ready, server, storage.log_dirs),
                None if handshakes is None else http_tls(handshakes),
            ),
            loops={
                "connection sweep": server.sweep_forever,
                "request windows": traffic.turn_forever,
                "requests": dispatcher.run,
                **handlers.loops,
                **({} if kept is None else kept.loops),
                **({} if tls is None else {"TLS": partial(tls.renew_forever, running, clock)}),
            },
        )

    @property
    def listener(self) -> Listener:
        return self.running.static.listeners[0]

    async def listen(self) -> None:
        """Serves clients, and /metrics at strandline.metrics.listener. Raises CannotListen."""
        config = self.running.static
        if config.metrics.listener is not None and not self.is_supervised:
            await listen_for_monitoring(self.metrics, config.metrics.listener)
        # Without a wait behind it: a client that connects needs the group of tasks.
        self.running.bind(listen_at(config.listeners, self.server.listen))

    def observe(self, connected: socket.socket) -> None:
        self.metrics.attend(connected)

    def stop_serving(self) -> None:
        """Stops accepting, and drops the connections; the page says that the broker stops."""
        self.server.close()

    async def end(self) -> None:
        self.metrics.close()
        if self.record is not None:
            # Its topic is a log like others.
            await self.record.close()


async def listen_for_monitoring(metrics: MetricsServer, listener: Listener) -> None:
    """Raises CannotListen."""
    try:
        port = await metrics.listen(listener.host, listener.port)
    except OSError as error:
        raise CannotListen(f"cannot listen at {listener}: {error.strerror}") from error
    log.info(
        "metrics are served",
        extra={"fields": {"host": listener.host or "0.0.0.0", "port": port}},
    )


def kept_record(
    environment: Environment,
    metadata: MetadataParts,
    *,
    replicas: ReplicaManager | None,
    others: OtherBrokers | None = None,
) -> KeptRecord | None:
    """Opens the record, if there is one; its topic needs `replicas`. Raises InvalidConfig."""
    config = metadata.running.static.audit
    if not config.is_enabled:
        return None
    from strandline.broker.server.parts.record import KeptRecord

    return KeptRecord(
        config,
        environment.clock,
        metadata.denials,
        environment.workers.record,
        replicas=replicas,
        controller=metadata.controller,
        others=others,
    )


def _fetch_handler(
    services: Services, sessions: FetchSessionCache, record: AuditRecord | None
) -> FetchHandler:
    if record is None:
        return FetchHandler(services, sessions)
    from strandline.broker.handlers.audit.traffic import RecordedFetch

    return RecordedFetch(services, sessions, record)


def check_listeners(config: BrokerConfig) -> None:
    """Raises InvalidConfig for listeners that nobody could come in by."""
    tls_of(config)


def tls_of(config: BrokerConfig) -> TlsListeners | None:
    """Returns the listeners with TLS, None if there is none. Raises InvalidConfig."""
    if not tls_listeners(config):
        return None
    from strandline.broker.server.tls import TlsListeners

    return TlsListeners(config)


def tls_sources(tls: TlsListeners, handshakes: Handshakes, clock: Clock) -> TlsSources:
    """Returns what the page has of TLS."""
    return TlsSources(
        done=lambda: handshakes.done,
        failed=lambda: handshakes.failed,
        days_left=partial(tls.days_left, clock),
    )


def http_tls(handshakes: Handshakes) -> HttpTls | None:
    """Returns what encrypts the metrics; None if they are served in the clear."""
    if not handshakes.are_needed(HTTPS):
        return None
    return HttpTls(
        context=partial(handshakes.context, HTTPS),
        on_done=partial(handshakes.count, HTTPS),
        on_failed=partial(handshakes.fail_by, HTTPS),
    )


def _why_not_ready(server: Server, log_dirs: LogDirs) -> str:
    """Returns why clients cannot be served; empty if they can."""
    if not server.is_listening:
        return "stopping"
    if log_dirs.are_offline:
        return "every log folder is offline"
    return ""
