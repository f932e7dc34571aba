"""How a broker replicates, with Kafka's keys."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.storage.config.definition import INT, LONG, key

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFetchConfig:
    """Settings of followers, and of leaders that watch them."""

    lag_ms_max: int = key(
        "replica.lag.time.max.ms",
        LONG,
        30_000,
        "Ms without having caught up with its leader after which a follower is not in sync any"
        " more.",
        minimum=1,
    )
    fetcher_count: int = key(
        "num.replica.fetchers",
        INT,
        1,
        "Connections by which the broker fetches from each other broker that leads partitions.",
        minimum=1,
        maximum=100,
    )
    partition_bytes_max: int = key(
        "replica.fetch.max.bytes",
        INT,
        MIB,
        "Bytes of one partition that a follower wants in an answer; one batch may be larger.",
        minimum=0,
    )
    answer_bytes_max: int = key(
        "replica.fetch.response.max.bytes",
        INT,
        10 * MIB,
        "Bytes of all partitions that a follower wants in an answer; one batch may be larger.",
        minimum=0,
    )
    bytes_min: int = key(
        "replica.fetch.min.bytes",
        INT,
        1,
        "Bytes that a leader waits for before it answers a follower.",
        minimum=0,
    )
    wait_ms_max: int = key(
        "replica.fetch.wait.max.ms",
        INT,
        500,
        "Longest wait of a leader before it answers a follower, in ms. Must be below"
        " replica.lag.time.max.ms: a slow topic would make followers look late.",
        minimum=0,
    )
    backoff_ms: int = key(
        "replica.fetch.backoff.ms",
        INT,
        1000,
        "Pause of a follower before it fetches a partition again that failed, in ms.",
        minimum=0,
    )
    answer_ms_max: int = key(
        "replica.socket.timeout.ms",
        INT,
        30_000,
        "Longest wait of a follower for its leader's answer, in ms.",
        minimum=1,
    )
