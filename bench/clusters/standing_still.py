"""SIGSTOP of a broker until others lead its partitions and acknowledge."""

from __future__ import annotations

import time
from pathlib import Path

from confluent_kafka.admin import NewTopic

from bench.clusters.peers import BROKERS
from bench.clusters.rig import (
    Figures,
    acknowledge,
    await_places,
    create,
    is_in_sync,
    places,
    running,
)

STOPPED = 1


def standing_still(name: str, folder: Path, seconds: float) -> Figures:
    with running(name, folder, replicas=3) as cluster:
        create(cluster, NewTopic("t", 2 * BROKERS, 3, config={"min.insync.replicas": "2"}))
        acknowledge(cluster, "t", range(2 * BROKERS), acks=-1)
        await_places(cluster.bootstrap, "t", is_in_sync)
        led = [n for n, one in places(cluster.bootstrap, "t").items() if one.leader == STOPPED]
        # Brokers have their addresses in the order of their ids.
        others = ",".join(cluster.bootstrap.split(",")[1:])
        began_s = time.perf_counter()
        cluster.pause_broker(STOPPED)
        try:
            await_places(others, "t", lambda one: one.leader not in (STOPPED, -1))
            led_s = time.perf_counter() - began_s
            acknowledge(cluster, "t", led, bootstrap=others, acks=-1)
            served_s = time.perf_counter() - began_s
        finally:
            cluster.resume_broker(STOPPED)
        return {"new leaders, s": led_s, "they acknowledge, s": served_s}
