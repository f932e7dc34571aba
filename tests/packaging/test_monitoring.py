"""Rules and dashboard name metrics and labels that the broker has; check_monitoring.py runs them.

`make check-monitoring` runs them in Prometheus. Here their names are held against the table of
metrics and a real page.
"""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

import pytest

from strandline.broker.telemetry.families import FAMILIES
from tests.packaging.monitoring import (
    DASHBOARD,
    LABEL_OF_SEVERAL,
    LABELS_OF_PROMETHEUS,
    OF_PROMETHEUS,
    OF_SEVERAL,
    ROOT,
    WHILE_FAILING,
    Query,
    made_up_series,
    panel_queries,
    rule_queries,
    variable_queries,
)
from tests.support.broker import BrokerProcess, eventually
from tests.support.first_minutes import run
from tests.support.metrics import METRICS_ON, get

PICTURE = ROOT / "docs" / "assets" / "dashboard.svg"
QUERIES = [*rule_queries(), *panel_queries(), *variable_queries(), *made_up_series()]

# On a page only with a store that is spoken to by requests.
OF_S3 = {"strandline_remote_requests_total", "strandline_remote_failed_attempts_total"}
# On the page of a read-only replica.
OF_REPLICA = {"strandline_replica_lag_seconds"}


def family_of(metric: str) -> str:
    """The family of a name, which a summary's parts extend."""
    return metric if metric in FAMILIES else re.sub(r"_(sum|count)$", "", metric)


def test_every_metric_and_label_of_rules_and_dashboard_is_in_the_table() -> None:
    wrong = [
        f"{query.where}: {metric}"
        for query in QUERIES
        for metric in query.metrics
        if family_of(metric) not in FAMILIES
    ]
    wrong += [
        f"{query.where}: {metric} has no label {label}"
        for query in QUERIES
        for metric, label in query.labels
        if metric not in OF_PROMETHEUS | WHILE_FAILING
        and label
        not in {*FAMILIES[family_of(metric)].labels, *LABELS_OF_PROMETHEUS, LABEL_OF_SEVERAL}
    ]
    assert wrong == []
    assert len(QUERIES) > 60


def test_every_alert_has_a_test_of_its_own() -> None:
    tested = {query.where.partition(",")[0] for query in made_up_series()}
    assert tested == {query.where for query in rule_queries()}


@pytest.mark.slow
def test_the_picture_of_the_dashboard_has_its_panels_in_their_order() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    drawn = re.findall(r'class="b title"[^>]*>([^<]*)</text>', PICTURE.read_text())
    assert [unescape(title) for title in drawn] == [panel["title"] for panel in panels], (
        "make dashboard-picture draws it anew"
    )


def test_a_brokers_page_has_every_metric_of_rules_and_dashboard(tmp_path: Path) -> None:
    settings = {
        **METRICS_ON,
        "remote.log.storage.system.enable": "true",
        "strandline.remote.url": f"file://{tmp_path}/archive",
        "strandline.audit.file": f"{tmp_path}/audit.json",
    }
    broker = BrokerProcess(tmp_path, settings=settings).start()

    def ask(*words: str) -> None:
        run(*broker.program, *words, cwd=tmp_path, STRANDLINE_BOOTSTRAP=broker.bootstrap)

    def missing() -> set[str]:
        page = set(re.findall(r"^(\w+)[ {]", get(broker, "/metrics"), re.MULTILINE))
        return wanted - page - WHILE_FAILING - OF_S3 - OF_REPLICA - OF_SEVERAL

    wanted = set[str]().union(*(query.metrics for query in QUERIES))
    try:
        ask("topic", "create", "orders", "--config", "remote.storage.enable=true")
        (tmp_path / "lines").write_text("2 apples\n")
        ask("produce", "orders", "--file", str(tmp_path / "lines"))
        ask("consume", "orders", "--group", "billing", "--from", "start", "--max-messages", "1")
        eventually(lambda: not missing())
    finally:
        assert broker.stop() == 0


def test_a_query_is_read_as_prometheus_reads_it() -> None:
    query = Query(
        where="", expression='sum by (topic) (rate(kafka_a_total{topic!="", b=~"c"}[5m]))'
    )
    assert query.metrics == {"kafka_a_total"}
    assert set(query.labels) == {("kafka_a_total", "topic"), ("kafka_a_total", "b")}
