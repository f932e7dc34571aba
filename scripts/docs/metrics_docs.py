"""docs/reference/metrics.md, from the table that the collector reads; see doc_pages.py."""

from __future__ import annotations

from strandline.broker.telemetry.exposition import Family
from strandline.broker.telemetry.families import SECTIONS

_INTRODUCTION = """\
# Metrics

<!-- Made by `make docs`. Do not edit. -->

For operators who monitor a broker.
`strandline.metrics.listener=http://127.0.0.1:9404` serves these metrics at `/metrics`, in
Prometheus' text format, or in OpenMetrics to a client that asks for it. It also serves `/healthz`
(the broker runs) and `/readyz` (it serves clients; 503 and the reason if not). There is no
password: choose an address that only the monitoring reaches.

Names are those of Kafka with the JMX exporter's usual rules, so that Kafka's dashboards work. For a
metric whose only label is `topic`, the series without that label is the sum over all topics, as in
Kafka. So use that series, or sum over `topic!=""`. [Alerts](alerts.md) lists the alerts, each with
its runbook.

These of Kafka's metrics of tiered storage are missing: `BuildRemoteLogAuxState*`, which concerns
followers; `RemoteLogSizeComputationTime`, because the manifest has the size;
`RemoteLogReaderFetchRateAndTimeMs` and `remote-{fetch,copy}-throttle-time-*`, which
`strandline_cold_*` and `strandline_remote_throttled_seconds_total` replace.
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
