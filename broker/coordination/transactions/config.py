"""Configuration of the transaction coordinator."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.storage.config.definition import BOOLEAN, INT, MIB, MINUTE_MS, key


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfig:
    """Configuration of transactions and of the topic that keeps their state."""

    timeout_ms_max: int = key(
        "transaction.max.timeout.ms",
        INT,
        15 * MINUTE_MS,
        "Longest transaction.timeout.ms that a producer may ask for, in ms.",
        minimum=1,
    )
    expiration_ms: int = key(
        "transactional.id.expiration.ms",
        INT,
        7 * 24 * 60 * MINUTE_MS,
        "Ms without a transaction after which the broker forgets a transactional id.",
        minimum=1,
    )
    timeout_check_interval_ms: int = key(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        INT,
        10_000,
        "Ms between two checks for transactions that have timed out; the broker aborts these.",
        minimum=1,
    )
    expiration_check_interval_ms: int = key(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        INT,
        60 * MINUTE_MS,
        "Ms between two checks for expired transactional ids.",
        minimum=1,
    )
    partition_count: int = key(
        "transaction.state.log.num.partitions",
        INT,
        50,
        "Partitions of __transaction_state when it is created; the first transactional id"
        " creates it.",
        minimum=1,
    )
    replicas_max: int = key(
        "transaction.state.log.replication.factor",
        INT,
        3,
        "Replicas of __transaction_state when it is created; where fewer brokers are registered, as"
        " many as these.",
        minimum=1,
        maximum=32767,
    )
    in_sync_min: int = key(
        "transaction.state.log.min.isr",
        INT,
        2,
        "min.insync.replicas of __transaction_state when it is created with several replicas.",
        minimum=1,
    )
    segment_bytes: int = key(
        "transaction.state.log.segment.bytes",
        INT,
        100 * MIB,
        "segment.bytes of __transaction_state when it is created.",
        minimum=MIB,
    )
    verifies_partitions: bool = key(
        "transaction.partition.verification.enable",
        BOOLEAN,
        True,
        "Whether the broker asks the coordinator if a partition is part of the transaction before"
        " it appends the first batch there.",
        dynamic=True,
    )
