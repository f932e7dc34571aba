"""Replicas of partitions that others lead, and the in-sync sets of those that this one leads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from strandline.broker.cluster.in_sync.leading import LeaderContext
from strandline.broker.cluster.in_sync.throttle import FOLLOWERS, LEADERS, ReplicationThrottle
from strandline.broker.cluster.membership.channel import ControllerChannel
from strandline.broker.cluster.replicas.replica_manager import ReplicaManager, Replication
from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.network.connection import Spawn
from strandline.broker.replication.alterations import InSyncAlterations
from strandline.broker.replication.fetchers import Fetchers
from strandline.broker.replication.leader import LeaderEndpoint
from strandline.broker.server.environment import Environment
from strandline.broker.server.parts.elsewhere import ElsewhereParts
from strandline.broker.server.parts.metadata import MetadataParts
from strandline.broker.server.parts.part import Part
from strandline.storage.concurrency.turns import in_turns


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationParts(Part):
    """Fetchers, and the changes that leaders propose."""

    replication: Replication
    fetchers: Fetchers
    throttles: Sequence[ReplicationThrottle]

    @property
    def throttled_rates(self) -> Mapping[str, Callable[[], float]]:
        """Bytes a second of throttled replicas, by Kafka's names of the sides."""
        leaders, followers = self.throttles
        return {
            "leaderreplication": lambda: leaders.byte_rate,
            "followerreplication": lambda: followers.byte_rate,
        }

    @classmethod
    def make(
        cls,
        environment: Environment,
        config: BrokerConfig,
        metadata: MetadataParts,
        elsewhere: ElsewhereParts,
        channel: ControllerChannel,
        *,
        broker_epoch: Callable[[], int],
        spawn: Spawn,
    ) -> ReplicationParts:
        clock, settings, node_id = environment.clock, config.replica_fetch, config.node_id
        alterations = InSyncAlterations(channel, clock, node_id=node_id, broker_epoch=broker_epoch)
        brokers = elsewhere.brokers

        def endpoint_of(leader_id: int) -> LeaderEndpoint:
            return LeaderEndpoint(
                leader_id,
                node_id=node_id,
                broker_epoch=broker_epoch,
                address_of=brokers.address,
                peer_of=brokers.own_peer,
                config=settings,
            )

        running, windows = metadata.running, config.replication
        throttle = partial(
            ReplicationThrottle,
            clock=clock,
            node_id=node_id,
            window_count=windows.window_count,
            window_ms=windows.window_ms,
        )
        leaders = throttle(LEADERS, lambda: running.current.replication.leader_rate)
        followers = throttle(FOLLOWERS, lambda: running.current.replication.follower_rate)
        fetchers = Fetchers(
            endpoint_of,
            clock,
            fetcher_count=settings.fetcher_count,
            backoff_ms=settings.backoff_ms,
            throttle=followers,
            spawn=spawn,
        )
        cluster = LeaderContext(
            node_id=node_id,
            now_ms=lambda: clock.monotonic_s() * 1000,
            lag_ms_max=lambda: settings.lag_ms_max,
            brokers=lambda: metadata.metadata.image.brokers,
            broker_epoch=broker_epoch,
            propose=alterations.propose,
            throttle=leaders,
        )
        return cls(
            replication=Replication(cluster=cluster, followers=fetchers),
            fetchers=fetchers,
            throttles=(leaders, followers),
            loops={"replica fetchers": fetchers.run, "in-sync sets": alterations.run},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class InSyncWatch(Part):
    """Looks for followers that have not been caught up for replica.lag.time.max.ms."""

    @classmethod
    def make(cls, replicas: ReplicaManager, *, lag_ms_max: int) -> InSyncWatch:
        async def watch() -> None:
            while True:
                # As Kafka: a follower leaves after one and a half times that, at the latest.
                await asyncio.sleep(lag_ms_max / 2000)
                async for partition in in_turns(replicas.led()):
                    if partition.leading is not None:
                        partition.leading.shrink()
                        # It may have waited for one that was to join.
                        partition.leading.advance()

        return cls(loops={"in-sync watch": watch})
