"""Hot beside cold: produce-to-consume latency on local disk while 8 partitions are read cold.

    alone                     before all others and after them, both together
    beside a rewind           that does not make way, and that does, as a broker does by itself;
                              the latter in turns with the same rewind standing still, so that
                              what else the machine does meets both: the ratio of each turn
    beside another's rewind   the same bytes per second from a broker of its own: what is left of a
                              rewind where it shares nothing with hot but the machine
    beside one for nothing    the same with that other broker in the idle scheduling class: what is
                              left where serving a rewind takes no core from anybody
    a rewind once more        with its consumer and store in the idle scheduling class

In life consumers and store have machines of their own. Here they share two cores with the broker
and with the hot clients, and whoever of them works keeps hot waiting for a core, as any program
would. So the goal, which is about the broker, is looked at where they are out of the way; what all
of them do together stands in the row above, beside what they do without a broker. No broker can
be better than that on this machine.
"""

from __future__ import annotations

import re
import statistics
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from confluent_kafka import Producer

from bench.clients.rdkafka import ConsumeLoad, ProduceLoad, consumer, pacer
from bench.measure import await_quiet
from bench.tiers.rewinder import REWIND_PARTITIONS, Rewind, rewinding, step_aside
from bench.tiers.rig import (
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
from tests.support.broker import BrokerProcess
from tests.support.ports import ReservedPort

HOT_RECORDS_PER_S = 1000
HOT_RECORDS = 10_000
# Each half of a turn; the first of them are left out of it, while the rewind stops or goes on.
TURNS = 5
TURN_RECORDS = 4_000
TURN_SETTLING_RECORDS = 1_000
# The limit finds its level in the first seconds; then it is kept.
SETTLING_RECORDS = 5_000
REWIND_S = 3.0
YIELD = "strandline.remote.fetch.yield.ms"
FLOOR = "strandline.remote.fetch.yield.floor.bytes.per.second"
# Hardly a tick is that early, so the rewind goes at the floor.
NEVER_ON_TIME = "0.001"
# Often enough that a broker counts it as live traffic.
TRICKLE_S = 0.5
TRICKLE_TOPIC = "trickle"

ALONE = "alone"
UNHELD = "beside a rewind that does not make way"
HELD = "beside a rewind"
OTHER = "beside another broker's rewind"
FREE = "beside a rewind that costs no broker"
OUT_OF_THE_WAY = ", its clients and store out of the way"


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Hot latencies of one stretch of time, and MB/s of what was read cold in it."""

    latencies_us: np.ndarray
    cold_mb_per_s: float

    def percentile_ms(self, percent: int) -> float:
        return float(np.percentile(self.latencies_us, percent)) / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A broker whose topic is in its store alone, but for the open segments."""

    broker: BrokerProcess
    endpoint: str
    metrics_port: int
    record_count: int

    def cold_bytes(self) -> float:
        """What the broker has read from the store for consumers."""
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=30) as answer:
            page = answer.read().decode()
        found = re.search(rf'remotefetchbytes_total\{{topic="{TOPIC}"\}} (\S+)', page)
        assert found is not None
        return float(found[1])


def run_hot(folder: Path, total_bytes: int, distance_ms: int) -> Iterator[Figure]:
    """Latency of a topic on local disk, alone and while another topic is read from the store."""
    with (
        cold_site(folder / "own", total_bytes, distance_ms) as own,
        cold_site(folder / "other", total_bytes, distance_ms) as other,
    ):
        found = {ALONE: measure_hot(own, own)}
        with cold_reader(own) as rewind:
            rewind_mb_per_s = measure_rewind(own)
            alter_broker(own.broker, YIELD, "0")
            found[UNHELD] = measure_hot(own, own)
            alter_broker(own.broker, YIELD, None)
            with trickle(own.broker):
                hot_latencies_us(own.broker, SETTLING_RECORDS)
                turns = [measure_turn(own, rewind) for _ in range(TURNS)]
        held = found[HELD] = _together([beside for _, beside in turns])
        alter_broker(other.broker, YIELD, NEVER_ON_TIME)
        alter_broker(other.broker, FLOOR, str(int(held.cold_mb_per_s * 1e6)))
        with trickle(other.broker), cold_reader(other):
            hot_latencies_us(own.broker, SETTLING_RECORDS)
            found[OTHER] = measure_hot(own, other)
            step_aside(other.broker.pid)
            hot_latencies_us(own.broker, SETTLING_RECORDS)
            found[FREE] = measure_hot(own, other)
        with cold_reader(own, is_aside=True):
            hot_latencies_us(own.broker, SETTLING_RECORDS)
            found[HELD + OUT_OF_THE_WAY] = measure_hot(own, own)
        again = measure_hot(own, own)
    both = np.concatenate((found[ALONE].latencies_us, again.latencies_us))
    found[ALONE] = Beside(latencies_us=both, cold_mb_per_s=0.0)
    yield from _figures(f"{distance_ms} ms away", found, rewind_mb_per_s)
    yield from _turn_figures(f"{distance_ms} ms away", turns)


def _figures(where: str, found: dict[str, Beside], rewind_mb_per_s: float) -> Iterator[Figure]:
    order = (UNHELD, HELD, OTHER, FREE, HELD + OUT_OF_THE_WAY)
    for percent in (50, 99):
        alone_ms = found[ALONE].percentile_ms(percent)
        name = f"{where}: p{percent}"
        yield Figure(part="hot", name=f"{name} {ALONE}", value=alone_ms, unit="ms")
        for case in order:
            beside_ms = found[case].percentile_ms(percent)
            yield Figure(part="hot", name=f"{name} {case}", value=beside_ms, unit="ms")
            has_goal = percent == 99 and case == HELD + OUT_OF_THE_WAY
            yield Figure(
                part="hot",
                name=f"{name} {case} / {ALONE}",
                value=beside_ms / alone_ms,
                unit="",
                goal="<= 1.3" if has_goal else "",
            )
        added = found[HELD].percentile_ms(percent) / found[FREE].percentile_ms(percent)
        yield Figure(part="hot", name=f"{name} {HELD} / {FREE}", value=added, unit="")
    rates = {"alone": rewind_mb_per_s, **{case: found[case].cold_mb_per_s for case in order}}
    for case, mb_per_s in rates.items():
        name = f"{where}: cold bytes, {case.removeprefix('beside ')}"
        yield Figure(part="hot", name=name, value=mb_per_s, unit="MB/s")


def _turn_figures(where: str, turns: Sequence[tuple[Beside, Beside]]) -> Iterator[Figure]:
    for percent in (50, 99):
        ratios = [
            beside.percentile_ms(percent) / still.percentile_ms(percent) for still, beside in turns
        ]
        name = f"{where}: p{percent} {HELD} / the same standing still, {TURNS} turns"
        for what, value in (
            ("median", statistics.median(ratios)),
            ("least", min(ratios)),
            ("most", max(ratios)),
        ):
            yield Figure(part="hot", name=f"{name}, {what}", value=value, unit="")


@contextmanager
def cold_site(folder: Path, total_bytes: int, distance_ms: int) -> Iterator[Site]:
    """A broker with a store of its own, a topic that lies there, and a topic for hot records."""
    reserved = ReservedPort()
    metrics_port = reserved.number
    with bucket(distance_ms) as (endpoint, client):
        listener = {"strandline.metrics.listener": f"http://127.0.0.1:{metrics_port}"}
        with tiered_broker(folder, endpoint, **listener) as broker:
            create_topic(broker, TOPIC, partitions=REWIND_PARTITIONS, **COLD)
            create_topic(broker, "hot")
            create_topic(broker, TRICKLE_TOPIC)
            produce(broker, TOPIC, total_bytes, partitions=REWIND_PARTITIONS)
            wait_until_cold(client, broker, total_bytes, partitions=REWIND_PARTITIONS)
            await_quiet(broker.pid)
            yield Site(
                broker=broker,
                endpoint=endpoint,
                metrics_port=metrics_port,
                record_count=total_bytes // RECORD_BYTES,
            )


def measure_rewind(site: Site) -> float:
    """MB/s of the rewind that is under way, with nothing beside it."""
    before, started_s = site.cold_bytes(), time.perf_counter()
    time.sleep(REWIND_S)
    return (site.cold_bytes() - before) / 1e6 / (time.perf_counter() - started_s)


def measure_hot(hot: Site, cold: Site, count: int = HOT_RECORDS) -> Beside:
    before, started_s = cold.cold_bytes(), time.perf_counter()
    latencies_us = hot_latencies_us(hot.broker, count)
    cold_mb = (cold.cold_bytes() - before) / 1e6
    return Beside(
        latencies_us=latencies_us, cold_mb_per_s=cold_mb / (time.perf_counter() - started_s)
    )


def measure_turn(site: Site, rewind: Rewind) -> tuple[Beside, Beside]:
    """Hot beside a rewind that stands still, and beside the same one going on."""
    with rewind.standing_still():
        still = _settled(measure_hot(site, site, TURN_RECORDS))
    return still, _settled(measure_hot(site, site, TURN_RECORDS))


def _settled(measured: Beside) -> Beside:
    latencies_us = measured.latencies_us[TURN_SETTLING_RECORDS:]
    return Beside(latencies_us=latencies_us, cold_mb_per_s=measured.cold_mb_per_s)


def _together(parts: Sequence[Beside]) -> Beside:
    return Beside(
        latencies_us=np.concatenate([part.latencies_us for part in parts]),
        cold_mb_per_s=statistics.fmean(part.cold_mb_per_s for part in parts),
    )


def hot_latencies_us(broker: BrokerProcess, count: int) -> np.ndarray:
    """From the moment a record was due to its arrival at a consumer."""
    load = ProduceLoad(topic="hot", count=count, record_bytes=RECORD_BYTES, linger_ms=0)
    reading = ConsumeLoad(topic="hot", count=count, wait_ms=500)
    with pacer(broker.bootstrap, load) as sending, consumer(broker.bootstrap, reading) as receiving:
        receiving.start([-1])  # from the end
        time.sleep(0.5)
        thread = threading.Thread(
            target=lambda: sending.run(records_per_s=HOT_RECORDS_PER_S), daemon=True
        )
        thread.start()
        latencies_us = receiving.latencies_us(count)
        thread.join(WAIT_S)
    return latencies_us


@contextmanager
def cold_reader(site: Site, *, is_aside: bool = False) -> Iterator[Rewind]:
    """Reads the cold topic from its beginning, again and again, until the block ends.

    `is_aside` puts the consumer and the site's store into the idle scheduling class: the store for
    good. Raises StrandlineError if it did not read to the end of the block.
    """
    if is_aside:
        with urllib.request.urlopen(f"{site.endpoint}/_step_aside", timeout=30):
            pass
    # Half of it: the open segments are hot.
    with rewinding(site.broker.bootstrap, site.record_count // 2, is_aside=is_aside) as rewind:
        time.sleep(0.5)
        yield rewind


@contextmanager
def trickle(broker: BrokerProcess) -> Iterator[None]:
    """Somebody is live, and hardly takes part: a record now and then.

    Between two loads of hot records a busy machine may need longer than a broker holds a rewind.
    """
    stop = threading.Event()

    def send() -> None:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        while not stop.wait(TRICKLE_S):
            producer.produce(TRICKLE_TOPIC, b"live")
            producer.flush(WAIT_S)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(WAIT_S)
