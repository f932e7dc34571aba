"""One fetch on its way: what is wanted, and what a look at the partitions found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from strandline.broker.cluster.replicas.partition import Partition
from strandline.broker.handlers.services.fetch_sessions import FetchSession, WantedPartition
from strandline.broker.protocol.messages.fetch import FetchResponsePartition
from strandline.storage.model import Isolation

FIRST_VERSION_WITH_ZSTD = 10


@dataclass(slots=True)
class FetchPlan:
    """One fetch while it is served."""

    version: int
    correlation_id: int
    user: str
    client_id: str
    # When it was taken up; later, when its waiting was over.
    started_s: float
    wanted: Sequence[WantedPartition]
    session: FetchSession | None
    incremental: bool
    isolation: Isolation
    bytes_max: int
    min_bytes: int
    wait_ms_max: int


@dataclass(slots=True)
class FetchPass:
    """What one look at the partitions found."""

    answers: list[tuple[WantedPartition, FetchResponsePartition]] = field(default_factory=list)
    # Partitions whose records are in the archive: where the answer stands, which, from where.
    remote: list[tuple[int, Partition, int]] = field(default_factory=list)
    total_bytes: int = 0
    # A batch did not fit into what the whole answer may hold: no later partition is read.
    is_full: bool = False
    must_answer: bool = False
