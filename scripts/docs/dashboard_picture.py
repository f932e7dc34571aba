"""Draws panels of the Grafana dashboard from the metrics of a small broker.

    python -m scripts.docs.dashboard_picture docs/assets/dashboard.svg

The broker is real, with an archive in a folder and a client that produces and consumes for two
minutes. Titles and queries are those of deploy/grafana/strandline.json; Grafana itself, which is
under the AGPL, is not used.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scripts.docs.status_picture import STRANDLINE, free_port

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "strandline.json"
PANELS = (
    "Bytes in",
    "Bytes out",
    "Requests per second",
    "Bytes per tier",
    "Closed segments that are not archived",
    "On one machine alone: the loss if it burned now",
    "CPU, 1 is one core",
    "Memory",
)
LENGTH_S = 120
STEP_S = 2.0
# Of a rate, as Grafana's `$__rate_interval` for scrapes of this step.
RATE_STEPS = 2
# Lines of one panel; the largest.
LINES_MAX = 5
TIERED = {
    "remote.storage.enable": "true",
    "segment.bytes": "4194304",
    "local.retention.bytes": "25165824",
}
RECORD = b"x" * 1000
COLOURS = ("#1b6ca8", "#e08e0b", "#3c8d40", "#a8323e", "#7a5ea8")
UNITS = {"bytes": (2**20, ", MiB"), "Bps": (2**20, ", MiB/s")}
CAPTION = "drawn from the metrics of a broker at work, by the queries of the dashboard"

# name{label="value",...} 1.5
_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
# sum by (topic) (rate(name{selector}[interval])), and parts of it.
_QUERY = re.compile(
    r"^(?:(?P<sum>sum|max)(?: by \((?P<by>[^)]*)\))? ?\()?"
    r"(?P<rate>rate\()?(?P<name>\w+)\{(?P<selector>[^}]*)\}"
)
_MATCHER = re.compile(r'(\w+)(=~|!=|=)"([^"]*)"')

Labels = tuple[tuple[str, str], ...]
Scrape = Mapping[str, Mapping[Labels, float]]


@dataclass(frozen=True, slots=True)
class Scraped:
    """The page of a broker at one time, in seconds since the first."""

    at_s: float
    values: Scrape


def main(target: Path) -> None:
    """Writes the picture."""
    port, metrics = free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        broker = subprocess.Popen(
            [
                STRANDLINE,
                "serve",
                "--archive",
                f"{folder}/archive",
                *("--set", f"log.dirs={folder}/data"),
                *("--set", f"listeners=PLAINTEXT://127.0.0.1:{port}"),
                *("--set", f"strandline.metrics.listener=http://127.0.0.1:{metrics}"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            scrapes = work(f"127.0.0.1:{port}", f"http://127.0.0.1:{metrics}/metrics")
        finally:
            broker.terminate()
            broker.wait()
    draw(target, scrapes)


def work(bootstrap: str, page: str) -> Sequence[Scraped]:
    """Produces and consumes while it scrapes."""
    wait_for(page)
    topics = [NewTopic("orders", 3, config=TIERED), NewTopic("clicks", 1, config=TIERED)]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics(topics).values():
        made.result()
    is_over = threading.Event()
    threads = [
        threading.Thread(target=one, args=(bootstrap, is_over)) for one in (produce, consume)
    ]
    for thread in threads:
        thread.start()
    began_s = time.monotonic()
    scrapes: list[Scraped] = []
    while (at_s := time.monotonic() - began_s) < LENGTH_S:
        scrapes.append(Scraped(at_s, parsed(read(page))))
        time.sleep(STEP_S)
    is_over.set()
    for thread in threads:
        thread.join()
    return scrapes


def produce(bootstrap: str, is_over: threading.Event) -> None:
    """Orders come and go like the tide, clicks in gusts."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    tick = 0
    while not is_over.wait(0.1):
        tick += 1
        orders = int(150 * (1.1 + math.sin(tick / 60)))
        clicks = 80 if tick % 150 < 50 else 8
        for topic, count in (("orders", orders), ("clicks", clicks)):
            for _ in range(count):
                producer.produce(topic, RECORD)
        producer.poll(0)
    producer.flush()


def consume(bootstrap: str, is_over: threading.Event) -> None:
    """A group that reads everything."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "billing", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["orders", "clicks"])
    while not is_over.is_set():
        consumer.consume(500, timeout=0.2)
    consumer.close()


# --- metrics ----------------------------------------------------------------------------------


def wait_for(page: str) -> None:
    """Until the broker serves its metrics."""
    while True:
        with suppress(OSError):
            read(page)
            return
        time.sleep(0.2)


def read(page: str) -> str:
    with urllib.request.urlopen(page, timeout=10) as answer:
        text: bytes = answer.read()
    return text.decode()


def parsed(text: str) -> Scrape:
    """The samples of a page by name and labels."""
    found: dict[str, dict[Labels, float]] = defaultdict(dict)
    for name, labels, value in _SAMPLE.findall(text):
        found[name][tuple(_LABEL.findall(labels))] = float(value)
    return found


def lines_of(query: str, scrapes: Sequence[Scraped]) -> Mapping[str, list[tuple[float, float]]]:
    """The lines that Prometheus would answer, by the values of their labels."""
    form = _QUERY.match(query)
    assert form is not None, query
    matchers = _MATCHER.findall(form["selector"])
    keys = form["by"].split(", ") if form["by"] else []
    combine = max if form["sum"] == "max" else sum
    lines: dict[str, list[tuple[float, float]]] = defaultdict(list)
    before_steps = RATE_STEPS if form["rate"] else 0
    for number in range(before_steps, len(scrapes)):
        now, before = scrapes[number], scrapes[number - before_steps]
        groups: dict[str, list[float]] = defaultdict(list)
        for labels, count in now.values.get(form["name"], {}).items():
            named = dict(labels)
            if not all(holds(named, *matcher) for matcher in matchers):
                continue
            value = count
            if form["rate"]:
                earlier = before.values[form["name"]].get(labels, 0.0)
                value = (count - earlier) / (now.at_s - before.at_s)
            shown = keys if form["sum"] else [one for one in named if one != "tiered"]
            groups[" ".join(filter(None, (named.get(one, "") for one in shown)))].append(value)
        for group, values in groups.items():
            lines[group].append((now.at_s, combine(values)))
    return lines


def holds(labels: Mapping[str, str], label: str, operator: str, wanted: str) -> bool:
    """Whether a sample is selected; what Prometheus or Grafana adds is not looked at."""
    if label in ("instance", "job") or wanted.startswith("$"):
        return True
    value = labels.get(label, "")
    if operator == "=~":
        return re.fullmatch(wanted, value) is not None
    return (value == wanted) == (operator == "=")


# --- the picture ------------------------------------------------------------------------------


def draw(target: Path, scrapes: Sequence[Scraped]) -> None:
    """One panel for each of PANELS."""
    # The same bytes for the same figures; text stays text.
    mpl.rcParams.update({"svg.hashsalt": "strandline", "svg.fonttype": "none", "font.size": 9})
    panels = {one["title"]: one for one in json.loads(DASHBOARD.read_text())["panels"]}
    figure = Figure(figsize=(11, 9), layout="constrained")
    axes = figure.subplots(math.ceil(len(PANELS) / 2), 2).flat
    for axis, title in zip(axes, PANELS, strict=True):
        draw_panel(axis, panels[title], scrapes)
    figure.supxlabel(f"seconds; {CAPTION}", fontsize=8, color="#606060")
    figure.savefig(target, metadata={"Date": None})


def draw_panel(axis: Axes, panel: Mapping[str, Any], scrapes: Sequence[Scraped]) -> None:
    drawn: dict[str, list[tuple[float, float]]] = {}
    for query in panel["targets"]:
        for group, line in lines_of(query["expr"], scrapes).items():
            name = group or str(query.get("legendFormat", "")).partition(",")[0]
            drawn[name if "{" not in name and name else "broker"] = line
    largest = sorted(drawn, key=lambda one: -max(value for _, value in drawn[one]))[:LINES_MAX]
    unit = panel["fieldConfig"]["defaults"].get("unit")
    divisor, told = UNITS.get(unit, (1, ""))
    for name, colour in zip(largest, COLOURS, strict=False):
        times = [at_s for at_s, _ in drawn[name]]
        values = [value / divisor for _, value in drawn[name]]
        axis.plot(times, values, label=name, color=colour, linewidth=1.3)
        axis.fill_between(times, values, color=colour, alpha=0.08, linewidth=0)
    axis.set_title(panel["title"] + told, loc="left", fontsize=10, fontweight="bold")
    # Room for the legend.
    axis.set_ylim(0, axis.get_ylim()[1] * 1.25)
    axis.set_xlim(0, scrapes[-1].at_s)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=7, loc="upper left", frameon=False, ncols=LINES_MAX)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
