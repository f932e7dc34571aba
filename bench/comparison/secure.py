"""Rows of TLS and of the authorizer: one function per kind, as in workloads.py."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from bench.clients.rdkafka import producers
from bench.comparison.peers import Peer
from bench.comparison.rows import AclRow, Row
from bench.comparison.tls import TlsClient
from bench.comparison.workloads import (
    CREATE_TIMEOUT_S,
    Figures,
    Site,
    create_topic,
    move,
    own_broker,
    produce_load,
)
from bench.measure import measuring, warm_page_cache
from strandline.broker.authorization.authorizer import Authorizer
from strandline.broker.authorization.config import STANDARD_AUTHORIZER, AuthorizerConfig
from strandline.broker.handlers.produce.rights import denied_topics, may_write_transaction
from strandline.broker.protocol.messages.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
)
from strandline.broker.security import acl as rules

# Kafka's JVM compiles what a handshake runs; no other row makes more than a few.
HANDSHAKES_WARM_UP_S = 10.0
FIRST_CONNECTIONS = 50
# A broker frees the buffers of a connection that is quiet: strandline after 10 s, in a sweep each
# 5 s.
QUIET_S = 20.0
CLIENT = "User:ANONYMOUS"
WRITTEN = "t"
# Who makes topics and rules has no rule for that.
AUTHORIZED: Mapping[str, str] = {
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "allow.everyone.if.no.acl.found": "true",
}
CALLS = 20_000
REPEATS = 5


def move_tls(site: Site, row: Row, peer: Peer) -> Figures:
    """As `move`, over TLS. The topic is made and awaited by the plain listener."""
    return move(site, row, peer, settings=site.certificates.of_librdkafka(peer.tls_port))


def tls_handshakes(site: Site, row: Row, peer: Peer) -> Figures:
    """Connections without a request, as many as come and go in the row's time."""
    client = TlsClient(site.certificates, peer.tls_port)
    client.shake_hands_for(HANDSHAKES_WARM_UP_S)
    with measuring(peer.pid) as measured:
        count = client.shake_hands_for(row.seconds * max(site.size, 0.5))
    return {
        "handshakes_per_s": count / measured.wall_s,
        "handshakes_per_cpu_s": count / measured.cpu_s,
    }


def tls_idle(site: Site, row: Row, peer: Peer) -> Figures:
    """What a broker holds in memory for a connection that is quiet."""
    with own_broker(site, row, peer, tls=site.certificates) as broker:
        client = TlsClient(site.certificates, broker.tls_port)
        with client.idle(FIRST_CONNECTIONS):
            time.sleep(QUIET_S)
        before_mib = broker.held_mib()
        with client.idle(row.connections):
            time.sleep(QUIET_S)
            held_mib = broker.held_mib() - before_mib
    return {"connection_kib": held_mib * 1024 / row.connections}


def acl(site: Site, row: Row, peer: Peer) -> Figures:
    """Produces to a topic of an authorizer with the row's rules.

    Its share is a hundredth of that, which is less than one run differs from the next. So what it
    does for each request is timed alone, with the same rules, and multiplied by the requests.
    """
    assert isinstance(row, AclRow), row
    load = produce_load(row, WRITTEN, site.count(row))
    with own_broker(site, row, peer, settings=AUTHORIZED) as broker:
        create_topic(broker, WRITTEN)
        _make_rules(broker, row.rules)
        # The first time a broker does most things is not the one that counts.
        for _ in range(2):
            with producers(broker.bootstrap, load) as ready:
                warm_page_cache(site.folder, site.value_bytes(row))
                with measuring(broker.pid) as produced:
                    ready.run()
    produce_cpu = produced.cpu_s_per_gb(load.value_bytes)
    decision_s = _decision_s(row.rules)
    requests_per_gb = 1e9 / (load.records_per_batch * row.record_bytes)
    return {
        "produce_cpu": produce_cpu,
        "decision_us": decision_s * 1e6,
        "authorization_share": 100 * decision_s * requests_per_gb / produce_cpu,
    }


def _rules(count: int) -> Sequence[rules.Acl]:
    """One that lets the client write its topic, and others: literal and prefixed names."""
    others = [
        rules.Acl(
            kind=rules.ResourceKind.TOPIC,
            name=f"orders-{number}",
            pattern=rules.PatternType.PREFIXED if number % 2 else rules.PatternType.LITERAL,
            principal=f"User:user-{number % 100}",
            host=rules.WILDCARD,
            operation=rules.AclOperation.READ,
            permission=rules.AclPermission.ALLOW,
        )
        for number in range(count - 1)
    ]
    own = rules.Acl(
        kind=rules.ResourceKind.TOPIC,
        name=WRITTEN,
        pattern=rules.PatternType.LITERAL,
        principal=CLIENT,
        host=rules.WILDCARD,
        operation=rules.AclOperation.WRITE,
        permission=rules.AclPermission.ALLOW,
    )
    return [own, *others]


def _make_rules(broker: Peer, count: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    bindings = [
        AclBinding(
            ResourceType[rules.ResourceKind(rule.kind).name],
            rule.name,
            ResourcePatternType[rules.PatternType(rule.pattern).name],
            rule.principal,
            rule.host,
            AclOperation[rules.AclOperation(rule.operation).name],
            AclPermissionType[rules.AclPermission(rule.permission).name],
        )
        for rule in _rules(count)
    ]
    for made in admin.create_acls(bindings, request_timeout=CREATE_TIMEOUT_S).values():
        made.result(CREATE_TIMEOUT_S)


def _decision_s(rule_count: int) -> float:
    """CPU seconds of what a Produce asks the authorizer."""
    authorizer = Authorizer(AuthorizerConfig(class_name=STANDARD_AUTHORIZER))
    for rule in _rules(rule_count):
        authorizer.index.add(rule)
    access = authorizer.access(CLIENT, "127.0.0.1")
    request = ProduceRequest(
        acks=1,
        timeout_ms=1000,
        topics=[ProduceTopic(name=WRITTEN, partitions=[ProducePartition(index=0, records=None)])],
    )
    assert not denied_topics(request.topics, access, _no_name)
    least_s = float("inf")
    for _ in range(REPEATS):
        started_s = time.thread_time()
        for _ in range(CALLS):
            may_write_transaction(request, access)
            denied_topics(request.topics, access, _no_name)
        least_s = min(least_s, time.thread_time() - started_s)
    return least_s / CALLS


def _no_name(_topic_id: object) -> None:
    return None
