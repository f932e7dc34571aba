"""What the rules for Prometheus and the dashboard of Grafana ask for, read from their files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from scripts.docs.alerts_docs import RULES, alert_rules

ROOT = Path(__file__).resolve().parents[2]
RULE_TESTS = RULES.with_name("alerts.test.yml")
DASHBOARD = ROOT / "deploy" / "grafana" / "strandline.json"

# Prometheus makes these, not the broker.
OF_PROMETHEUS = {"up", "ALERTS"}
LABELS_OF_PROMETHEUS = {"job", "instance", "quantile", "alertstate", "alertname", "__name__"}
# Of one page for several brokers: which of them.
LABEL_OF_SEVERAL = "broker"
# Only several brokers have these.
OF_SEVERAL = {
    "strandline_supervised_up",
    "strandline_supervised_restarts_total",
    "kafka_controller_kafkacontroller_fencedbrokercount",
    "kafka_controller_kafkacontroller_lastcommittedrecordoffset",
    "kafka_server_broker_metadata_metrics_last_applied_record_offset",
}

# Series that stand on the page only while something is wrong.
WHILE_FAILING = {
    "strandline_follower_behind_seconds",
    "strandline_failed_logins_total",
    "strandline_tls_certificate_days_left",
    "strandline_tls_handshake_failures_total",
    "strandline_remote_copy_failing_seconds",
    "strandline_remote_delete_failing_seconds",
    "strandline_remote_down_seconds",
    "strandline_remote_upkeep_failing_seconds",
    "strandline_remote_writes_refused_seconds",
    "strandline_remote_copy_waiting_segments",
    "strandline_remote_copy_held_seconds",
}

_METRIC = re.compile(r"\b(?:(?:kafka|strandline|process)_[a-z0-9_]+|up|ALERTS)\b")
_SELECTOR = re.compile(r"\b((?:kafka|strandline|process)_[a-z0-9_]+|up|ALERTS)\{([^}]*)\}")
_LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_GROUPING = re.compile(r"\bby \(([^)]*)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A query of PromQL; `where` names the rule, the panel or the series of a test."""

    where: str
    expression: str

    @property
    def metrics(self) -> set[str]:
        """The names of its metrics, without those of Prometheus."""
        return set(_METRIC.findall(self.expression)) - OF_PROMETHEUS

    @property
    def labels(self) -> Iterator[tuple[str, str]]:
        """Each metric with each label that is asked of it; groupings ask every metric."""
        for metric, matchers in _SELECTOR.findall(self.expression):
            for label in _LABEL.findall(matchers):
                yield metric, label
        for group in _GROUPING.findall(self.expression):
            for label in filter(None, re.split(r",\s*", group)):
                for metric in self.metrics:
                    yield metric, label


def rule_queries() -> Iterator[Query]:
    """The expression of each alert."""
    for rule in alert_rules():
        yield Query(where=rule.name, expression=rule.expression)


def made_up_series() -> Iterator[Query]:
    """The series that the tests of the rules make up."""
    for test in yaml.safe_load(RULE_TESTS.read_text())["tests"]:
        for series in test["input_series"]:
            yield Query(where=test["name"], expression=series["series"])


def panel_queries() -> Iterator[Query]:
    """The queries of the dashboard's panels, with all brokers and topics chosen."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            text = target["expr"].replace("$__rate_interval", "30s")
            text = text.replace("$instance", ".*").replace("$topic", ".*").replace("$broker", ".*")
            yield Query(where=panel["title"], expression=text)


def variable_queries() -> Iterator[Query]:
    """The series whose labels the dashboard offers as brokers and topics."""
    for variable in json.loads(DASHBOARD.read_text())["templating"]["list"]:
        found = re.fullmatch(r"label_values\((.*), (\w+)\)", variable.get("definition", ""))
        if found:
            text = found[1].replace("$instance", ".*").replace("$broker", ".*")
            expression = f"count by ({found[2]}) ({text})"
            yield Query(where=variable["name"], expression=expression)
