"""Archived records for followers that cannot read the archive, as a broker of Apache Kafka.

A follower with this archive begins behind its end (KIP-405, KIP-1023). Another one has to get all
of the log over the network, or it would never be in sync: a partition could not go back to it.

    fetch of an archived offset ──► a read of the store begins, the answer is empty
                     it is there ──► the session looks at the partition again, and answers it
"""

from __future__ import annotations

import asyncio
from typing import Final

from strandline.broker.cluster.replicas.partition import Partition
from strandline.broker.handlers.fetch.replica_sessions import (
    BegunColdRead,
    FollowedPartition,
    ReplicaSession,
)
from strandline.storage.concurrency.tasks import eager_start
from strandline.storage.errors import RecordsRejected, StorageError
from strandline.storage.model import Offset
from strandline.storage.tiering.log.cold_read import RemoteRead
from strandline.storage.tiering.log.unified_log import UnifiedLog

# Of one session. What they found waits in memory for its fetch: 1 MiB each by default.
READS_MAX: Final = 4


def read_for(
    session: ReplicaSession, one: FollowedPartition, partition: Partition, bytes_max: int
) -> RemoteRead | None:
    """Returns the archived records that the follower wants; None while they are to come.

    The session has news of the partition then. Raises RecordsRejected, StorageError.
    """
    reads, offset = session.cold_reads, one.fetch_offset
    begun = reads.get(one)
    if begun is not None and begun.offset != offset:
        session.drop_cold_read(one)
        begun = None
    if begun is None:
        if len(reads) >= READS_MAX:
            return None
        begun = BegunColdRead(offset, eager_start(_outcome(partition.log, offset, bytes_max)))
        if not begun.outcome.done():
            reads[one] = begun
            begun.outcome.add_done_callback(lambda done: _came(session, one, done))
    if not begun.outcome.done():
        return None
    reads.pop(one, None)
    outcome = begun.outcome.result()
    if isinstance(outcome, RemoteRead):
        return outcome
    raise outcome


def _came(session: ReplicaSession, one: FollowedPartition, done: asyncio.Task[object]) -> None:
    begun = session.cold_reads.get(one)
    if begun is None or begun.outcome is not done:
        # Nobody wants it any more.
        return
    session.dirty[one] = None
    if session.on_news is not None:
        session.on_news(None)


async def _outcome(
    log: UnifiedLog, offset: Offset, bytes_max: int
) -> RemoteRead | RecordsRejected | StorageError:
    try:
        return await log.read_remote(offset, bytes_max=bytes_max)
    except (RecordsRejected, StorageError) as error:
        # Its frames reference the task that holds it: a cycle that would keep the fetched data.
        error.__traceback__ = None
        return error
