"""The metadata of the controllers, followed as an observer of their log (KIP-595, KIP-630).

    Fetch of __cluster_metadata-0   records           ─► MetadataReplay ─► MetadataView
                                    diverging epoch   ─► cut back
                                    a snapshot's id   ─► FetchSnapshot, in pieces ─► restart
                                    another leader    ─► Quorum: ask that one

Nothing is kept on the disk: a start reads the log again, from the controllers' last snapshot.

The feed finds the active controller for all of this broker, because its answers have the epoch: it
begins with the bootstrap servers, each of which names the leader that it knows.
"""

from __future__ import annotations

import asyncio
import logging
import math
import uuid
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Final

from strandline.broker.cluster.membership.channel import RETRIES
from strandline.broker.cluster.membership.quorum import ActiveNode, Quorum
from strandline.broker.cluster.membership.replay import Applied, MetadataReplay
from strandline.broker.cluster.metadata.topic_names import METADATA_TOPIC
from strandline.broker.cluster.metadata.view import MetadataView
from strandline.broker.peers.address import Address
from strandline.broker.peers.errors import PeerError, PeerRefused
from strandline.broker.peers.peer import Connect, Peer
from strandline.broker.protocol.messages.fetch import (
    FetchPartition,
    FetchReplicaState,
    FetchRequest,
    FetchResponse,
    FetchResponsePartition,
    FetchSnapshotId,
    FetchTopic,
)
from strandline.broker.protocol.messages.fetch_snapshot import (
    FetchSnapshotPartition,
    FetchSnapshotPartitionResult,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    FetchSnapshotTopic,
    SnapshotId,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.clock import Clock
from strandline.storage.errors import StorageError, StrandlineError
from strandline.storage.model import Offset
from strandline.storage.quiet_log import QuietLog

log = logging.getLogger(__name__)

METADATA_TOPIC_ID: Final = uuid.UUID(int=1)
# Kafka's controller.quorum.fetch.timeout.ms is 2 s: it has to hear from us within.
WAIT_MS_MAX: Final = 500
# Its controller.quorum.request.timeout.ms: one that stands still is left for the next one, long
# before the session of this broker ends.
ANSWER_S_MAX: Final = 2.0
PIECE_S_MAX: Final = 10.0
FETCH_BYTES_MAX: Final = 8 * 1024 * 1024
# Millions of partitions.
SNAPSHOT_BYTES_MAX: Final = 1024 * 1024 * 1024
_SESSIONLESS: Final = -1
_NOWHERE: Final = -1


class OtherCluster(StrandlineError):
    """The controllers are those of another cluster."""


class _Doubtful(Exception):
    """The node that was asked is not the active controller, or does not answer as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observer:
    """Who follows: a broker, and the cluster that it belongs to."""

    node_id: int
    directory_id: uuid.UUID
    cluster_id: str


class MetadataFeed:
    """Follows the log of the controllers, and publishes what it says."""

    def __init__(
        self,
        observer: Observer,
        quorum: Quorum,
        connect: Connect,
        clock: Clock,
        *,
        view: MetadataView,
        executor: Executor,
    ) -> None:
        """`executor` decodes what was fetched."""
        self._observer = observer
        self._quorum = quorum
        self._connect = connect
        self._clock = clock
        self._view = view
        self._executor = executor
        self._replay = MetadataReplay(observer.cluster_id)
        self._peer: Peer | None = None
        self._failures = 0
        self._quiet_log = QuietLog(log, clock)
        self._moved = asyncio.Event()
        self._high_watermark: Offset = -1
        # Its publication failed, and is tried again.
        self._unpublished: Applied | None = None
        self._published_offset: Offset = -1
        # When this broker last knew all that was committed; a stopped process has not heard since.
        self.caught_up_s = -math.inf
        # Why there is no active controller; empty while there is one.
        self.last_fault = ""

    def __repr__(self) -> str:
        return f"<MetadataFeed {self._replay!r} high watermark={self._high_watermark}>"

    @property
    def applied_offset(self) -> Offset:
        """The last record whose change is published; -1 before the first one."""
        return self._published_offset

    async def caught_up(self) -> None:
        """Returns when all that was committed at the first answer is published."""
        await self.until(lambda: 0 <= self._high_watermark - 1 <= self.applied_offset)

    async def reached(self, offset: Offset) -> None:
        """Returns when the record at that offset is published, or a later one."""
        await self.until(lambda: self.applied_offset >= offset)

    async def until(self, is_there: Callable[[], bool]) -> None:
        """Returns when that is so, asked after each publication."""
        while not is_there():
            await self._moved.wait()

    async def run(self) -> None:
        """Follows for ever. Raises OtherCluster, and StorageError for metadata it cannot read."""
        try:
            while True:
                await self._step()
        finally:
            self.close()

    def close(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None

    async def _step(self) -> None:
        active = self._quorum.active
        address = self._quorum.next_server() if active is None else active.address
        try:
            await self._fetch(address)
        except (PeerError, _Doubtful) as error:
            self._failures += 1
            self.last_fault = str(error)
            if active is not None:
                self._quorum.doubt(active)
            if isinstance(error, PeerError):
                self._say(address, error)
            await asyncio.sleep(RETRIES.wait_s(self._failures))
        else:
            self._failures, self.last_fault = 0, ""

    # --- one fetch ---------------------------------------------------------------------------

    async def _fetch(self, address: Address) -> None:
        answer = await self._peer_at(address).call(
            self._request(), FetchResponse, timeout_s=ANSWER_S_MAX
        )
        if answer.error_code:
            raise self._fault(address, answer.error_code)
        partition = _only_partition(answer)
        self._note_leader(partition, answer, address)
        if partition.error_code:
            code = ErrorCode(partition.error_code)
            if self._quorum.active is not None and code in _NAMES_LEADER:
                return
            raise _Doubtful(f"{address}: {code.name}")
        active = self._quorum.active
        if active is None or active.address != address:
            # It was deposed while it answered.
            raise _Doubtful(f"{address} is not the active controller")
        await self._take(partition, active)

    def _request(self) -> FetchRequest:
        replay = self._replay
        return FetchRequest(
            cluster_id=self._observer.cluster_id,
            replica_state=FetchReplicaState(replica_id=self._observer.node_id),
            replica_id=self._observer.node_id,
            max_wait_ms=WAIT_MS_MAX,
            min_bytes=0,
            max_bytes=FETCH_BYTES_MAX,
            session_epoch=_SESSIONLESS,
            topics=[
                FetchTopic(
                    name=METADATA_TOPIC,
                    topic_id=METADATA_TOPIC_ID,
                    partitions=[
                        FetchPartition(
                            partition=0,
                            current_leader_epoch=self._quorum.epoch,
                            fetch_offset=replay.next_offset,
                            last_fetched_epoch=replay.last_epoch,
                            partition_max_bytes=FETCH_BYTES_MAX,
                            replica_directory_id=self._observer.directory_id,
                            high_watermark=max(self._high_watermark, 0),
                        )
                    ],
                )
            ],
        )

    def _note_leader(
        self, partition: FetchResponsePartition, answer: FetchResponse, asked: Address
    ) -> None:
        leader = partition.current_leader
        if leader is None:
            return
        found = (one for one in answer.node_endpoints if one.node_id == leader.leader_id)
        addresses = [Address(one.host, one.port) for one in found]
        if not partition.error_code:
            # Who answers is the leader, by whichever of its names it was reached.
            addresses = [asked]
        self._quorum.note(
            leader.leader_id, leader.leader_epoch, addresses[0] if addresses else None
        )

    async def _take(self, partition: FetchResponsePartition, active: ActiveNode) -> None:
        snapshot, diverging = partition.snapshot_id, partition.diverging_epoch
        in_worker = asyncio.get_running_loop().run_in_executor
        if snapshot is not None and snapshot.end_offset != _NOWHERE:
            content = await self._fetch_snapshot(snapshot, active)
            applied: Applied | None = await in_worker(
                self._executor,
                partial(self._replay.restart, content, snapshot.end_offset, snapshot.epoch),
            )
            log.info(
                "metadata read from a snapshot",
                extra={"fields": {"offset": snapshot.end_offset, "bytes": len(content)}},
            )
        elif diverging is not None and diverging.end_offset != _NOWHERE:
            self._replay.cut(diverging.end_offset, diverging.epoch)
            return
        else:
            fetched = b"".join(bytes(part) for part in partition.records)  # type: ignore[arg-type]
            applied = await in_worker(
                self._executor, partial(self._replay.take, fetched, partition.high_watermark)
            )
        self._high_watermark = max(self._high_watermark, partition.high_watermark)
        if applied is not None:
            self._unpublished = applied
        await self._publish()

    async def _publish(self) -> None:
        applied = self._unpublished
        if applied is not None:
            try:
                await self._view.take_over(applied.image, applied.delta)
            except StorageError as error:
                # The view gives the same changes to all with the next ones.
                fields = {"reason": str(error)}
                self._quiet_log.say(logging.WARNING, "metadata not applied", "publish", fields)
                return
            self._unpublished = None
        self._published_offset = self._replay.applied_offset
        if self._published_offset >= self._high_watermark - 1:
            self.caught_up_s = self._clock.monotonic_s()
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    # --- snapshots ---------------------------------------------------------------------------

    async def _fetch_snapshot(self, found: FetchSnapshotId, active: ActiveNode) -> bytes:
        content = bytearray()
        while True:
            answer = await self._peer_at(active.address).call(
                self._snapshot_request(found, active, len(content)),
                FetchSnapshotResponse,
                timeout_s=PIECE_S_MAX,
            )
            if answer.error_code:
                raise self._fault(active.address, answer.error_code)
            piece = _only_piece(answer)
            if piece.error_code:
                raise _Doubtful(f"{active}: {ErrorCode(piece.error_code).name}")
            if piece.size > SNAPSHOT_BYTES_MAX or piece.position != len(content):
                raise _Doubtful(f"{active}: a snapshot of {piece.size} bytes")
            content += piece.unaligned_records
            if len(content) >= piece.size:
                return bytes(content)
            if not piece.unaligned_records:
                raise _Doubtful(f"{active}: a snapshot that ends in the middle")

    def _snapshot_request(
        self, found: FetchSnapshotId, active: ActiveNode, position: int
    ) -> FetchSnapshotRequest:
        return FetchSnapshotRequest(
            cluster_id=self._observer.cluster_id,
            replica_id=self._observer.node_id,
            max_bytes=FETCH_BYTES_MAX,
            topics=[
                FetchSnapshotTopic(
                    name=METADATA_TOPIC,
                    partitions=[
                        FetchSnapshotPartition(
                            partition=0,
                            current_leader_epoch=active.epoch,
                            snapshot_id=SnapshotId(end_offset=found.end_offset, epoch=found.epoch),
                            position=position,
                            replica_directory_id=self._observer.directory_id,
                        )
                    ],
                )
            ],
        )

    # --- helpers -----------------------------------------------------------------------------

    def _peer_at(self, address: Address) -> Peer:
        if self._peer is None or self._peer.address != address:
            self.close()
            self._peer = Peer(address, self._connect, self._clock)
        return self._peer

    def _fault(self, address: Address, error_code: int) -> Exception:
        code = ErrorCode(error_code)
        if code is ErrorCode.INCONSISTENT_CLUSTER_ID:
            return OtherCluster(
                f"the controller at {address} is one of another cluster than"
                f" {self._observer.cluster_id}, whose id is in meta.properties of the log folders"
            )
        self._quiet_log.say(
            logging.WARNING,
            "the controller refuses to give its metadata",
            code,
            {"controller": str(address), "error": code.name},
        )
        return _Doubtful(f"{address}: {code.name}")

    def _say(self, address: Address, error: PeerError) -> None:
        level = logging.ERROR if isinstance(error, PeerRefused) else logging.WARNING
        fields = {"controller": str(address), "reason": str(error)}
        self._quiet_log.say(level, "no metadata from the controller", str(address), fields)


# Answers that name the leader of a higher epoch.
_NAMES_LEADER: Final = (
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
)


def _only_partition(answer: FetchResponse) -> FetchResponsePartition:
    for topic in answer.topics:
        for partition in topic.partitions:
            return partition
    raise _Doubtful("an answer without the partition of the metadata")


def _only_piece(answer: FetchSnapshotResponse) -> FetchSnapshotPartitionResult:
    for topic in answer.topics:
        for partition in topic.partitions:
            return partition
    raise _Doubtful("an answer without the partition of the metadata")
