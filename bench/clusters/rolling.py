"""Each broker restarted in turn: the longest time that a record waits for acks=all meanwhile."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from confluent_kafka.admin import NewTopic

from bench.clusters.paced import waits_ms
from bench.clusters.peers import BROKERS
from bench.clusters.rig import (
    Figures,
    acknowledge,
    await_brokers,
    await_places,
    create,
    is_in_sync,
    running,
)

PARTITIONS = 2 * BROKERS
RECORDS_PER_S = 50 * PARTITIONS


def rolling(name: str, folder: Path, seconds: float) -> Figures:
    with running(name, folder, replicas=3) as cluster, ThreadPoolExecutor(1) as pool:
        create(cluster, NewTopic("t", PARTITIONS, 3, config={"min.insync.replicas": "2"}))
        acknowledge(cluster, "t", range(PARTITIONS), acks=-1)
        await_places(cluster.bootstrap, "t", is_in_sync)
        is_over = threading.Event()
        sending = pool.submit(
            waits_ms,
            cluster.bootstrap,
            "t",
            partitions=PARTITIONS,
            record_bytes=100,
            per_s=RECORDS_PER_S,
            goes_on=lambda _: not is_over.is_set(),
        )
        began_s = time.perf_counter()
        try:
            for broker_id in range(1, BROKERS + 1):
                cluster.restart_broker(broker_id)
                await_brokers(cluster)
                await_places(cluster.bootstrap, "t", is_in_sync)
            rolled_s = time.perf_counter() - began_s
        finally:
            is_over.set()
        waits = sending.result()
        return {
            "longest wait of a record, ms": float(waits.max()),
            "p99.9, ms": float(np.percentile(waits, 99.9)),
            "all restarted, s": rolled_s,
        }
