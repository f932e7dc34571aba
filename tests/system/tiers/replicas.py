"""Read-only replicas of what the other brokers of a test archive."""

from __future__ import annotations

from collections.abc import Mapping

from tests.system.tiers.conftest import MakeBroker
from tests.system.tiers.tiered_broker import REPLICA, TieredBroker


def start_replica(
    make_broker: MakeBroker, settings: Mapping[str, str] | None = None, **options: object
) -> TieredBroker:
    """One that runs, and looks ten times a second unless `settings` say otherwise.

    `options` are those of TieredBroker.
    """
    replica = make_broker(name="replica", settings={**REPLICA, **(settings or {})}, **options)
    replica.command = ("serve", "--read-only")
    replica.start()
    return replica
