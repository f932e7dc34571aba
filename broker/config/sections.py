"""Sections of the configuration that several parts of the broker use.

A section that only one part uses is beside that part's code (`storage/local/cleaner/cleaner.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from strandline.broker.config.listeners import Listener, parse_metrics_listener
from strandline.broker.security.oauth_config import OAuthConfig
from strandline.storage.config.definition import (
    BOOLEAN,
    INT,
    LIST,
    LONG,
    LONG_MAX,
    MIB,
    STRING,
    key,
    section,
)

# Kafka's classes, by the names that its configurations have.
LEADER_SELECTOR = "org.apache.kafka.common.replica.LeaderSelector"
RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


def _paths(names: tuple[str, ...]) -> tuple[Path, ...]:
    return tuple(Path(name) for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityConfig:
    """Identity of the broker, and its listeners as written in the configuration."""

    own_id: int = key(
        "node.id",
        INT,
        1,
        "Number of this broker in its cluster. Kafka has no default; a lone broker needs none.",
        minimum=0,
    )
    older_id: int | None = key(
        "broker.id", INT, None, "Older name of node.id; both must agree.", minimum=-1
    )
    rack: str | None = key(
        "broker.rack",
        STRING,
        None,
        "Rack (zone) of the broker: replicas are spread over racks, and clients learn of it.",
    )
    # Kafka listens on every interface. A broker without passwords must not.
    listeners: tuple[str, ...] = key(
        "listeners",
        LIST,
        "PLAINTEXT://127.0.0.1:9092",
        "Where to listen: NAME://host:port, comma separated. An empty host, 0.0.0.0 or [::]"
        " means every interface, of IPv4 and IPv6; port 0 any free port. Without a password by"
        " default, and therefore on this machine alone.",
    )
    advertised_listeners: tuple[str, ...] | None = key(
        "advertised.listeners",
        LIST,
        None,
        "The addresses that the broker gives to clients: NAME://host:port. Unset: the listeners,"
        " with this machine's name for an empty host.",
    )
    protocols: tuple[str, ...] = key(
        "listener.security.protocol.map",
        LIST,
        "PLAINTEXT:PLAINTEXT",
        "Protocol of each listener name, as NAME:PROTOCOL: PLAINTEXT, SSL,"
        " SASL_PLAINTEXT or SASL_SSL. Listeners of these names need no entry.",
    )

    @property
    def node_id(self) -> int:
        return self.own_id if self.older_id in (None, -1) else self.older_id


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslConfig:
    """Settings of SASL authentication."""

    mechanisms: tuple[str, ...] | None = key(
        "sasl.enabled.mechanisms",
        LIST,
        None,
        "How clients of SASL listeners may log in: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512,"
        " OAUTHBEARER. May be set for one listener: listener.name.<name>.sasl.enabled.mechanisms."
        " Kafka's default, GSSAPI, is not served.",
    )
    lifetime_ms: int = key(
        "connections.max.reauth.ms",
        LONG,
        0,
        "Ms within which a client must renew a SASL login, or the broker closes the connection;"
        " 0: the login lasts as long as the connection. A login by a token also ends with"
        " it. May be set for one listener, or for one mechanism of it:"
        " listener.name.<name>.oauthbearer.connections.max.reauth.ms.",
        minimum=0,
    )
    failed_delay_ms: int = key(
        "connection.failed.authentication.delay.ms",
        INT,
        100,
        "Ms after which the broker answers a failed login.",
        minimum=0,
        maximum=10_000,
    )
    frame_bytes_max: int = key(
        "sasl.server.max.receive.size",
        INT,
        512 * 1024,
        "Largest request of a client that has not logged in yet, in bytes.",
        minimum=1024,
    )
    users_file: Path | None = key(
        "strandline.sasl.plain.users.file",
        STRING,
        None,
        "File of users of PLAIN: lines of name=password, beside those of sasl.jaas.config. The"
        " broker looks every 10 s whether it changed. May be set for one listener.",
        convert=Path,
    )
    oauth: OAuthConfig = section(OAuthConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig:
    """Settings of the metrics listener and of the number of series."""

    listener: Listener | None = key(
        "strandline.metrics.listener",
        STRING,
        None,
        "Address at which the broker serves /metrics, /healthz and /readyz:"
        " http://host:port, or https://host:port with TLS, whose keys are ssl.* and"
        " listener.name.https.ssl.*. Unset: none. There is no password: choose an address that"
        " only the monitoring reaches, or require its certificate by"
        " listener.name.https.ssl.client.auth.",
        convert=parse_metrics_listener,
    )
    partitions_max: int = key(
        "strandline.metrics.partitions.max",
        INT,
        10_000,
        "Number of partitions, and of committed offsets, that /metrics lists one by one;"
        " further ones count only in the totals.",
        minimum=0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchConfig:
    """Limits of fetches."""

    bytes_max: int = key(
        "fetch.max.bytes",
        INT,
        55 * MIB,
        "Largest answer to a fetch, in bytes; the broker sends one batch even if it is larger.",
        minimum=1024,
    )
    sessions_max: int = key(
        "max.incremental.fetch.session.cache.slots",
        INT,
        1000,
        "Number of incremental fetch sessions that the broker keeps; further clients send full"
        " fetches.",
        minimum=0,
    )
    replica_selector: str | None = key(
        "replica.selector.class",
        STRING,
        None,
        "Where consumers read (KIP-392): org.apache.kafka.common.replica.RackAwareReplicaSelector"
        " sends those with a client.rack to an in-sync replica of that broker.rack, if there is"
        " one. Unset: to the leader.",
        choices=(LEADER_SELECTOR, RACK_AWARE_SELECTOR),
    )

    @property
    def selects_by_rack(self) -> bool:
        """Whether a leader names a replica in the client's rack."""
        return self.replica_selector == RACK_AWARE_SELECTOR


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionConfig:
    """Settings of partition listings and of producer state."""

    described_max: int = key(
        "max.request.partition.size.limit",
        INT,
        2000,
        "Largest number of partitions in one answer to DescribeTopicPartitions, whatever the"
        " client asks for.",
        minimum=1,
    )
    producer_expiration_ms: int = key(
        "producer.id.expiration.ms",
        INT,
        86_400_000,
        "Ms after which the broker forgets an idle producer's sequence numbers.",
        minimum=1,
        dynamic=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirsConfig:
    """The log folders, and when maintenance of them starts."""

    # Not Kafka's /tmp/kafka-logs: /tmp is emptied when the machine starts.
    only_dir: Path = key(
        "log.dir",
        STRING,
        "strandline-data",
        "Folder of the logs if log.dirs is unset, relative to the working directory.",
        convert=Path,
    )
    several_dirs: tuple[Path, ...] | None = key(
        "log.dirs",
        LIST,
        None,
        "Folders of the logs, comma separated; the broker creates a new partition in the folder"
        " with the fewest.",
        convert=_paths,
    )
    recovery_threads: int = key(
        "num.recovery.threads.per.data.dir",
        INT,
        2,
        "Number of logs of one folder that the start opens or recovers at the same time.",
        minimum=1,
        maximum=256,
    )
    retention_interval_ms: int = key(
        "log.retention.check.interval.ms",
        LONG,
        300_000,
        "Ms between two checks for segments to delete.",
        minimum=1,
    )
    first_delay_ms: int = key(
        "log.initial.task.delay.ms",
        LONG,
        30_000,
        "Ms after the start before background work on logs begins.",
        minimum=0,
    )

    @property
    def dirs(self) -> tuple[Path, ...]:
        return self.several_dirs or (self.only_dir,)


_SET_BY_TOOL = " kafka-reassign-partitions --throttle sets and removes it."


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationConfig:
    """Throttles of replication, and of moves between log folders; bytes a second."""

    leader_rate: int = key(
        "leader.replication.throttled.rate",
        LONG,
        LONG_MAX,
        "Bytes per second that leaders of this broker send of the replicas in the topics'"
        " leader.replication.throttled.replicas. A follower that is not in sync gets no more."
        + _SET_BY_TOOL,
        minimum=0,
        dynamic=True,
    )
    follower_rate: int = key(
        "follower.replication.throttled.rate",
        LONG,
        LONG_MAX,
        "Bytes per second that this broker fetches of the replicas in the topics'"
        " follower.replication.throttled.replicas, while they are not in sync." + _SET_BY_TOOL,
        minimum=0,
        dynamic=True,
    )
    alter_log_dirs_rate: int = key(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        LONG,
        LONG_MAX,
        "Bytes per second of the copy of a partition that moves to another log folder."
        " kafka-reassign-partitions --replica-alter-log-dirs-throttle sets and removes it.",
        minimum=0,
        dynamic=True,
    )
    window_count: int = key(
        "replication.quota.window.num",
        INT,
        11,
        "Windows over which the broker measures throttled replication.",
        minimum=1,
        maximum=1000,
    )
    window_ms: int = key(
        "replication.quota.window.size.seconds",
        INT,
        1,
        "Length of one of these windows.",
        minimum=1,
        maximum=3600,
        convert=lambda seconds: 1000 * seconds,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveConfig:
    """Location of the remote tier, and the interval at which group offsets are archived."""

    is_enabled: bool = key(
        "remote.log.storage.system.enable",
        BOOLEAN,
        False,
        "Enables the remote tier; each topic also needs remote.storage.enable. Requires"
        " strandline.remote.url.",
    )
    url: str | None = key(
        "strandline.remote.url",
        STRING,
        None,
        "Place of the remote tier: s3://bucket/prefix or file:///folder. Credentials come from"
        " the usual AWS chain.",
    )
    endpoint_url: str | None = key(
        "strandline.remote.s3.endpoint.url",
        STRING,
        None,
        "Address of an S3-compatible server, such as http://127.0.0.1:4566; unset: AWS.",
    )
    region: str | None = key(
        "strandline.remote.s3.region",
        STRING,
        None,
        "Region of the bucket; unset: AWS_REGION and the like, else us-east-1.",
    )
    ca_file: str | None = key(
        "strandline.remote.s3.ca.file",
        STRING,
        None,
        "File with the authorities, in PEM, that the S3 server is trusted by; unset: AWS_CA_BUNDLE,"
        " else those of the AWS SDK.",
    )
    groups_interval_ms: int = key(
        "strandline.remote.groups.upload.ms",
        LONG,
        60_000,
        "Ms between two writes of changed group offsets to the bucket; a restore reads them there.",
        minimum=1,
    )
    refuses_if_lost: bool = key(
        "strandline.remote.lost.refuse.produce",
        BOOLEAN,
        False,
        "Refuses Produce to tiered topics (POLICY_VIOLATION) once another broker owns this one's"
        " archive: the records would lie on this disk alone. Reads go on.",
    )
    check_interval_ms: int = key(
        "strandline.remote.check.interval.ms",
        LONG,
        600_000,
        "Ms between two checks that cluster.json, the metadata, the groups' offsets and the"
        " transactional ids are still in the bucket: at most five requests. The broker writes"
        " deleted objects again.",
        minimum=10,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteWaitConfig:
    """The waits of requests for the remote tier."""

    fetch_ms_max: int = key(
        "remote.fetch.max.wait.ms",
        INT,
        500,
        "Longest wait of a fetch for the remote tier, in ms; the download continues.",
        minimum=1,
        dynamic=True,
    )
    list_offsets_ms_max: int = key(
        "remote.list.offsets.request.timeout.ms",
        LONG,
        30_000,
        "Longest wait of ListOffsets for the remote tier, in ms.",
        minimum=1,
        dynamic=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaConfig:
    """Poll interval of a read-only replica."""

    poll_ms: int = key(
        "strandline.remote.replica.poll.ms",
        LONG,
        10_000,
        "Ms between two polls of the archive by a read-only replica.",
        minimum=10,
    )
    full_poll_ms: int = key(
        "strandline.remote.replica.full.poll.ms",
        LONG,
        600_000,
        "Ms after which a read-only replica requests every manifest, whatever the broker's list"
        " of changes says.",
        minimum=10,
    )
