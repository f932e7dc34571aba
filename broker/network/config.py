"""Configuration of the network layer: limits of connections and requests."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from strandline.storage.config.definition import INT, INT_MAX, LONG, MIB, STRING, key
from strandline.storage.errors import InvalidConfig

_LIMIT = re.compile(r"[0-9]{1,9}")


def parse_connection_overrides(text: str) -> Mapping[str, int]:
    """Parses `max.connections.per.ip.overrides`: limits by address. Raises InvalidConfig."""
    limits: dict[str, int] = {}
    for element in text.split(","):
        if not element.strip():
            continue
        address, _, limit = element.strip().rpartition(":")
        try:
            # An IPv6 address may stand in brackets, as in a listener.
            name = str(ipaddress.ip_address(address.strip("[]")))
        except ValueError:
            name = ""
        if not name or not _LIMIT.fullmatch(limit):
            raise InvalidConfig(
                f"max.connections.per.ip.overrides={text!r}: expected address:count, with commas"
                f" between them; {element.strip()!r} is none"
            )
        limits[name] = int(limit)
    return limits


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkConfig:
    """Limits of the network layer."""

    request_bytes_max: int = key(
        "socket.request.max.bytes",
        INT,
        100 * MIB,
        "Largest request, in bytes; a larger one closes its connection.",
        minimum=1,
    )
    queued_bytes_max: int = key(
        "queued.max.request.bytes",
        LONG,
        -1,
        "Bytes that the receive buffers of all connections may take together, beyond 16 KiB each."
        " When they are taken, the broker reads no further large request until it has answered"
        " others. 0 or negative: no limit.",
    )
    idle_ms_max: int = key(
        "connections.max.idle.ms",
        LONG,
        600_000,
        "The broker closes a connection that is idle for this many ms, or whose request is still"
        " incomplete after them; negative: never.",
    )
    connections_max: int = key(
        "max.connections",
        INT,
        INT_MAX,
        "Open connections at one time; the broker closes further ones at once. If you lower it,"
        " the broker closes those that have been idle longest.",
        minimum=0,
        dynamic=True,
    )
    connections_per_address_max: int = key(
        "max.connections.per.ip",
        INT,
        INT_MAX,
        "Open connections from one address at one time; the broker closes further ones at once.",
        minimum=0,
        dynamic=True,
    )
    connections_by_address_max: Mapping[str, int] = key(
        "max.connections.per.ip.overrides",
        STRING,
        "",
        "max.connections.per.ip of single addresses: 10.0.0.1:100,10.0.0.2:20.",
        dynamic=True,
        convert=parse_connection_overrides,
    )
    # Limits of single listeners, by name.
    connections_by_listener_max: Mapping[str, int] = field(default_factory=dict)

    def of_address(self, address: str) -> int:
        """Returns the connection limit of one address."""
        return self.connections_by_address_max.get(address, self.connections_per_address_max)

    def of_listener(self, name: str) -> int:
        """Returns the connection limit of one listener."""
        return self.connections_by_listener_max.get(name, self.connections_max)

    def check(self) -> None:
        """Raises InvalidConfig for limits that Kafka refuses (KafkaConfig)."""
        if 0 < self.queued_bytes_max < self.request_bytes_max:
            raise InvalidConfig(
                f"queued.max.request.bytes={self.queued_bytes_max}: must be 0 or less, or at least"
                f" socket.request.max.bytes, which is {self.request_bytes_max}"
            )
        if self.connections_per_address_max == 0 and not self.connections_by_address_max:
            raise InvalidConfig(
                "max.connections.per.ip=0: can be set to zero only if"
                " max.connections.per.ip.overrides names an address"
            )
