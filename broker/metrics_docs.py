"""Writes docs/metrics.md from the table that the collector reads.

    python -m strandline.broker.metrics_docs docs/metrics.md

The page is committed; a test compares it with `render()`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from strandline.broker.telemetry.exposition import Family
from strandline.broker.telemetry.families import SECTIONS
from strandline.storage.files import write_atomically

_INTRODUCTION = """\
# Metrics

<!-- Made by `python -m strandline.broker.metrics_docs docs/metrics.md`. Do not edit. -->

`strandline.metrics.listener=http://127.0.0.1:9404` serves these at `/metrics`, in Prometheus' text
format, or in OpenMetrics to who asks for it. Beside it are `/healthz` (the broker runs) and
`/readyz` (it serves clients; 503 and the reason if not). There is no password: choose an address
that only the monitoring reaches.

Names are those of Kafka with the JMX exporter's usual rules, so that dashboards made for Kafka find
them. Of a metric with a `topic` label, the series without that label is the sum over all topics, as
in Kafka: sum over `topic!=""`, or take the one without. What to alert on:
[operations.md](operations.md#metrics-and-alerts).
"""


def render() -> str:
    """The whole page."""
    parts = [_INTRODUCTION]
    for title, families in SECTIONS.items():
        parts.append(f"## {title}\n")
        parts.append(
            "| name | type | labels | meaning |\n| --- | --- | --- | --- |\n"
            + "".join(map(_line, families))
        )
    return "\n".join(parts)


def _line(family: Family) -> str:
    labels = ", ".join(f"`{label}`" for label in family.labels)
    return f"| `{family.name}` | {family.kind} | {labels} | {family.help} |\n"


def main(arguments: Sequence[str]) -> int:
    """Writes the page to the one file named; the exit status."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m strandline.broker.metrics_docs docs/metrics.md\n")
        return 2
    write_atomically(Path(arguments[0]), render().encode("utf-8"), sync=False)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
