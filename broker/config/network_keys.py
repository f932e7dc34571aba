"""Who this broker is, where it listens, and how much one connection may ask for."""

from __future__ import annotations

from collections.abc import Iterator

from strandline.broker.config.definition import CONNECTIONS, MIB, NETWORK, BrokerConfigDef, key
from strandline.broker.config.listeners import parse_connection_overrides, parse_metrics_listener
from strandline.storage.config.log_config import INT_MAX, ConfigType


def network_keys() -> Iterator[BrokerConfigDef]:
    """The keys in the order of docs/configuration.md."""
    yield from _identity_keys()
    yield from _login_keys()
    yield from _connection_keys()
    yield from _measuring_keys()
    yield from _fetch_keys()


def _identity_keys() -> Iterator[BrokerConfigDef]:
    yield key(
        NETWORK,
        "node.id",
        ConfigType.INT,
        1,
        "Number of this broker in its cluster. Kafka has no default; a lone broker needs none.",
        minimum=0,
    )
    yield key(
        NETWORK,
        "broker.id",
        ConfigType.INT,
        None,
        "Older name of node.id; both must agree.",
        minimum=-1,
    )
    yield key(
        NETWORK, "broker.rack", ConfigType.STRING, None, "Rack (zone) that Metadata tells clients."
    )
    # Kafka listens on every interface. A broker that cannot ask for a password yet must not.
    yield key(
        NETWORK,
        "listeners",
        ConfigType.LIST,
        "PLAINTEXT://127.0.0.1:9092",
        "Where to listen: NAME://host:port, comma separated. An empty host, 0.0.0.0 or [::]"
        " means every interface, of IPv4 and IPv6; port 0 any free port. Without a password by"
        " default, and therefore on this machine alone.",
    )
    yield key(
        NETWORK,
        "advertised.listeners",
        ConfigType.LIST,
        None,
        "What clients are told to connect to: NAME://host:port. Unset: the listeners, an empty host"
        " replaced by this machine's name.",
    )
    yield key(
        NETWORK,
        "listener.security.protocol.map",
        ConfigType.LIST,
        "PLAINTEXT:PLAINTEXT",
        "Protocol of each listener name, as NAME:PROTOCOL: PLAINTEXT or SASL_PLAINTEXT.",
    )


def _login_keys() -> Iterator[BrokerConfigDef]:
    yield key(
        NETWORK,
        "sasl.enabled.mechanisms",
        ConfigType.LIST,
        None,
        "How clients of SASL listeners may log in: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512. May be set"
        " for one listener: listener.name.<name>.sasl.enabled.mechanisms. Kafka's default, GSSAPI,"
        " is not served.",
    )
    yield key(
        NETWORK,
        "connections.max.reauth.ms",
        ConfigType.LONG,
        0,
        "A login of SASL is to be renewed within this many ms, or the connection is closed; 0: it"
        " lasts as long as the connection. May be set for one listener.",
        minimum=0,
    )
    yield key(
        NETWORK,
        "connection.failed.authentication.delay.ms",
        ConfigType.INT,
        100,
        "A client that fails to log in is told so after this many ms.",
        minimum=0,
        maximum=10_000,
    )
    yield key(
        NETWORK,
        "sasl.server.max.receive.size",
        ConfigType.INT,
        512 * 1024,
        "Largest request of a client that has not logged in yet, in bytes.",
        minimum=1024,
    )


def _connection_keys() -> Iterator[BrokerConfigDef]:
    yield key(
        CONNECTIONS,
        "socket.request.max.bytes",
        ConfigType.INT,
        100 * MIB,
        "Largest request, in bytes; a larger one closes its connection.",
        minimum=1,
    )
    yield key(
        CONNECTIONS,
        "connections.max.idle.ms",
        ConfigType.LONG,
        600_000,
        "An idle connection is closed after this many ms; negative: never.",
    )
    yield key(
        CONNECTIONS,
        "max.connections",
        ConfigType.INT,
        INT_MAX,
        "Open connections at one time; further ones are closed at once.",
        minimum=0,
        dynamic=True,
    )
    yield key(
        CONNECTIONS,
        "max.connections.per.ip",
        ConfigType.INT,
        INT_MAX,
        "Open connections from one address at one time; further ones are closed at once.",
        minimum=0,
        dynamic=True,
    )
    yield key(
        CONNECTIONS,
        "max.connections.per.ip.overrides",
        ConfigType.STRING,
        "",
        "max.connections.per.ip of single addresses: 10.0.0.1:100,10.0.0.2:20.",
        dynamic=True,
        check=parse_connection_overrides,
    )
    yield key(
        CONNECTIONS,
        "max.connection.creation.rate",
        ConfigType.INT,
        INT_MAX,
        "Connections per second that are accepted; further ones wait in the queue of the system."
        " This and max.connections may be set for one listener: listener.name.<name>.<key>.",
        minimum=1,
        dynamic=True,
    )


def _measuring_keys() -> Iterator[BrokerConfigDef]:
    yield key(
        CONNECTIONS,
        "quota.window.num",
        ConfigType.INT,
        11,
        "Windows over which a client's rate is taken for its quota.",
        minimum=1,
        maximum=1000,
    )
    yield key(
        CONNECTIONS,
        "quota.window.size.seconds",
        ConfigType.INT,
        1,
        "Length of one of these windows.",
        minimum=1,
        maximum=3600,
    )
    yield key(
        CONNECTIONS,
        "strandline.metrics.listener",
        ConfigType.STRING,
        None,
        "Where /metrics, /healthz and /readyz are served over HTTP: http://host:port. Unset:"
        " nowhere. There is no password: choose an address that only the monitoring reaches.",
        check=parse_metrics_listener,
    )
    yield key(
        CONNECTIONS,
        "strandline.metrics.partitions.max",
        ConfigType.INT,
        10_000,
        "Partitions, and committed offsets, that /metrics lists one by one; further ones only"
        " count in the totals.",
        minimum=0,
    )


def _fetch_keys() -> Iterator[BrokerConfigDef]:
    yield key(
        CONNECTIONS,
        "fetch.max.bytes",
        ConfigType.INT,
        55 * MIB,
        "Largest answer to a fetch, in bytes; one batch is sent even if larger.",
        minimum=1024,
    )
    yield key(
        CONNECTIONS,
        "max.incremental.fetch.session.cache.slots",
        ConfigType.INT,
        1000,
        "Incremental fetch sessions kept; further clients send full fetches.",
        minimum=0,
    )
