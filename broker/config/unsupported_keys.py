"""Keys of Kafka that strandline knows but does not act on.

    IGNORED    their absence here is not visible to clients: accepted, and logged
    REFUSED    ignoring them would mislead (security, limits, plug-ins): refused with the reason

A key in neither table and not in BROKER_CONFIGS is unknown, and refused with the nearest name.
"""

from __future__ import annotations

from collections.abc import Mapping
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


def _table(by_reason: Mapping[str, str]) -> tuple[UnsupportedKeys, ...]:
    """Builds a table from keys by reason; a key may have neutral values: `key=one|another`."""
    return tuple(
        UnsupportedKeys(
            pattern=pattern, reason=reason, neutral=tuple(values.split("|")) if equals else ()
        )
        for reason, keys in by_reason.items()
        for pattern, equals, values in (key.partition("=") for key in keys.split())
    )


_IGNORED_BY_REASON = {
    "metadata is strandline's own log of objects; there is no controller quorum": """
        controller. metadata. early.start.listeners
        broker.id.generation.enable reserved.broker.max.id server.max.startup.time.ms
        log.dir.failure.timeout.ms
    """,
    "connections to leaders have no such setting here": "replica.",
    "there is one broker, which holds every replica": """
        inter.broker.protocol.version
        leader.imbalance. controlled.shutdown.
        eligible.leader.replicas.enable
        offsets.commit.
        remote.log.manager.follower.thread.pool.size follower.fetch.last.tiered.offset.enable
    """,
    "one partition moves at a time": "num.replica.alter.log.dirs.threads",
    "one event loop serves all connections": """
        num.network.threads num.io.threads background.threads queued.max.requests
    """,
    "moves between log folders are bounded in each second": "alter.log.dirs.replication.quota.",
    "requests that have ended leave nothing behind that has to be purged": """
        fetch.purgatory.purge.interval.requests producer.purgatory.purge.interval.requests
        delete.records.purgatory.purge.interval.requests
    """,
    "OpenSSL has the place of Java's providers": """
        ssl.keymanager.algorithm ssl.trustmanager.algorithm ssl.secure.random.implementation
    """,
    "there are no unstable versions here": "unstable.",
    "the kernel sizes socket buffers": "socket.send.buffer.bytes socket.receive.buffer.bytes",
    "the broker chooses its backlog": "socket.listen.backlog.size",
    "the broker does not compress these small records": "offsets.topic.compression.codec",
    "the loader chooses its buffer": """
        offsets.load.buffer.size transaction.state.log.load.buffer.size
    """,
    "the coordinator of transactions is in the same process, and answers at once": """
        add.partitions.to.txn.retry.backoff.ms add.partitions.to.txn.retry.backoff.max.ms
    """,
    "Kafka 4.4 has no stable version of two-phase commit": "transaction.two.phase.commit.enable",
    "groups have no such setting here": "group.consumer.",
    "one event loop serves all groups": "group.coordinator.",
    "there are no share or streams groups yet": "group.share. group.streams. share. streams.",
    "idle producers are looked for every ten minutes": "producer.id.expiration.check.interval.ms",
    "checkpoints are written every 5 seconds": """
        log.flush.offset.checkpoint.interval.ms log.flush.start.offset.checkpoint.interval.ms
    """,
    "Kafka ignores it since 4.0": "log.message.format.version log.message.downconversion.enable",
    "there is no Java virtual machine": """
        metric.reporters kafka.metrics. metrics. auto.include.jmx.reporter
    """,
    "client telemetry is not served": "telemetry.",
    "the manifests in the bucket take its place": "remote.log.metadata. rlmm.config.",
    "the copier's pool does all copying": "remote.log.manager.thread.pool.size",
    "the broker drops an index when their cache is full": "remote.log.index.file.cache.ttl.ms",
}
IGNORED = _table(_IGNORED_BY_REASON)

_REFUSED_BY_REASON = {
    "to ignore the property would leave the broker open. Remove it; what to do instead:"
    " strandline docs how-to/secure": """
        sasl. security.
        listener.name. authorizer. principal.builder.class
        password.encoder. delegation.token.
    """,
    "set it for a listener and a mechanism, as Kafka's brokers want it: "
    "listener.name.<name>.plain.sasl.jaas.config": "sasl.jaas.config",
    "OpenSSL has the place of Java's providers. Remove it": "ssl.",
    "there is no ZooKeeper: strandline keeps its metadata itself. Remove it": "zookeeper.",
    "it names a Java class, and strandline is no Java program. Remove it": """
        create.topic.policy.class.name= alter.config.policy.class.name=
        client.quota.callback.class= config.providers=
    """,
    "strandline has its own remote tier. Set strandline.remote.url instead": """
        remote.log.storage.manager.
    """,
    "strandline has its own remote tier. Set strandline.remote properties instead": "rsm.config.",
}
REFUSED = _table(_REFUSED_BY_REASON)


def find_foreign(key: str, table: tuple[UnsupportedKeys, ...]) -> UnsupportedKeys | None:
    """Returns the entry that names `key` itself, else the first whose prefix covers it."""
    matching = [entry for entry in table if entry.matches(key)]
    exact = [entry for entry in matching if entry.pattern == key]
    return next(iter(exact or matching), None)
