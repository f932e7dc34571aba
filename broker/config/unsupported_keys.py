"""Keys of Kafka that strandline knows but does not act on.

    IGNORED    their absence here is not visible to clients: accepted, and logged
    REFUSED    ignoring them would mislead (security, limits, plug-ins): refused with the reason

A key in neither table and not in BROKER_CONFIGS is unknown, and refused with the nearest name.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsupportedKeys:
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

IGNORED: tuple[UnsupportedKeys, ...] = (
    UnsupportedKeys(pattern="process.roles", reason=_OWN_METADATA),
    UnsupportedKeys(pattern="controller.", reason=_OWN_METADATA),
    UnsupportedKeys(pattern="metadata.", reason=_OWN_METADATA),
    UnsupportedKeys(pattern="early.start.listeners", reason=_OWN_METADATA),
    UnsupportedKeys(pattern="broker.heartbeat.interval.ms", reason=_OWN_METADATA),
    UnsupportedKeys(pattern="broker.session.timeout.ms", reason=_OWN_METADATA),
    UnsupportedKeys(pattern="initial.broker.registration.timeout.ms", reason=_OWN_METADATA),
    UnsupportedKeys(pattern="inter.broker.listener.name", reason=_ONE_BROKER),
    UnsupportedKeys(pattern="inter.broker.protocol.version", reason=_ONE_BROKER),
    UnsupportedKeys(pattern="replica.", reason=_ONE_BROKER),
    UnsupportedKeys(pattern="num.replica.fetchers", reason=_ONE_BROKER),
    UnsupportedKeys(
        pattern="num.replica.alter.log.dirs.threads", reason="one partition moves at a time"
    ),
    UnsupportedKeys(pattern="auto.leader.rebalance.enable", reason=_ONE_BROKER),
    UnsupportedKeys(pattern="leader.imbalance.", reason=_ONE_BROKER),
    UnsupportedKeys(pattern="controlled.shutdown.", reason=_ONE_BROKER),
    UnsupportedKeys(pattern="num.network.threads", reason=_ONE_LOOP),
    UnsupportedKeys(pattern="num.io.threads", reason=_ONE_LOOP),
    UnsupportedKeys(pattern="background.threads", reason=_ONE_LOOP),
    UnsupportedKeys(pattern="queued.max.requests", reason=_ONE_LOOP),
    UnsupportedKeys(pattern="queued.max.request.bytes", reason=_ONE_LOOP),
    UnsupportedKeys(pattern="request.timeout.ms", reason=_ONE_BROKER),
    UnsupportedKeys(pattern="replication.quota.", reason=_ONE_BROKER),
    UnsupportedKeys(
        pattern="alter.log.dirs.replication.quota.",
        reason="moves between log folders have no quota",
    ),
    UnsupportedKeys(pattern="unclean.leader.election.interval.ms", reason=_ONE_BROKER),
    UnsupportedKeys(pattern="eligible.leader.replicas.enable", reason=_ONE_BROKER),
    UnsupportedKeys(pattern="broker.id.generation.enable", reason=_OWN_METADATA),
    UnsupportedKeys(pattern="reserved.broker.max.id", reason=_OWN_METADATA),
    UnsupportedKeys(pattern="server.max.startup.time.ms", reason=_OWN_METADATA),
    UnsupportedKeys(pattern="fetch.purgatory.purge.interval.requests", reason=_NO_PURGATORY),
    UnsupportedKeys(pattern="producer.purgatory.purge.interval.requests", reason=_NO_PURGATORY),
    UnsupportedKeys(
        pattern="delete.records.purgatory.purge.interval.requests", reason=_NO_PURGATORY
    ),
    UnsupportedKeys(pattern="unstable.", reason="there are no unstable versions here"),
    UnsupportedKeys(pattern="socket.send.buffer.bytes", reason="the kernel sizes socket buffers"),
    UnsupportedKeys(
        pattern="socket.receive.buffer.bytes", reason="the kernel sizes socket buffers"
    ),
    UnsupportedKeys(pattern="socket.listen.backlog.size", reason="the broker chooses its backlog"),
    UnsupportedKeys(pattern="offsets.topic.replication.factor", reason=_ONE_BROKER),
    UnsupportedKeys(pattern="offsets.commit.", reason=_ONE_BROKER),
    UnsupportedKeys(pattern="offsets.topic.compression.codec", reason="these records are small"),
    UnsupportedKeys(pattern="offsets.load.buffer.size", reason="the loader chooses its buffer"),
    UnsupportedKeys(pattern="group.consumer.", reason=_NO_SUCH_GROUP_KEY),
    UnsupportedKeys(pattern="group.coordinator.", reason="one event loop serves all groups"),
    UnsupportedKeys(pattern="group.share.", reason=_NO_GROUPS),
    UnsupportedKeys(pattern="group.streams.", reason=_NO_GROUPS),
    UnsupportedKeys(pattern="share.", reason=_NO_GROUPS),
    UnsupportedKeys(pattern="streams.", reason=_NO_GROUPS),
    UnsupportedKeys(pattern="transaction.", reason=_NO_GROUPS),
    UnsupportedKeys(pattern="transactional.id.expiration.ms", reason=_NO_GROUPS),
    UnsupportedKeys(
        pattern="producer.id.expiration.check.interval.ms",
        reason="idle producers are looked for every ten minutes",
    ),
    UnsupportedKeys(
        pattern="log.flush.offset.checkpoint.interval.ms",
        reason="checkpoints are written every 5 seconds",
    ),
    UnsupportedKeys(
        pattern="log.flush.start.offset.checkpoint.interval.ms",
        reason="checkpoints are written every 5 seconds",
    ),
    UnsupportedKeys(pattern="log.message.format.version", reason="Kafka ignores it since 4.0"),
    UnsupportedKeys(
        pattern="log.message.downconversion.enable", reason="Kafka ignores it since 4.0"
    ),
    UnsupportedKeys(pattern="log.dir.failure.timeout.ms", reason=_OWN_METADATA),
    UnsupportedKeys(pattern="metric.reporters", reason="there is no Java virtual machine"),
    UnsupportedKeys(pattern="kafka.metrics.", reason="there is no Java virtual machine"),
    UnsupportedKeys(pattern="metrics.", reason="there is no Java virtual machine"),
    UnsupportedKeys(pattern="auto.include.jmx.reporter", reason="there is no Java virtual machine"),
    UnsupportedKeys(pattern="telemetry.", reason="client telemetry is not served"),
    UnsupportedKeys(pattern="remote.log.metadata.", reason=_OWN_TIER),
    UnsupportedKeys(pattern="rlmm.config.", reason=_OWN_TIER),
    UnsupportedKeys(
        pattern="remote.log.manager.thread.pool.size", reason="the copier's pool does all copying"
    ),
    UnsupportedKeys(pattern="remote.log.manager.follower.thread.pool.size", reason=_ONE_BROKER),
    UnsupportedKeys(pattern="follower.fetch.last.tiered.offset.enable", reason=_ONE_BROKER),
    UnsupportedKeys(
        pattern="remote.log.index.file.cache.ttl.ms",
        reason="an index goes when the bound of the cache is reached",
    ),
)

_NO_SECURITY = (
    "strandline has SASL/PLAIN and SCRAM, and no encryption or authorisation yet; ignoring the key"
    " would leave the broker open. Remove it and keep the broker on a trusted network"
)
_NO_JAVA = "it names a Java class, and strandline is no Java program. Remove it"

REFUSED: tuple[UnsupportedKeys, ...] = (
    UnsupportedKeys(pattern="ssl.", reason=_NO_SECURITY),
    UnsupportedKeys(
        pattern="sasl.mechanism.inter.broker.protocol",
        reason=_NO_SECURITY,
        neutral=("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
    ),
    UnsupportedKeys(
        pattern="sasl.jaas.config",
        reason="set it for a listener and a mechanism, as Kafka's brokers want it:"
        " listener.name.<name>.plain.sasl.jaas.config",
    ),
    UnsupportedKeys(pattern="sasl.", reason=_NO_SECURITY),
    UnsupportedKeys(
        pattern="security.inter.broker.protocol",
        reason=_NO_SECURITY,
        neutral=("PLAINTEXT", "SASL_PLAINTEXT"),
    ),
    UnsupportedKeys(pattern="security.", reason=_NO_SECURITY),
    UnsupportedKeys(pattern="listener.name.", reason=_NO_SECURITY),
    UnsupportedKeys(pattern="authorizer.", reason=_NO_SECURITY, neutral=("",)),
    UnsupportedKeys(pattern="super.users", reason=_NO_SECURITY, neutral=("",)),
    UnsupportedKeys(
        pattern="allow.everyone.if.no.acl.found", reason=_NO_SECURITY, neutral=("true",)
    ),
    UnsupportedKeys(pattern="principal.builder.class", reason=_NO_SECURITY),
    UnsupportedKeys(pattern="password.encoder.", reason=_NO_SECURITY),
    UnsupportedKeys(pattern="delegation.token.", reason=_NO_SECURITY),
    UnsupportedKeys(
        pattern="zookeeper.",
        reason="there is no ZooKeeper: strandline keeps its metadata itself. Remove it",
    ),
    UnsupportedKeys(
        pattern="replica.selector.class",
        reason=_NO_JAVA,
        neutral=("", "org.apache.kafka.common.replica.LeaderSelector"),
    ),
    UnsupportedKeys(pattern="create.topic.policy.class.name", reason=_NO_JAVA, neutral=("",)),
    UnsupportedKeys(pattern="alter.config.policy.class.name", reason=_NO_JAVA, neutral=("",)),
    UnsupportedKeys(pattern="client.quota.callback.class", reason=_NO_JAVA, neutral=("",)),
    UnsupportedKeys(pattern="config.providers", reason=_NO_JAVA, neutral=("",)),
    UnsupportedKeys(
        pattern="remote.log.storage.manager.",
        reason="strandline has its own remote tier. Set strandline.remote.url instead",
    ),
    UnsupportedKeys(
        pattern="rsm.config.",
        reason="strandline has its own remote tier. Set the strandline.remote keys instead",
    ),
)


def find_foreign(key: str, table: tuple[UnsupportedKeys, ...]) -> UnsupportedKeys | None:
    """Returns the entry that names `key` itself, else the first whose prefix covers it."""
    matching = [entry for entry in table if entry.matches(key)]
    exact = [entry for entry in matching if entry.pattern == key]
    return next(iter(exact or matching), None)
