"""Where the controllers are, and how a broker stays registered with them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from strandline.broker.peers.address import Address
from strandline.storage.config.definition import BOOLEAN, INT, LIST, key
from strandline.storage.errors import InvalidConfig

BROKER, CONTROLLER = "broker", "controller"
_PORT_MAX = 65535
_SERVER = re.compile(r"(?:(?P<id>\d+)@)?(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:/\[\]@]+)):(?P<port>\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipConfig:
    """Settings of a broker in a cluster with controllers."""

    roles: tuple[str, ...] = key(
        "process.roles",
        LIST,
        "",
        "broker, with controller.quorum.bootstrap.servers: a broker of the cluster of these"
        " controllers, as Apache Kafka's. controller: a controller of brokers elsewhere, without"
        " records of its own. Empty or broker,controller: a lone broker, which decides on its"
        " metadata itself.",
    )
    bootstrap_servers: tuple[str, ...] = key(
        "controller.quorum.bootstrap.servers",
        LIST,
        "",
        "Addresses of controllers, host:port, comma separated; one that answers names the active"
        " one.",
    )
    voters: tuple[str, ...] = key(
        "controller.quorum.voters",
        LIST,
        "",
        "Older form of controller.quorum.bootstrap.servers: id@host:port, comma separated.",
    )
    heartbeat_ms: int = key(
        "broker.heartbeat.interval.ms",
        INT,
        2000,
        "Ms between two heartbeats of the broker to the active controller.",
        minimum=1,
    )
    registration_ms_max: int = key(
        "initial.broker.registration.timeout.ms",
        INT,
        60_000,
        "Ms within which a start must be registered with the controllers, or it fails.",
        minimum=1,
    )
    hands_over: bool = key(
        "controlled.shutdown.enable",
        BOOLEAN,
        True,
        "Whether a stop asks the controller to move leaders away first. A lone broker has nobody to"
        " ask.",
    )

    brokers: int = key(
        "strandline.brokers",
        INT,
        1,
        "Brokers that `strandline serve` runs as one cluster on this machine, with a controller of"
        " its own. Each has the next ports, and a folder in each of log.dirs.",
        minimum=1,
        maximum=100,
    )
    racks: tuple[str, ...] = key(
        "strandline.brokers.racks",
        LIST,
        "",
        "The broker.rack of each broker of strandline.brokers, in their order, comma separated.",
    )

    @property
    def servers(self) -> tuple[str, ...]:
        """The addresses of controllers as they were written."""
        return self.bootstrap_servers or self.voters

    @property
    def has_controllers(self) -> bool:
        """Whether the broker belongs to the cluster of other processes."""
        return self.roles == (BROKER,) and bool(self.servers)

    @property
    def is_controller(self) -> bool:
        """Whether the process is a controller alone: it has no records and no clients."""
        return self.roles == (CONTROLLER,)

    @property
    def is_alone(self) -> bool:
        """Whether the process is broker and controller, the only one of its cluster."""
        return not self.has_controllers and not self.is_controller

    def addresses(self) -> Sequence[Address]:
        """Raises InvalidConfig."""
        return [_address(text) for text in self.servers]

    def check(self) -> None:
        """Raises InvalidConfig."""
        if set(self.roles) - {BROKER, CONTROLLER}:
            raise InvalidConfig(
                f"process.roles={','.join(self.roles)}: expected broker, controller or"
                " broker,controller"
            )
        if not self.has_controllers and len(self.servers) > 1:
            raise InvalidConfig(
                f"{len(self.servers)} controllers are named: a lone broker has none but itself;"
                " process.roles=broker makes it a broker of their cluster"
            )
        self.addresses()


def _address(text: str) -> Address:
    match = _SERVER.fullmatch(text.strip())
    if match is None or int(match["port"]) > _PORT_MAX:
        raise InvalidConfig(
            f"controller.quorum.bootstrap.servers={text!r}: expected host:port, or id@host:port in"
            " controller.quorum.voters"
        )
    return Address(match["v6"] or match["host"], int(match["port"]))
