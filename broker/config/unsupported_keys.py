"""Keys of Kafka that strandline knows but does not act on.

    IGNORED    their absence here is not visible to clients: accepted, and logged
    REFUSED    ignoring them would mislead (security, limits, plug-ins): refused with the reason

A key in neither table and not in BROKER_CONFIGS is unknown, and refused with the nearest name.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignKeys:
    """Keys of Kafka that strandline does not act on: one name, or a prefix ending in a dot.

    `neutral` values match the actual behaviour, so even a refused key may have them.
    """

    pattern: str
    reason: str
    neutral: tuple[str, ...] = ()

    def matches(self, key: str) -> bool:
        return key == self.pattern or (self.pattern.endswith(".") and key.startswith(self.pattern))


_ONE_LOOP = "one event loop serves all connections"
_ONE_BROKER = "there is one broker, which holds every replica"
_OWN_METADATA = "metadata is strandline's own log of objects; there is no controller quorum"
_NO_GROUPS = "there are no transactions and no share or streams groups yet"
_NO_SUCH_GROUP_KEY = "groups have no such setting here"
_NO_PURGATORY = "requests that have ended leave nothing behind that has to be purged"
_OWN_TIER = "the manifests in the bucket take its place"

IGNORED: tuple[ForeignKeys, ...] = (
    ForeignKeys(pattern="process.roles", reason=_OWN_METADATA),
    ForeignKeys(pattern="controller.", reason=_OWN_METADATA),
    ForeignKeys(pattern="metadata.", reason=_OWN_METADATA),
    ForeignKeys(pattern="early.start.listeners", reason=_OWN_METADATA),
    ForeignKeys(pattern="broker.heartbeat.interval.ms", reason=_OWN_METADATA),
    ForeignKeys(pattern="broker.session.timeout.ms", reason=_OWN_METADATA),
    ForeignKeys(pattern="initial.broker.registration.timeout.ms", reason=_OWN_METADATA),
    ForeignKeys(pattern="inter.broker.listener.name", reason=_ONE_BROKER),
    ForeignKeys(pattern="inter.broker.protocol.version", reason=_ONE_BROKER),
    ForeignKeys(pattern="replica.", reason=_ONE_BROKER),
    ForeignKeys(pattern="num.replica.fetchers", reason=_ONE_BROKER),
    ForeignKeys(
        pattern="num.replica.alter.log.dirs.threads", reason="one partition moves at a time"
    ),
    ForeignKeys(pattern="auto.leader.rebalance.enable", reason=_ONE_BROKER),
    ForeignKeys(pattern="leader.imbalance.", reason=_ONE_BROKER),
    ForeignKeys(pattern="controlled.shutdown.", reason=_ONE_BROKER),
    ForeignKeys(pattern="num.network.threads", reason=_ONE_LOOP),
    ForeignKeys(pattern="num.io.threads", reason=_ONE_LOOP),
    ForeignKeys(pattern="background.threads", reason=_ONE_LOOP),
    ForeignKeys(pattern="queued.max.requests", reason=_ONE_LOOP),
    ForeignKeys(pattern="queued.max.request.bytes", reason=_ONE_LOOP),
    ForeignKeys(pattern="request.timeout.ms", reason=_ONE_BROKER),
    ForeignKeys(pattern="replication.quota.", reason=_ONE_BROKER),
    ForeignKeys(
        pattern="alter.log.dirs.replication.quota.",
        reason="moves between log folders have no quota",
    ),
    ForeignKeys(pattern="unclean.leader.election.interval.ms", reason=_ONE_BROKER),
    ForeignKeys(pattern="eligible.leader.replicas.enable", reason=_ONE_BROKER),
    ForeignKeys(pattern="broker.id.generation.enable", reason=_OWN_METADATA),
    ForeignKeys(pattern="reserved.broker.max.id", reason=_OWN_METADATA),
    ForeignKeys(pattern="server.max.startup.time.ms", reason=_OWN_METADATA),
    ForeignKeys(pattern="fetch.purgatory.purge.interval.requests", reason=_NO_PURGATORY),
    ForeignKeys(pattern="producer.purgatory.purge.interval.requests", reason=_NO_PURGATORY),
    ForeignKeys(pattern="delete.records.purgatory.purge.interval.requests", reason=_NO_PURGATORY),
    ForeignKeys(pattern="unstable.", reason="there are no unstable versions here"),
    ForeignKeys(pattern="socket.send.buffer.bytes", reason="the kernel sizes socket buffers"),
    ForeignKeys(pattern="socket.receive.buffer.bytes", reason="the kernel sizes socket buffers"),
    ForeignKeys(pattern="socket.listen.backlog.size", reason="the broker chooses its backlog"),
    ForeignKeys(pattern="offsets.topic.replication.factor", reason=_ONE_BROKER),
    ForeignKeys(pattern="offsets.commit.", reason=_ONE_BROKER),
    ForeignKeys(pattern="offsets.topic.compression.codec", reason="these records are small"),
    ForeignKeys(pattern="offsets.load.buffer.size", reason="the loader chooses its buffer"),
    ForeignKeys(pattern="group.consumer.", reason=_NO_SUCH_GROUP_KEY),
    ForeignKeys(pattern="group.coordinator.", reason="one event loop serves all groups"),
    ForeignKeys(pattern="group.share.", reason=_NO_GROUPS),
    ForeignKeys(pattern="group.streams.", reason=_NO_GROUPS),
    ForeignKeys(pattern="share.", reason=_NO_GROUPS),
    ForeignKeys(pattern="streams.", reason=_NO_GROUPS),
    ForeignKeys(pattern="transaction.", reason=_NO_GROUPS),
    ForeignKeys(pattern="transactional.id.expiration.ms", reason=_NO_GROUPS),
    ForeignKeys(
        pattern="producer.id.expiration.check.interval.ms",
        reason="idle producers are looked for every ten minutes",
    ),
    ForeignKeys(
        pattern="log.flush.offset.checkpoint.interval.ms",
        reason="checkpoints are written every 5 seconds",
    ),
    ForeignKeys(
        pattern="log.flush.start.offset.checkpoint.interval.ms",
        reason="checkpoints are written every 5 seconds",
    ),
    ForeignKeys(pattern="log.message.format.version", reason="Kafka ignores it since 4.0"),
    ForeignKeys(pattern="log.message.downconversion.enable", reason="Kafka ignores it since 4.0"),
    ForeignKeys(pattern="log.dir.failure.timeout.ms", reason=_OWN_METADATA),
    ForeignKeys(pattern="metric.reporters", reason="there is no Java virtual machine"),
    ForeignKeys(pattern="kafka.metrics.", reason="there is no Java virtual machine"),
    ForeignKeys(pattern="metrics.", reason="there is no Java virtual machine"),
    ForeignKeys(pattern="auto.include.jmx.reporter", reason="there is no Java virtual machine"),
    ForeignKeys(pattern="telemetry.", reason="client telemetry is not served"),
    ForeignKeys(pattern="remote.log.metadata.", reason=_OWN_TIER),
    ForeignKeys(pattern="rlmm.config.", reason=_OWN_TIER),
    ForeignKeys(
        pattern="remote.log.manager.thread.pool.size", reason="the copier's pool does all copying"
    ),
    ForeignKeys(pattern="remote.log.manager.follower.thread.pool.size", reason=_ONE_BROKER),
    ForeignKeys(pattern="follower.fetch.last.tiered.offset.enable", reason=_ONE_BROKER),
    ForeignKeys(
        pattern="remote.log.index.file.cache.ttl.ms",
        reason="an index goes when the bound of the cache is reached",
    ),
)

_NO_SECURITY = (
    "strandline has SASL/PLAIN and SCRAM, and no encryption or authorisation yet; ignoring the key"
    " would leave the broker open. Remove it and keep the broker on a trusted network"
)
_NO_JAVA = "it names a Java class, and strandline is no Java program. Remove it"

REFUSED: tuple[ForeignKeys, ...] = (
    ForeignKeys(pattern="ssl.", reason=_NO_SECURITY),
    ForeignKeys(
        pattern="sasl.mechanism.inter.broker.protocol",
        reason=_NO_SECURITY,
        neutral=("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
    ),
    ForeignKeys(
        pattern="sasl.jaas.config",
        reason="set it for a listener and a mechanism, as Kafka's brokers want it:"
        " listener.name.<name>.plain.sasl.jaas.config",
    ),
    ForeignKeys(pattern="sasl.", reason=_NO_SECURITY),
    ForeignKeys(
        pattern="security.inter.broker.protocol",
        reason=_NO_SECURITY,
        neutral=("PLAINTEXT", "SASL_PLAINTEXT"),
    ),
    ForeignKeys(pattern="security.", reason=_NO_SECURITY),
    ForeignKeys(pattern="listener.name.", reason=_NO_SECURITY),
    ForeignKeys(pattern="authorizer.", reason=_NO_SECURITY, neutral=("",)),
    ForeignKeys(pattern="super.users", reason=_NO_SECURITY, neutral=("",)),
    ForeignKeys(pattern="allow.everyone.if.no.acl.found", reason=_NO_SECURITY, neutral=("true",)),
    ForeignKeys(pattern="principal.builder.class", reason=_NO_SECURITY),
    ForeignKeys(pattern="password.encoder.", reason=_NO_SECURITY),
    ForeignKeys(pattern="delegation.token.", reason=_NO_SECURITY),
    ForeignKeys(
        pattern="zookeeper.",
        reason="there is no ZooKeeper: strandline keeps its metadata itself. Remove it",
    ),
    ForeignKeys(
        pattern="replica.selector.class",
        reason=_NO_JAVA,
        neutral=("", "org.apache.kafka.common.replica.LeaderSelector"),
    ),
    ForeignKeys(pattern="create.topic.policy.class.name", reason=_NO_JAVA, neutral=("",)),
    ForeignKeys(pattern="alter.config.policy.class.name", reason=_NO_JAVA, neutral=("",)),
    ForeignKeys(pattern="client.quota.callback.class", reason=_NO_JAVA, neutral=("",)),
    ForeignKeys(pattern="config.providers", reason=_NO_JAVA, neutral=("",)),
    ForeignKeys(
        pattern="remote.log.storage.manager.",
        reason="strandline has its own remote tier. Set strandline.remote.url instead",
    ),
    ForeignKeys(
        pattern="rsm.config.",
        reason="strandline has its own remote tier. Set the strandline.remote keys instead",
    ),
)


def find_foreign(key: str, table: tuple[ForeignKeys, ...]) -> ForeignKeys | None:
    """Returns the entry that names `key` itself, else the first whose prefix covers it."""
    matching = [entry for entry in table if entry.matches(key)]
    exact = [entry for entry in matching if entry.pattern == key]
    return next(iter(exact or matching), None)
