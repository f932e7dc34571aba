"""Draws the Grafana dashboard over a broker at work.

    make dashboard-picture

The broker is real, and so are its S3 server and the Prometheus that scrapes it. Clients produce and
consume for some minutes, and the S3 server is away for half a minute of them. Rows, places, titles,
units, legends and queries are those of deploy/grafana/strandline.json; Prometheus answers the
queries. Grafana itself, which is under the AGPL, is not used: scripts/docs/dashboard_svg.py
draws.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from scripts.docs.dashboard_svg import Line, Panel, svg_of
from tests.conftest import make_bucket
from tests.packaging.monitoring import DASHBOARD
from tests.support.broker import BrokerProcess
from tests.support.metrics import METRICS_ON, metrics_port
from tests.support.ministack import ServerProcess, ministack
from tests.support.prometheus import Prometheus

INSTANCE = "broker-1:9404"
LENGTH_S = 240
SCRAPE_S, STEP_S = 5, 5
# As Grafana has it for such scrapes and steps.
RATE_INTERVAL = f"{max(SCRAPE_S + STEP_S, 4 * SCRAPE_S)}s"
# Of the S3 server, from the beginning of the load.
AWAY_S = (120, 150)

MIB = 2**20
SETTINGS = {
    "log.retention.check.interval.ms": "3000",
    "log.initial.task.delay.ms": "1000",
    "remote.log.manager.task.interval.ms": "1000",
    "strandline.remote.delete.grace.ms": "20000",
    "offsets.topic.num.partitions": "1",
}
TIERED = {"remote.storage.enable": "true", "segment.bytes": str(2 * MIB)}
TOPICS = [
    NewTopic("orders", 3, config={**TIERED, "local.retention.bytes": str(4 * MIB)}),
    NewTopic(
        "clicks",
        1,
        config={**TIERED, "local.retention.bytes": str(MIB), "retention.bytes": str(6 * MIB)},
    ),
]
RECORD = os.urandom(1000)
_LABEL = re.compile(r"\{\{ *(\w+) *\}\}")


def main(target: Path) -> None:
    """Writes the picture."""
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "test")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "test")
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory()))
        store = ministack(folder / "store.log", data_folder=folder / "objects")
        running.enter_context(store)
        tiers = {
            "remote.log.storage.system.enable": "true",
            "strandline.remote.url": make_bucket(store.endpoint_url).url,
            "strandline.remote.s3.endpoint.url": store.endpoint_url,
            "strandline.remote.s3.region": "us-east-1",
        }
        broker = BrokerProcess(folder / "broker", settings={**SETTINGS, **METRICS_ON, **tiers})
        running.enter_context(broker)
        prometheus = Prometheus(folder, metrics_port(broker), scrape_s=SCRAPE_S, instance=INSTANCE)
        running.enter_context(prometheus)
        began_s = work(broker.bootstrap, store)
        panels = list(panels_of(prometheus, began_s, str(folder)))
    target.write_text(svg_of(panels, LENGTH_S, STEP_S))


# --- the load -----------------------------------------------------------------------------------


def work(bootstrap: str, store: ServerProcess) -> float:
    """Returns when it began, in seconds of the wall clock; it lasts LENGTH_S."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics(TOPICS).values():
        made.result()
    # The first rates need scrapes before the first step.
    began_s = time.time() + STEP_S
    with at_work(produce, bootstrap), at_work(consume, bootstrap), at_work(look_back, bootstrap):
        wait_until(began_s + AWAY_S[0])
        store.stop()
        # A deployment that makes its topics again.
        for made in admin.create_topics(TOPICS).values():
            made.exception()
        wait_until(began_s + AWAY_S[1])
        store.start()
        wait_until(began_s + LENGTH_S)
    return began_s


def wait_until(at_s: float) -> None:
    time.sleep(max(0.0, at_s - time.time()))


@contextmanager
def at_work(task: Callable[[str, threading.Event], None], bootstrap: str) -> Iterator[None]:
    is_over = threading.Event()
    thread = threading.Thread(target=task, args=(bootstrap, is_over))
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def produce(bootstrap: str, is_over: threading.Event) -> None:
    """Orders come and go like the tide, clicks in gusts."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    tick = 0
    while not is_over.wait(0.1):
        tick += 1
        orders = int(40 * (1.1 + math.sin(tick / 120)))
        clicks = 25 if tick % 300 < 80 else 3
        for topic, count in (("orders", orders), ("clicks", clicks)):
            for _ in range(count):
                producer.produce(topic, RECORD)
        producer.poll(0)
    producer.flush()


def consume(bootstrap: str, is_over: threading.Event) -> None:
    """A group that reads everything, and rests from time to time."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "billing", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["orders", "clicks"])
    tick = 0
    while not is_over.is_set():
        tick += 1
        consumer.consume(2000, timeout=0.2)
        if tick % 150 == 0:
            is_over.wait(8)
    consumer.close()


def look_back(bootstrap: str, is_over: threading.Event) -> None:
    """A reader without a group begins at the first record every minute."""
    while not is_over.wait(45):
        consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False}
        )
        consumer.assign([TopicPartition("orders", number, 0) for number in range(3)])
        deadline_s = time.monotonic() + 10
        while time.monotonic() < deadline_s and not is_over.is_set():
            consumer.consume(200, timeout=0.1)
        consumer.close()


# --- the dashboard ------------------------------------------------------------------------------


def panels_of(prometheus: Prometheus, began_s: float, folder: str) -> Iterator[Panel]:
    """Yields the dashboard's panels with what Prometheus answers; paths below `folder` are /srv."""
    span = {"start": f"{began_s:.3f}", "end": f"{began_s + LENGTH_S:.3f}", "step": f"{STEP_S}s"}
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        lines = []
        for target in panel.get("targets", ()):
            query = asked(target["expr"])
            if target.get("instant"):
                found = prometheus.ask("query", query=query, time=span["end"])
            else:
                found = prometheus.ask("query_range", query=query, **span)
            for series in found["result"]:
                name = legend_of(target["legendFormat"], series["metric"])
                values = series["values"] if "values" in series else [series["value"]]
                points = [(float(at) - began_s, float(value)) for at, value in values]
                lines.append(Line(name.replace(f"{folder}/broker", "/srv"), points))
        yield Panel.of(panel, lines)


def asked(expression: str) -> str:
    """The query that Grafana sends with all brokers and topics chosen."""
    text = expression.replace("$__rate_interval", RATE_INTERVAL)
    return re.sub(r"\$(instance|broker|topic)\b", ".*", text)


def legend_of(form: str, labels: Mapping[str, Any]) -> str:
    return _LABEL.sub(lambda found: str(labels.get(found[1], "")), form).strip()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
