"""Services of the broker for its handlers: one bundle, made by the composition root."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import NamedTuple

from strandline.broker.authorization.authorizer import EVERY_RIGHT, Access, Authorizer
from strandline.broker.cluster.metadata.controller_messages import Controller, TopicDefaults
from strandline.broker.cluster.metadata.view import MetadataView
from strandline.broker.cluster.replicas.replica_manager import ReplicaManager
from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.running_config import RunningConfig
from strandline.broker.quotas.cold_pace import ColdPace
from strandline.broker.quotas.quotas import ClientQuotas
from strandline.broker.security.identity import ANONYMOUS_CLIENT, ClientIdentity
from strandline.broker.telemetry.requests import RequestTraffic
from strandline.storage.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeServices:
    """A node as handlers see it that need no records: a broker, or a controller."""

    running: RunningConfig
    metadata: MetadataView
    controller: Controller
    quotas: ClientQuotas
    traffic: RequestTraffic
    clock: Clock
    # Runs work that decompresses, compresses or reads records.
    records: Executor
    # None: every client may do everything.
    authorizer: Authorizer | None = None
    # Raises InvalidConfig if a listener cannot take up altered settings: those of now, and wanted.
    check_tls: Callable[[BrokerConfig, BrokerConfig], Awaitable[None]] | None = None

    @property
    def config(self) -> BrokerConfig:
        """The configuration in force: read again each time, as keys may be altered."""
        return self.running.current

    @property
    def topic_defaults(self) -> TopicDefaults:
        """The current defaults for topics without own settings."""
        return self.running.current.topics


@dataclass(frozen=True, slots=True, kw_only=True)
class Services(NodeServices):
    """The broker as its handlers see it."""

    replicas: ReplicaManager
    cold_pace: ColdPace


class RequestContext(NamedTuple):
    """The client and the version of a request."""

    api_version: int
    client_id: str
    caller: ClientIdentity = ANONYMOUS_CLIENT
    # The rights of the client.
    access: Access = EVERY_RIGHT
    # The other end of the connection: address and port.
    peer: str = ""
