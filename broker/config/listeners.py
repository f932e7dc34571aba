"""Listener lists, as `listeners` and `advertised.listeners` write them.

    PLAINTEXT://host:port , INTERNAL://[::1]:9093 , CONTROLLER://:9094
    name      host   port

The security protocol of a name comes from `listener.security.protocol.map`: PLAINTEXT, SSL,
SASL_PLAINTEXT or SASL_SSL. Listeners named by `controller.listener.names` belong to Kafka's quorum,
which we do not have: they are left out, so that Kafka's own server.properties can be used as it is.

An empty host, 0.0.0.0 or [::] listens on every interface, for IPv4 and IPv6. No client can connect
to such an address, so it is never advertised: this machine's name replaces an empty host, and the
others need `advertised.listeners`.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from strandline.broker.network.addresses import EVERY_INTERFACE
from strandline.storage.errors import InvalidConfig, StrandlineError
from strandline.storage.system.host_names import is_host_name

PORT_MAX = 65535

_LISTENER = re.compile(
    r"(?P<name>[A-Za-z0-9_.-]+)://(?:\[(?P<v6>[^\]]*)\]|(?P<host>[^:/\[\]]*)):(?P<port>\d+)"
)


class CannotListen(StrandlineError):
    """An address in `listeners` cannot be bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """An address with a name; an empty host means every interface, port 0 any free port."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def listen_at(
    listeners: Iterable[Listener], listen: Callable[[str, int, str], int]
) -> dict[str, int]:
    """Calls `listen` for each; returns the bound ports by listener name. Raises CannotListen."""
    ports: dict[str, int] = {}
    for listener in listeners:
        try:
            ports[listener.name] = listen(listener.host, listener.port, listener.name)
        except OSError as error:
            raise CannotListen(f"cannot listen at {listener}: {error.strerror}") from error
    return ports


def parse_listeners(key: str, elements: Sequence[str]) -> tuple[Listener, ...]:
    """Parses the list under `key`. Raises InvalidConfig."""
    listeners = tuple(_parse_listener(key, element) for element in elements)
    for position, listener in enumerate(listeners):
        if any(listener.name == earlier.name for earlier in listeners[:position]):
            raise InvalidConfig(f"{key}: the listener name {listener.name} is used twice")
    return listeners


def _parse_listener(key: str, text: str) -> Listener:
    match = _LISTENER.fullmatch(text)
    if match is None:
        raise InvalidConfig(f"{key}={text!r}: expected NAME://host:port")
    port = int(match["port"])
    if port > PORT_MAX:
        raise InvalidConfig(f"{key}={text!r}: the port must be at most {PORT_MAX}")
    host = match["v6"] or match["host"] or ""
    if not is_host_name(host):
        raise InvalidConfig(f"{key}={text!r}: {host!r} is no host name")
    return Listener(name=match["name"].upper(), host=host, port=port)


def parse_protocol_map(elements: Sequence[str]) -> Mapping[str, str]:
    """Parses the security protocols by listener name. Raises InvalidConfig."""
    protocols: dict[str, str] = {}
    for element in elements:
        name, separator, protocol = element.partition(":")
        if not separator or not name or not protocol:
            raise InvalidConfig(
                f"listener.security.protocol.map={element!r}: expected NAME:PROTOCOL"
            )
        protocols[name.strip().upper()] = protocol.strip().upper()
    return protocols


PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL = "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"
_PROTOCOLS = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)


def protocol_of(listener: str, protocols: Mapping[str, str]) -> str | None:
    """Returns the security protocol of a listener name; a protocol's own name needs no entry."""
    return protocols.get(listener, listener if listener in _PROTOCOLS else None)


def check_protocols(listeners: Sequence[Listener], protocols: Mapping[str, str]) -> None:
    """Raises InvalidConfig for a listener with a protocol that is not served."""
    for listener in listeners:
        protocol = protocol_of(listener.name, protocols)
        if protocol is None:
            raise InvalidConfig(
                f"listeners={listener}: listener.security.protocol.map does not say which protocol"
                f" {listener.name} is; expected {listener.name}:PLAINTEXT in it"
            )
        if protocol not in _PROTOCOLS:
            raise InvalidConfig(
                f"listeners={listener}: there is no protocol {protocol}; expected one of"
                f" {', '.join(_PROTOCOLS)}"
            )


def without_controllers(
    listeners: Sequence[Listener], controller_names: Collection[str]
) -> tuple[Listener, ...]:
    """Returns the listeners for brokers and clients."""
    return tuple(listener for listener in listeners if listener.name not in controller_names)


def advertise(
    listeners: Sequence[Listener], advertised: Sequence[Listener] | None
) -> tuple[Listener, ...]:
    """Returns the advertised address of each listener, in the same order. Raises InvalidConfig."""
    if advertised is None:
        return tuple(_advertise_itself(listener) for listener in listeners)
    by_name = {listener.name: listener for listener in advertised}
    for listener in advertised:
        if listener.host in EVERY_INTERFACE:
            raise InvalidConfig(
                f"advertised.listeners={listener}: no client can connect to this host;"
                " name one that clients can reach"
            )
        if listener.name not in {own.name for own in listeners}:
            raise InvalidConfig(
                f"advertised.listeners={listener}: there is no listener {listener.name};"
                f" expected one of {', '.join(own.name for own in listeners)}"
            )
    return tuple(by_name.get(own.name) or _advertise_itself(own) for own in listeners)


def _advertise_itself(listener: Listener) -> Listener:
    if not listener.host:
        return Listener(name=listener.name, host=socket.gethostname(), port=listener.port)
    if listener.host in EVERY_INTERFACE:
        raise InvalidConfig(
            f"listeners={listener}: no client can connect to this host;"
            " set advertised.listeners to what clients can reach"
        )
    return listener


HTTP, HTTPS = "HTTP", "HTTPS"


def parse_metrics_listener(text: str) -> Listener:
    """Parses `http://host:port`, or https, of the metrics listener. Raises InvalidConfig."""
    key = "strandline.metrics.listener"
    listener = _parse_listener(key, text)
    if listener.name not in (HTTP, HTTPS):
        raise InvalidConfig(f"{key}={text!r}: expected http://host:port or https://host:port")
    return listener
