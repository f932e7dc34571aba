"""The broker's threads, all bounded, each pool for one kind of waiting.

    folders (1 each)  a log folder each: logs made, deleted and revived, checkpoints, unlinks
    syncs (8 each) flushes of the logs of a folder; those of different logs share the device
    disk (1)       the start and the stop; the time that retention trusts
    metadata (1)   appends to the metadata log
    manifests (4)  manifests, the mirror of the metadata log; 16 while a start waits for them
    changes (1)    the archive's list of changes, written or read
    probes (1)     whether the store answers: never behind what it does not answer
    lookups (2)    offsets by time
    records (2)    appends that decompress batches or check each record
    copier (remote.log.manager.copier.thread.pool.size)  uploads
    reader (remote.log.reader.threads)  cold reads
    expiration (remote.log.manager.expiration.thread.pool.size)  deletes in the archive
    cleaner (log.cleaner.threads)  one compacting child process each
    decoding (1)   large requests
    handshakes (2)  of TLS
    moves (1)      copies of partitions for another log folder
    logins (1)     keys of the providers of tokens, and files of users
    record (1)     lines of the record of who did what

They are made with the environment of a broker, and ended with it. `process.py` has one more, for
what asyncio itself runs in a thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TypeAlias

from strandline.broker.config.broker_config import BrokerConfig
from strandline.storage.concurrency.resizable_pool import Pool

# Manifests and topic.json are small: a few at a time, and never behind a copy.
MANIFEST_THREADS = 4
# No client is served yet, and each thread waits for the store: as many as tiering loads at once.
MANIFEST_THREADS_AT_START = 16
# ListOffsets by time decompresses a batch of each partition.
LOOKUP_THREADS = 2
# An fsync waits for the device alone; ten at once take little longer than one.
SYNC_THREADS = 8
# Codecs release the GIL while they work, so a second thread helps; each may hold a whole
# decompressed batch.
RECORD_THREADS = 2
# A step of a handshake is OpenSSL's, which releases the GIL meanwhile.
HANDSHAKE_THREADS = 2

MakePool: TypeAlias = Callable[[int, str], Pool]


class FolderPools:
    """A pool for each log folder: a disk that hangs holds up its own."""

    def __init__(self, pool: MakePool, size: int, name: str) -> None:
        self._pool = pool
        self._size = size
        self._name = name
        self._pools: dict[Path, Pool] = {}

    def of(self, folder: Path) -> Pool:
        if folder not in self._pools:
            self._pools[folder] = self._pool(self._size, f"{self._name}-{len(self._pools)}")
        return self._pools[folder]

    def shutdown(self, *, wait: bool, cancel_futures: bool) -> None:
        for pool in self._pools.values():
            pool.shutdown(wait=wait, cancel_futures=cancel_futures)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """All pools of the broker, in the order in which they are stopped."""

    decoding: Pool
    handshakes: Pool
    reader: Pool
    lookups: Pool
    records: Pool
    copier: Pool
    expiration: Pool
    cleaner: Pool
    manifests: Pool
    changes: Pool
    probes: Pool
    moves: Pool
    logins: Pool
    record: Pool
    metadata: Pool
    syncs: FolderPools
    disk: Pool
    folders: FolderPools

    @classmethod
    def make(cls, config: BrokerConfig, pool: MakePool) -> Workers:
        """`pool` makes one of a size and a name."""
        return cls(
            disk=pool(1, "disk"),
            folders=FolderPools(pool, 1, "folder"),
            syncs=FolderPools(pool, SYNC_THREADS, "syncs"),
            metadata=pool(1, "metadata"),
            copier=pool(config.tiering.workers, "copier"),
            lookups=pool(LOOKUP_THREADS, "lookups"),
            records=pool(RECORD_THREADS, "records"),
            manifests=pool(MANIFEST_THREADS, "manifests"),
            changes=pool(1, "changes"),
            probes=pool(1, "probes"),
            reader=pool(config.cold_reader.parallel_downloads_max, "reader"),
            expiration=pool(config.tiering.expiration_threads, "expiration"),
            cleaner=pool(max(1, config.cleaner.threads), "cleaner"),
            decoding=pool(1, "decoding"),
            handshakes=pool(HANDSHAKE_THREADS, "handshakes"),
            moves=pool(1, "moves"),
            logins=pool(1, "logins"),
            record=pool(1, "record"),
        )

    def resize(self, config: BrokerConfig) -> None:
        """Adopts altered pool sizes while the broker runs."""
        self.copier.resize(config.tiering.workers)
        self.reader.resize(config.cold_reader.parallel_downloads_max)
        self.expiration.resize(config.tiering.expiration_threads)

    def remote_pools(self) -> dict[str, Pool]:
        """Returns the pools of the remote tier, by name."""
        return {"copier": self.copier, "reader": self.reader, "expiration": self.expiration}

    def stop(self) -> None:
        """Ends the threads without waiting for running work."""
        for pool in fields(self):
            getattr(self, pool.name).shutdown(wait=False, cancel_futures=True)
