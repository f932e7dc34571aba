"""The rows of the comparison: workload, brokers and goals.

Each row is a line of data; `bench/comparison/workloads.py` has one function for each kind. A row
varies one thing against BASE: records of 1 KB in batches of 16 KB, not compressed, acks=1, one
partition, one connection. A goal is a bound on one metric: on the ratio strandline : Kafka, or on
strandline's own figure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

KB = 1000
# A request with one record, and no waiting for more.
SINGLE = 0
BATCH_16_KB = 16 * 1024
# Kafka's message.max.bytes is a little above this.
BATCH_1_MB = 1_000_000
# Who reads an archive from its beginning reads gigabytes. Of a third of a second most is what the
# broker does once after its start, and Kafka's JVM is warm by then.
REWIND_MB = 2000


class Brokers(Enum):
    """The brokers that a row runs against."""

    HOT = "both brokers up, data on the local disk"
    TLS = "both brokers up, clients by TLS"
    TIERED = "both brokers up, with a second tier in a local folder"
    OWN = "brokers of its own, one at a time"
    NONE = "no broker"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One figure that a row gives."""

    title: str
    digits: int = 1


METRICS: Mapping[str, Metric] = {
    "produce_mb_per_s": Metric(title="produce, MB/s", digits=0),
    "produce_cpu": Metric(title="produce, broker CPU s/GB", digits=2),
    "consume_mb_per_s": Metric(title="consume, MB/s", digits=0),
    "consume_cpu": Metric(title="consume, broker CPU s/GB", digits=2),
    "records_per_s": Metric(title="records/s, end to end", digits=0),
    "transactions_per_s": Metric(title="transactions/s", digits=0),
    "transactions_mb_per_s": Metric(title="committed, MB/s", digits=0),
    "commit_p50_ms": Metric(title="p50 of commit, ms", digits=2),
    "commit_p99_ms": Metric(title="p99 of commit, ms", digits=2),
    "transaction_cpu_ms": Metric(title="broker CPU ms per transaction", digits=3),
    "p50_ms": Metric(title="p50, ms", digits=2),
    "p99_ms": Metric(title="p99, ms", digits=2),
    "p999_ms": Metric(title="p99.9, ms", digits=2),
    "start_s": Metric(title="start until it serves, s", digits=2),
    "create_s": Metric(title="create the topic, s", digits=2),
    "rest_mib": Metric(title="resident at rest, MiB", digits=0),
    "peak_mib": Metric(title="resident at most, MiB", digits=0),
    "handshakes_per_s": Metric(title="handshakes/s", digits=0),
    "handshakes_per_cpu_s": Metric(title="handshakes per broker CPU s", digits=0),
    "connection_kib": Metric(title="memory of a connection, KiB"),
    "decision_us": Metric(title="decision on a request, µs", digits=2),
    "authorization_share": Metric(title="of that authorization, %", digits=2),
    "idle_cpu": Metric(title="CPU at rest, ms per s", digits=2),
}


class Bounded(Enum):
    """What a goal is a bound on."""

    RATIO = "strandline : Kafka"
    FIGURE = "strandline's own figure"


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A bound."""

    at_most: float | None = None
    at_least: float | None = None
    of: Bounded = Bounded.RATIO

    def is_met(self, measured: float) -> bool:
        return (self.at_most is None or measured <= self.at_most) and (
            self.at_least is None or measured >= self.at_least
        )

    def __str__(self) -> str:
        return f"≤ {self.at_most:g}" if self.at_most is not None else f"≥ {self.at_least:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the report."""

    name: str
    kind: str
    section: str
    title: str
    brokers: Brokers = Brokers.HOT
    goals: Mapping[str, Goal] = field(default_factory=dict)
    # Of record values, in a full run; a quick one takes a quarter.
    megabytes: int = 400
    record_bytes: int = 1 * KB
    batch_bytes: int = BATCH_16_KB
    codec: str = "none"
    acks: int = 1
    partitions: int = 1
    connections: int = 1
    idempotent: bool = False
    consumers: int = 1
    # Of the slower broker's peak.
    load: float = 0
    seconds: float = 8
    peers: tuple[str, ...] = ("strandline", "Kafka")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionRow(Row):
    """A row of transactions."""

    # In each transaction.
    records: int
    # "librdkafka" or "Java": see bench/comparison/transactions.py.
    client: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AclRow(Row):
    """A row of the authorizer."""

    # That it has.
    rules: int


# Of a transaction: fewer than these are no matter of MB/s.
MANY_RECORDS = 100

AT_LEAST_AS_FAST = {
    "produce_mb_per_s": Goal(at_least=1.0),
    "consume_mb_per_s": Goal(at_least=1.0),
}
BIG_BATCHES = {
    **AT_LEAST_AS_FAST,
    "produce_cpu": Goal(at_most=0.7),
    "consume_cpu": Goal(at_most=0.7),
}
MANY_SINGLES = {
    **AT_LEAST_AS_FAST,
    "produce_cpu": Goal(at_most=1.0),
    "consume_cpu": Goal(at_most=1.0),
}
TRANSACTIONS = {
    "transactions_per_s": Goal(at_least=1.0),
    "transaction_cpu_ms": Goal(at_most=0.7),
}
SEALED = {
    **AT_LEAST_AS_FAST,
    "produce_cpu": Goal(at_most=0.8),
    "consume_cpu": Goal(at_most=0.8),
}
PROMPT = {"p99_ms": Goal(at_most=1.0)}
MOVE = "Produce and consume"
SECURE = "TLS and authorization"
COMMIT = "Transactions"
WAIT = "End-to-end latency"
COLD = "Cold reads"
LIFE = "Start, recovery, memory, rest"
LIMIT = "What the machine can do"


def _move(name: str, title: str, goals: Mapping[str, Goal] = BIG_BATCHES, **changes: object) -> Row:
    return Row(
        name=name,
        section=MOVE,
        title=title,
        goals=goals,
        **{"kind": "move", **changes},  # type: ignore[arg-type]
    )


def _tls(name: str, title: str, goals: Mapping[str, Goal] = SEALED, **changes: object) -> Row:
    return Row(
        name=name,
        section=SECURE,
        title=title,
        goals=goals,
        **{"kind": "move_tls", "brokers": Brokers.TLS, **changes},  # type: ignore[arg-type]
    )


def _transactions(client: str, records: int, partitions: int) -> Row:
    text = "1 record" if records == 1 else f"{records:,} records"
    place = "1 partition" if partitions == 1 else f"{partitions} partitions"
    # Each producer of librdkafka waits for its own timer (bench/comparison/transactions.py). With
    # 10 of them, small transactions come at the rate of the timers, whatever the broker is.
    producers = 1 if client == "Java" else 10 if records >= MANY_RECORDS else 40
    who = f"{producers} producers of {client}" if producers > 1 else client
    return TransactionRow(
        name=f"transactions-{client.lower()}-{records}-{partitions}",
        kind="transactions",
        section=COMMIT,
        title=f"{who}: {text}, {place}",
        goals=TRANSACTIONS,
        acks=-1,
        partitions=partitions,
        connections=producers,
        idempotent=True,
        seconds=4,
        records=records,
        client=client,
    )


ROWS: tuple[Row, ...] = (
    _move("base", "1 KB records, batches of 16 KB"),
    _move(
        "record-100b",
        "100 B records",
        kind="move_small_records",
        record_bytes=100,
        megabytes=100,
    ),
    # The same client as in the other rows, which waits for itself at such records:
    # bench/notes/clients.md.
    _move(
        "record-100b-two-cores",
        "100 B records, client on both cores",
        record_bytes=100,
        megabytes=100,
    ),
    _move("record-10kb", "10 KB records", record_bytes=10 * KB, megabytes=400),
    _move("single", "batches of one record", AT_LEAST_AS_FAST, batch_bytes=SINGLE, megabytes=40),
    _move("batch-1mb", "batches of 1 MB", batch_bytes=BATCH_1_MB, megabytes=800),
    _move("lz4", "lz4", codec="lz4"),
    _move("zstd", "zstd", codec="zstd"),
    _move("acks-0", "acks=0", acks=0),
    _move("acks-all", "acks=all", acks=-1),
    _move("partitions-100", "100 partitions", partitions=100, megabytes=200),
    _move("partitions-1000", "1,000 partitions", partitions=1000, megabytes=200),
    _move("connections-50", "50 connections", connections=50),
    _move("connections-500", "500 connections", connections=500),
    _move(
        "single-50",
        "batches of one record, 50 connections",
        MANY_SINGLES,
        batch_bytes=SINGLE,
        connections=50,
        partitions=50,
        megabytes=40,
    ),
    _move("idempotent", "idempotent producer", idempotent=True, acks=-1),
    _move(
        "fan-out",
        "10 consumers at once, MB/s of all",
        {"consume_mb_per_s": Goal(at_least=1.0), "consume_cpu": Goal(at_most=0.7)},
        consumers=10,
        megabytes=200,
    ),
    Row(
        name="java",
        kind="java",
        section=MOVE,
        title="Kafka's own perf tools (Java clients)",
        goals=BIG_BATCHES,
        megabytes=300,
    ),
    _tls("tls-16kb", "TLS 1.3, batches of 16 KB"),
    _tls("tls-1mb", "TLS 1.3, batches of 1 MB", batch_bytes=BATCH_1_MB, megabytes=800),
    _tls(
        "tls-handshakes",
        "handshakes of TLS 1.3, P-256",
        {"handshakes_per_cpu_s": Goal(at_least=5)},
        kind="tls_handshakes",
    ),
    _tls(
        "tls-idle",
        "1,000 quiet connections of TLS 1.3",
        {"connection_kib": Goal(at_most=40, of=Bounded.FIGURE)},
        kind="tls_idle",
        brokers=Brokers.OWN,
        connections=1000,
    ),
    AclRow(
        name="acl-1000",
        kind="acl",
        section=SECURE,
        title="authorizer with 1,000 rules, batches of 16 KB, no TLS",
        brokers=Brokers.OWN,
        goals={"authorization_share": Goal(at_most=1, of=Bounded.FIGURE)},
        peers=("strandline",),
        rules=1000,
    ),
    *(
        _transactions(client, records, partitions)
        for client in ("librdkafka", "Java")
        for records in (1000, 10, 1)
        for partitions in (1, 10)
    ),
    Row(name="peak", kind="peak", section=WAIT, title="peak, one record at a time", megabytes=150),
    Row(name="latency-10", kind="latency", section=WAIT, title="10 %", goals=PROMPT, load=0.1),
    Row(name="latency-50", kind="latency", section=WAIT, title="50 %", goals=PROMPT, load=0.5),
    Row(
        name="latency-rewind",
        kind="latency_rewind",
        section=WAIT,
        title="10 %, while another consumer reads the second tier",
        brokers=Brokers.TIERED,
        goals=PROMPT,
        load=0.1,
    ),
    Row(
        name="latency-upload",
        kind="latency_upload",
        section=WAIT,
        title="10 %, while another topic of 50 MB/s is uploaded",
        brokers=Brokers.TIERED,
        goals=PROMPT,
        load=0.1,
    ),
    Row(
        name="cold",
        kind="cold",
        section=COLD,
        title="second tier in a local folder, batches of 16 KB, 2 GB",
        brokers=Brokers.TIERED,
        goals={"consume_mb_per_s": Goal(at_least=1.5)},
        megabytes=REWIND_MB,
    ),
    Row(
        name="cold-first",
        kind="cold",
        section=COLD,
        title="the same, the first 400 MB (strandline's right after its start)",
        brokers=Brokers.TIERED,
    ),
    Row(
        name="cold-1mb",
        kind="cold",
        section=COLD,
        title="second tier in a local folder, batches of 1 MB, 2 GB",
        brokers=Brokers.TIERED,
        goals={"consume_mb_per_s": Goal(at_least=1.5)},
        batch_bytes=BATCH_1_MB,
        megabytes=REWIND_MB,
    ),
    Row(
        name="cold-s3",
        kind="cold_s3",
        section=COLD,
        title="S3 server on loopback that answers at once",
        brokers=Brokers.OWN,
        peers=("strandline",),
    ),
    Row(
        name="cold-s3-far",
        kind="cold_s3_far",
        section=COLD,
        title="S3 server that takes 30 ms and gives 90 MB/s a connection",
        brokers=Brokers.OWN,
        peers=("strandline",),
    ),
    Row(
        name="start-1",
        kind="start",
        section=LIFE,
        title="start, 1 partition",
        brokers=Brokers.OWN,
        goals={"start_s": Goal(at_most=0.1)},
    ),
    Row(
        name="start-2000",
        kind="start",
        section=LIFE,
        title="start, 2,000 partitions",
        brokers=Brokers.OWN,
        goals={"start_s": Goal(at_most=0.1)},
        partitions=2000,
    ),
    Row(
        name="recovery",
        kind="recovery",
        section=LIFE,
        title="start after kill -9, 1 GB not flushed",
        brokers=Brokers.OWN,
        megabytes=1000,
    ),
    Row(
        name="memory",
        kind="memory",
        section=LIFE,
        title="memory and CPU at rest, memory after 400 MB and 50 connections",
        brokers=Brokers.OWN,
        goals={"rest_mib": Goal(at_most=0.1)},
    ),
    Row(
        name="limit-socket",
        kind="limit_socket",
        section=LIMIT,
        title="a socket read and thrown away; a file sent with sendfile",
        brokers=Brokers.NONE,
        megabytes=2000,
        peers=("limit",),
    ),
    Row(
        name="limit-append",
        kind="limit_append",
        section=LIMIT,
        title="a socket read and appended to a file",
        brokers=Brokers.NONE,
        megabytes=1000,
        peers=("limit",),
    ),
    Row(
        name="limit-file",
        kind="limit_file",
        section=LIMIT,
        title="a file appended to, as dd does",
        brokers=Brokers.NONE,
        megabytes=1000,
        peers=("limit",),
    ),
)
