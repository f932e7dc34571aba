"""What handlers may ask: one bundle, made by the composition root."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass

from strandline.broker.cluster.metadata import Metadata
from strandline.broker.cluster.replica_manager import ReplicaManager
from strandline.broker.config import BrokerConfig
from strandline.broker.handlers.fetch_sessions import FetchSessionCache
from strandline.storage.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The broker as its handlers see it."""

    config: BrokerConfig
    metadata: Metadata
    replicas: ReplicaManager
    sessions: FetchSessionCache
    clock: Clock
    # Runs what decompresses, compresses or looks at records.
    records: Executor


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """Who asks, in which version."""

    api_version: int
    client_id: str
    peer: str
