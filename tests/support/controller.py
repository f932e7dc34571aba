"""A controller process for tests, and brokers that are only requests on a connection."""

from __future__ import annotations

import uuid
from pathlib import Path

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
from tests.support.broker import BrokerProcess
from tests.support.wire import WireClient

LISTENERS = "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT"
CONTROLLER_ID = 1000
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
