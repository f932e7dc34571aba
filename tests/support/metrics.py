"""Numbers of a broker's /metrics, as Prometheus' own parser reads them."""

from __future__ import annotations

import re
import urllib.request

import prometheus_client.parser

from tests.support.broker import BrokerProcess

# Any free port; `metrics_port` finds it in the log.
METRICS_ON = {"strandline.metrics.listener": "http://127.0.0.1:0"}


def metrics_port(broker: BrokerProcess) -> int:
    found = re.findall(r"metrics are served host=\S+ port=(\d+)", broker.log_text())
    assert found, broker.log_text()[-2000:]
    return int(found[-1])


def get(broker: BrokerProcess, path: str) -> str:
    url = f"http://127.0.0.1:{metrics_port(broker)}{path}"
    with urllib.request.urlopen(url, timeout=60) as response:
        return str(response.read().decode())


def samples(broker: BrokerProcess, name: str) -> dict[tuple[tuple[str, str], ...], float]:
    """All samples of one name, by their sorted labels."""
    return {
        tuple(sorted(sample.labels.items())): float(sample.value)
        for family in prometheus_client.parser.text_string_to_metric_families(
            get(broker, "/metrics")
        )
        for sample in family.samples
        if sample.name == name
    }


def numbers(broker: BrokerProcess, *names: str) -> list[float]:
    """Several numbers without labels, of one moment."""
    families = prometheus_client.parser.text_string_to_metric_families(get(broker, "/metrics"))
    found = {
        sample.name: float(sample.value)
        for family in families
        for sample in family.samples
        if not sample.labels
    }
    return [found[name] for name in names]


def metric(broker: BrokerProcess, name: str, **labels: str) -> float:
    """One number; `labels` are all the labels that it has."""
    found = samples(broker, name)
    key = tuple(sorted(labels.items()))
    assert key in found, (name, labels, list(found)[:20])
    return found[key]
