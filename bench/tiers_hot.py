"""Hot beside cold: produce-to-consume latency on local disk while 8 partitions are read cold."""

from __future__ import annotations

import re
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.rdkafka import ConsumeLoad, ProduceLoad, consumer, pacer
from bench.tiered import (
    COLD,
    RECORD_BYTES,
    TOPIC,
    WAIT_S,
    Figure,
    alter_broker,
    bucket,
    create_topic,
    produce,
    tiered_broker,
    wait_until_cold,
)
from strandline.storage.errors import StrandlineError
from tests.support.broker import BrokerProcess
from tests.support.ports import ReservedPort

REWIND_PARTITIONS = 8
HOT_RECORDS_PER_S = 1000
HOT_RECORDS = 10_000
REWIND_S = 3.0
YIELD = "strandline.remote.fetch.yield.ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Hot latencies of one stretch of time, and MB/s of what was read cold in it."""

    latencies_us: np.ndarray
    cold_mb_per_s: float

    def percentile_ms(self, percent: int) -> float:
        return float(np.percentile(self.latencies_us, percent)) / 1000


def run_hot(folder: Path, total_bytes: int, distance_ms: int) -> Iterator[Figure]:
    """Latency of a topic on local disk, alone and while another topic is read from the store."""
    metrics_port = ReservedPort().number
    with bucket(distance_ms) as (endpoint, client):
        listener = {"strandline.metrics.listener": f"http://127.0.0.1:{metrics_port}"}
        with tiered_broker(folder, endpoint, **listener) as broker:
            create_topic(broker, TOPIC, partitions=REWIND_PARTITIONS, **COLD)
            create_topic(broker, "hot")
            produce(broker, TOPIC, total_bytes, partitions=REWIND_PARTITIONS)
            wait_until_cold(client, broker, total_bytes, partitions=REWIND_PARTITIONS)
            alone = measure_hot(broker, metrics_port)
            with cold_readers(broker, total_bytes // RECORD_BYTES) as is_running:
                rewind_mb_per_s = measure_rewind(metrics_port)
                alter_broker(broker, YIELD, "0")
                unheld = measure_hot(broker, metrics_port)
                alter_broker(broker, YIELD, None)
                # The limit finds its level in the first seconds; then it is kept.
                measure_hot(broker, metrics_port)
                held = measure_hot(broker, metrics_port)
                was_running = is_running()
    if not was_running:
        raise StrandlineError("the cold rewind ended before the hot load: use more --megabytes")
    yield from _hot_figures(f"{distance_ms} ms away", alone, unheld, held, rewind_mb_per_s)


def _hot_figures(
    where: str, alone: Beside, unheld: Beside, held: Beside, rewind_mb_per_s: float
) -> Iterator[Figure]:
    cases = {"a rewind that does not make way": unheld, "a rewind": held}
    for percent in (50, 99):
        quiet_ms = alone.percentile_ms(percent)
        name = f"{where}: p{percent}"
        yield Figure(part="hot", name=f"{name} alone", value=quiet_ms, unit="ms")
        for case, found in cases.items():
            busy_ms = found.percentile_ms(percent)
            yield Figure(part="hot", name=f"{name} beside {case}", value=busy_ms, unit="ms")
            yield Figure(
                part="hot",
                name=f"{name} beside {case} / alone",
                value=busy_ms / quiet_ms,
                unit="",
                goal="<= 1.3" if percent == 99 and found is held else "",
            )
    name = f"{where}: the rewind"
    yield Figure(part="hot", name=f"{name} alone", value=rewind_mb_per_s, unit="MB/s")
    for case, found in cases.items():
        what = f"{name} beside hot, {case.removeprefix('a rewind').strip() or 'making way'}"
        yield Figure(part="hot", name=what, value=found.cold_mb_per_s, unit="MB/s")


def cold_bytes(metrics_port: int) -> float:
    """What the broker has read from the store for consumers."""
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=30) as answer:
        page = answer.read().decode()
    found = re.search(rf'remotefetchbytes_total\{{topic="{TOPIC}"\}} (\S+)', page)
    assert found is not None
    return float(found[1])


def measure_rewind(metrics_port: int) -> float:
    """MB/s of the rewind that is under way, with nothing beside it."""
    before, started_s = cold_bytes(metrics_port), time.perf_counter()
    time.sleep(REWIND_S)
    return (cold_bytes(metrics_port) - before) / 1e6 / (time.perf_counter() - started_s)


def measure_hot(broker: BrokerProcess, metrics_port: int) -> Beside:
    before, started_s = cold_bytes(metrics_port), time.perf_counter()
    latencies_us = hot_latencies_us(broker)
    cold_mb = (cold_bytes(metrics_port) - before) / 1e6
    return Beside(
        latencies_us=latencies_us, cold_mb_per_s=cold_mb / (time.perf_counter() - started_s)
    )


def hot_latencies_us(broker: BrokerProcess) -> np.ndarray:
    """From the moment a record was due to its arrival at a consumer."""
    load = ProduceLoad(topic="hot", count=HOT_RECORDS, record_bytes=RECORD_BYTES, linger_ms=0)
    reading = ConsumeLoad(topic="hot", count=HOT_RECORDS, wait_ms=500)
    with pacer(broker.bootstrap, load) as sending, consumer(broker.bootstrap, reading) as receiving:
        receiving.start([-1])  # from the end
        time.sleep(0.5)
        thread = threading.Thread(
            target=lambda: sending.run(records_per_s=HOT_RECORDS_PER_S), daemon=True
        )
        thread.start()
        latencies_us = receiving.latencies_us(HOT_RECORDS)
        thread.join(WAIT_S)
    return latencies_us


@contextmanager
def cold_readers(broker: BrokerProcess, count: int) -> Iterator[Any]:
    """Reads the cold topic from its beginning, again and again, until the block ends."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def read() -> None:
        try:
            while not stop.is_set():
                # Half of it: the open segments are hot.
                load = ConsumeLoad(topic=TOPIC, count=count // 2, partitions=REWIND_PARTITIONS)
                with consumer(broker.bootstrap, load) as ready:
                    ready.run()
        except BaseException as error:
            failures.append(error)
            raise

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    time.sleep(0.5)
    try:
        yield lambda: thread.is_alive() and not failures
    finally:
        stop.set()
        thread.join(WAIT_S)
