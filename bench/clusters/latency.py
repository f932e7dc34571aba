"""How long acks=all takes at a part of the load that a cluster can carry."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from confluent_kafka.admin import NewTopic

from bench.clusters.paced import waits_ms
from bench.clusters.rig import Figures, create, running

# A record is a batch. Kafka takes so many MB/s of them at most, on two cores; both get the same.
BATCH_BYTES = 16_000
FULL_MB_PER_S = 28.0
LOADS = (0.1, 0.5)


def latency(name: str, folder: Path, seconds: float) -> Figures:
    figures = {}
    with running(name, folder, replicas=3) as cluster:
        create(cluster, NewTopic("t", 1, 3, config={"min.insync.replicas": "2"}))
        for load in LOADS:
            per_s = load * FULL_MB_PER_S * 1e6 / BATCH_BYTES
            # The first one lets a JVM compile what it runs.
            for _ in range(2):
                waits = waits_ms(
                    cluster.bootstrap,
                    "t",
                    partitions=1,
                    record_bytes=BATCH_BYTES,
                    per_s=per_s,
                    goes_on=lambda at_s: at_s < seconds,
                )
            for percent in (50, 99):
                title = f"acks=all at {load:.0%}, p{percent}, ms"
                figures[title] = float(np.percentile(waits, percent))
    return figures
