"""A controller process for tests, and brokers that are only requests on a connection."""

from __future__ import annotations

import uuid
from pathlib import Path

from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.protocol.formats.metadata_records import MetadataRecord, decode_record
from strandline.broker.protocol.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from strandline.broker.protocol.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    RegisteringFeature,
    RegisteringListener,
)
from strandline.broker.protocol.messages.fetch import (
    FetchPartition,
    FetchReplicaState,
    FetchRequest,
    FetchResponse,
    FetchResponsePartition,
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
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.records.batch.record import iter_records
from tests.support.broker import BrokerProcess
from tests.support.wire import WireClient

LISTENERS = "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT"
CONTROLLER_ID = 1000
METADATA_ID = uuid.UUID(int=1)
METADATA = "__cluster_metadata"
FEATURES = {
    "metadata.version": (7, 33),
    "transaction.version": (0, 2),
    "group.version": (0, 1),
    "eligible.leader.replicas.version": (0, 1),
}


class ControllerProcess(BrokerProcess):
    """`strandline serve` in the role of a controller."""

    def __init__(self, folder: Path, **settings: str) -> None:
        super().__init__(
            folder,
            settings={
                "process.roles": "controller",
                "node.id": str(CONTROLLER_ID),
                "controller.listener.names": "CONTROLLER",
                "listener.security.protocol.map": LISTENERS,
                **{name.replace("_", "."): text for name, text in settings.items()},
            },
        )
        self.settings["listeners"] = f"CONTROLLER://127.0.0.1:{self.port}"

    @property
    def cluster_id(self) -> str:
        text = (self.data / "meta.properties").read_text()
        return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)["cluster.id"]


class PretendedBroker:
    """A broker that registers and sends heartbeats, and does nothing else."""

    def __init__(self, controller: ControllerProcess, node_id: int) -> None:
        self.node_id = node_id
        self.cluster_id = controller.cluster_id
        self.log_dir = uuid.uuid4()
        self.epoch = -1
        self.client = WireClient(controller.port)

    def register(self, **changes: object) -> int:
        """Returns the error code."""
        request = BrokerRegistrationRequest(
            broker_id=self.node_id,
            cluster_id=self.cluster_id,
            incarnation_id=uuid.uuid4(),
            listeners=[
                RegisteringListener(
                    name="PLAINTEXT", host="localhost", port=9092, security_protocol=0
                )
            ],
            features=[
                RegisteringFeature(
                    name=name, min_supported_version=lowest, max_supported_version=highest
                )
                for name, (lowest, highest) in FEATURES.items()
            ],
            log_dirs=[self.log_dir],
        )
        answer = self.client.ask(request.replaced(**changes), BrokerRegistrationResponse, 4)
        if answer.error_code == 0:
            self.epoch = answer.broker_epoch
        return answer.error_code

    def beat(self, *, at: int = 2**40, **wants: bool) -> BrokerHeartbeatResponse:
        request = BrokerHeartbeatRequest(
            broker_id=self.node_id,
            broker_epoch=self.epoch,
            current_metadata_offset=at,
            want_fence=wants.get("fence", False),
            want_shut_down=wants.get("shut_down", False),
        )
        return self.client.ask(request, BrokerHeartbeatResponse, 2)

    def join(self) -> None:
        """Registers, and is unfenced."""
        assert self.register() == 0
        answer = self.beat()
        assert (answer.error_code, answer.is_fenced) == (0, False)


# --- what a follower of the metadata sees ----------------------------------------------------


def fetch(
    client: WireClient, offset: int, epoch: int, leader_epoch: int, *, wait_ms: int = 0
) -> FetchResponsePartition:
    request = FetchRequest(
        replica_state=FetchReplicaState(replica_id=77, replica_epoch=-1),
        max_wait_ms=wait_ms,
        min_bytes=0,
        topics=[
            FetchTopic(
                topic_id=METADATA_ID,
                partitions=[
                    FetchPartition(
                        partition=0,
                        current_leader_epoch=leader_epoch,
                        fetch_offset=offset,
                        last_fetched_epoch=epoch,
                        partition_max_bytes=2**20,
                    )
                ],
            )
        ],
    )
    answer = client.ask(request, FetchResponse, 17)
    assert answer.error_code == 0
    (partition,) = answer.topics[0].partitions
    (endpoint,) = answer.node_endpoints
    assert (endpoint.node_id, endpoint.host) == (CONTROLLER_ID, "127.0.0.1")
    return partition


def leader_epoch_of(client: WireClient) -> int:
    """As a follower finds it: by an epoch that is too low."""
    refused = fetch(client, 0, 0, 0)
    assert refused.error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert refused.current_leader is not None
    assert refused.current_leader.leader_id == CONTROLLER_ID
    return refused.current_leader.leader_epoch


def records_of(encoded: bytes) -> list[MetadataRecord]:
    return [
        decode_record(record.value or b"")
        for batch in walk(encoded, verify_crc=True)
        if not batch.header.is_control
        for record in iter_records(encoded, batch.header, batch.position)
    ]


def snapshot_of(
    client: WireClient, end_offset: int, epoch: int, leader_epoch: int, *, piece: int = 2**20
) -> tuple[bytes, FetchSnapshotPartitionResult]:
    """The bytes of a snapshot, piece by piece, and the last answer."""
    found = b""
    while True:
        request = FetchSnapshotRequest(
            replica_id=77,
            max_bytes=piece,
            topics=[
                FetchSnapshotTopic(
                    name=METADATA,
                    partitions=[
                        FetchSnapshotPartition(
                            partition=0,
                            current_leader_epoch=leader_epoch,
                            snapshot_id=SnapshotId(end_offset=end_offset, epoch=epoch),
                            position=len(found),
                        )
                    ],
                )
            ],
        )
        answer = client.ask(request, FetchSnapshotResponse, 1)
        (result,) = answer.topics[0].partitions
        found += bytes(result.unaligned_records)
        if result.error_code or len(found) == result.size:
            return found, result


def followed(client: WireClient) -> MetadataImage:
    """The image of a follower that began with nothing."""
    leader_epoch = leader_epoch_of(client)
    empty = fetch(client, 0, 0, leader_epoch)
    assert empty.snapshot_id is not None
    start, epoch = empty.snapshot_id.end_offset, empty.snapshot_id.epoch
    snapshot, _ = snapshot_of(client, start, epoch, leader_epoch)
    image = MetadataImage().apply_entry(records_of(snapshot))
    tail = fetch(client, start, epoch, leader_epoch)
    for part in tail.records:
        found = records_of(bytes(part))  # type: ignore[arg-type]
        image = image.apply_entry(found) if found else image
    return image
