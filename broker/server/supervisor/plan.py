"""What each process of `strandline serve --brokers N` is configured with.

    listeners=PLAINTEXT://:9092, log.dirs=/data, N = 2

    controller  node 3000  CONTROLLER://127.0.0.1:9091                              /data/controller
    broker 1    node 1     PLAINTEXT://:9092  INTERNAL://127.0.0.1:9094             /data/broker-1
    broker 2    node 2     PLAINTEXT://:9093  INTERNAL://127.0.0.1:9095             /data/broker-2

What clients see is as the configuration says, with ports upwards. By the listeners CONTROLLER and
INTERNAL the processes meet; these lie on the loopback and want a secret of this cluster.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.listeners import Listener
from strandline.broker.server.upkeep.folder_marks import CONTROLLER_FOLDER
from strandline.storage.errors import InvalidConfig
from strandline.storage.files import read_if_there, write_atomically

# As in Kafka's own examples; brokers count upwards from node.id.
CONTROLLER_ID: Final = 3000
CONTROLLER, INTERNAL = "CONTROLLER", "INTERNAL"
# No user of clients should have this name: it is a super user where there are rules.
USER: Final = "__strandline"
_PORT_MAX: Final = 65535
_SECRET_FILE: Final = "cluster-secret"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """One process: its properties, and how it is told."""

    name: str
    node_id: int
    address: str
    folders: Sequence[Path]
    properties: Mapping[str, str]

    @property
    def is_controller(self) -> bool:
        return self.node_id == CONTROLLER_ID

    @property
    def label(self) -> str:
        """The value of the label `broker` of its metrics."""
        return "controller" if self.is_controller else str(self.node_id)


def plan(config: BrokerConfig, secret: str) -> Sequence[NodePlan]:
    """Returns the controller, then the brokers. Raises InvalidConfig."""
    count = config.membership.brokers
    _check(config, count)
    first_port = min(one.port for one in config.listeners)
    controller = Listener(name=CONTROLLER, host="127.0.0.1", port=first_port - 1)
    step = len({one.port for one in config.listeners})
    internal_port = max(one.port for one in config.listeners) + count * step - step + 1
    shared = _shared(config, controller, secret)
    nodes = [
        NodePlan(
            name="controller",
            node_id=CONTROLLER_ID,
            address=f"{controller.host}:{controller.port}",
            folders=[config.logs.dirs[0] / CONTROLLER_FOLDER],
            properties={
                **shared,
                "process.roles": "controller",
                "node.id": str(CONTROLLER_ID),
                "listeners": str(controller),
                "log.dirs": str(config.logs.dirs[0] / CONTROLLER_FOLDER),
            },
        )
    ]
    racks = config.membership.racks
    for number in range(count):
        internal = Listener(name=INTERNAL, host="127.0.0.1", port=internal_port + number)
        node_id = config.node_id + number
        listeners = _shifted(config.listeners, number * step)
        advertised = _shifted(config.advertised_listeners, number * step)
        folders = [one / broker_folder(node_id) for one in config.logs.dirs]
        nodes.append(
            NodePlan(
                name=f"broker {node_id}",
                node_id=node_id,
                address=f"{advertised[0].host}:{advertised[0].port}",
                folders=folders,
                properties={
                    **shared,
                    "process.roles": "broker",
                    "node.id": str(node_id),
                    "listeners": _texts([*listeners, internal]),
                    "advertised.listeners": _texts([*advertised, internal]),
                    "inter.broker.listener.name": INTERNAL,
                    "controller.quorum.bootstrap.servers": f"{controller.host}:{controller.port}",
                    "log.dirs": ",".join(map(str, folders)),
                    **({"broker.rack": racks[number]} if racks else {}),
                },
            )
        )
    return nodes


def broker_folder(node_id: int) -> str:
    """The name of a broker's folder in each of log.dirs."""
    return f"broker-{node_id}"


def secret_of(folder: Path) -> str:
    """Returns the secret of the cluster in this folder, made at its first start; blocks.

    Within `private_files`. Raises DiskError.
    """
    path = folder / _SECRET_FILE
    found = read_if_there(path)
    if found is None:
        folder.mkdir(parents=True, exist_ok=True)
        found = secrets.token_hex(32).encode()
        write_atomically(path, found)
    return found.decode().strip()


def _check(config: BrokerConfig, count: int) -> None:
    racks = config.membership.racks
    if racks and len(racks) != count:
        raise InvalidConfig(
            f"strandline.brokers.racks={','.join(racks)}: expected {count}, one for each broker"
        )
    if config.membership.roles or config.membership.servers:
        raise InvalidConfig(
            "strandline.brokers and process.roles or controller.quorum.*: several brokers of one"
            " machine have a controller of their own"
        )
    if any(one.port <= 1 for one in config.listeners):
        raise InvalidConfig(
            "listeners: several brokers need a first port, 2 at least: the controller has the one"
            " below"
        )
    if max(one.port for one in config.listeners) + 2 * count * len(config.listeners) > _PORT_MAX:
        raise InvalidConfig(f"listeners: no ports are left for {count} brokers")


def _shared(config: BrokerConfig, controller: Listener, secret: str) -> dict[str, str]:
    """The properties that all processes have."""
    own = {
        "strandline.brokers",
        "strandline.brokers.racks",
        "broker.id",
        "log.dir",
        "advertised.listeners",
    }
    kept = {name: text for name, text in config.given.items() if name not in own}
    login = (
        "org.apache.kafka.common.security.plain.PlainLoginModule required"
        f' username="{USER}" password="{secret}" user_{USER}="{secret}";'
    )
    protocols = [*config.identity.protocols]
    inner = {}
    for name in (CONTROLLER, INTERNAL):
        protocols.append(f"{name}:SASL_PLAINTEXT")
        inner[f"listener.name.{name.lower()}.sasl.enabled.mechanisms"] = "PLAIN"
        inner[f"listener.name.{name.lower()}.plain.sasl.jaas.config"] = login
    if config.authorizer.is_enabled:
        users = [kept.get("super.users", ""), f"User:{USER}"]
        inner["super.users"] = ";".join(filter(None, users))
    return {
        **kept,
        **inner,
        "listener.security.protocol.map": ",".join(protocols),
        "controller.listener.names": controller.name,
        "sasl.mechanism.controller.protocol": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
    }


def _shifted(listeners: Iterable[Listener], by: int) -> list[Listener]:
    return [replace(one, port=one.port + by) for one in listeners]


def _texts(listeners: Iterable[Listener]) -> str:
    return ",".join(map(str, listeners))
