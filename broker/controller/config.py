"""The properties of a controller that runs in a process of its own."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.storage.config.definition import BOOLEAN, INT, LONG, key


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig:
    """Sessions of brokers, and elections of preferred leaders."""

    session_timeout_ms: int = key(
        "broker.session.timeout.ms",
        INT,
        9000,
        "A controller fences a broker that it has not heard for so long. Time in which the"
        " controller itself stood still does not count.",
        minimum=1,
    )
    balances_leaders: bool = key(
        "auto.leader.rebalance.enable",
        BOOLEAN,
        True,
        "A controller lets the first replica of a partition lead again when it is back in sync.",
    )
    balance_interval_s: int = key(
        "leader.imbalance.check.interval.seconds",
        LONG,
        300,
        "How often a controller looks for partitions that another than the first replica leads.",
        minimum=1,
    )
    unclean_interval_ms: int = key(
        "unclean.leader.election.interval.ms",
        LONG,
        300_000,
        "How often a controller looks for partitions without a leader whose topics allow an unclean"
        " election.",
        minimum=1,
    )
