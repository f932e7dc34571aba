"""The rules and the dashboard in a real Prometheus, over a real broker with a real S3 server.

`make check-monitoring` runs it; $STRANDLINE_PROMETHEUS is the folder of prometheus and promtool.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from scripts.docs.alerts_docs import RULES
from tests.conftest import make_bucket
from tests.packaging.monitoring import (
    OF_SEVERAL,
    RULE_TESTS,
    WHILE_FAILING,
    Query,
    panel_queries,
    rule_queries,
    variable_queries,
)
from tests.support.broker import BrokerProcess, eventually
from tests.support.first_minutes import run
from tests.support.metrics import METRICS_ON, get, metrics_port
from tests.support.ministack import ServerProcess, ministack
from tests.support.prometheus import Prometheus, program
from tests.system.tiers.tiered_broker import BROKER_SETTINGS, REGION

pytestmark = pytest.mark.timeout(600)

TOPIC = ("orders", "--config", "remote.storage.enable=true", "--config", "segment.ms=1000")


def result(prometheus: Prometheus, query: Query) -> list[Any]:
    found: list[Any] = prometheus.ask("query", query=query.expression)["result"]
    return found


def rules_of(prometheus: Prometheus) -> list[dict[str, Any]]:
    return [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]


def state(prometheus: Prometheus, alert: str) -> str:
    return next(str(rule["state"]) for rule in rules_of(prometheus) if rule["name"] == alert)


@pytest.fixture(scope="module")
def store(
    tmp_path_factory: pytest.TempPathFactory, s3_credentials: None
) -> Iterator[ServerProcess]:
    with ministack(tmp_path_factory.mktemp("store") / "log") as server:
        yield server


@pytest.fixture(scope="module")
def broker(
    store: ServerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    """A broker that archives; it has produced, archived and consumed with a group."""
    folder = tmp_path_factory.mktemp("broker")
    tiers = {
        "strandline.remote.url": make_bucket(store.endpoint_url).url,
        "strandline.remote.s3.endpoint.url": store.endpoint_url,
        "strandline.remote.s3.region": REGION,
    }
    broker = BrokerProcess(folder, settings={**BROKER_SETTINGS, **METRICS_ON, **tiers}).start()
    ask(broker, "topic", "create", *TOPIC)
    produce(broker)
    ask(broker, "consume", "orders", "--group", "billing", "--from", "start", "--max-messages", "1")
    yield broker
    broker.kill()


@pytest.fixture(scope="module")
def prometheus(
    broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    server = Prometheus(tmp_path_factory.mktemp("prometheus"), metrics_port(broker))
    with server:
        yield server


def ask(broker: BrokerProcess, *words: str) -> str:
    return run(*broker.program, *words, cwd=broker.folder, STRANDLINE_BOOTSTRAP=broker.bootstrap)


def produce(broker: BrokerProcess) -> None:
    (broker.folder / "lines").write_text("2 apples\n" * 1000)
    ask(broker, "produce", "orders", "--file", str(broker.folder / "lines"))


def test_promtool_takes_the_rules_and_their_tests() -> None:
    for words in (("check", "rules", RULES), ("test", "rules", RULE_TESTS)):
        found = subprocess.run(
            [program("promtool"), *map(str, words)], capture_output=True, text=True, check=False
        )
        assert found.returncode == 0, found.stdout + found.stderr
        assert "SUCCESS" in found.stdout


def remarks(page: str) -> list[str]:
    """What promtool has to say of a page of metrics; that it reads it at all is asserted."""
    found = subprocess.run(
        [program("promtool"), "check", "metrics"],
        input=page,
        capture_output=True,
        text=True,
        check=False,
    )
    # 3: it has remarks. 1: it cannot read the page.
    assert found.returncode in (0, 3), found.stderr
    return found.stderr.splitlines()


def test_promtool_reads_the_brokers_page_and_has_remarks_on_names_of_kafkas_alone(
    broker: BrokerProcess,
) -> None:
    page = get(broker, "/metrics")
    assert "strandline_log_directory_free_bytes" in page
    assert [line for line in remarks(page) if not line.startswith("kafka_")] == []
    without_help = re.sub(r"# HELP strandline_remote_up .*\n", "", page)
    assert "strandline_remote_up no help text" in remarks(without_help)


def is_while_failing(query: Query) -> bool:
    return bool(query.metrics & WHILE_FAILING) or 'error!="NONE"' in query.expression


def test_every_query_of_the_dashboard_has_an_answer(prometheus: Prometheus) -> None:
    queries = [*panel_queries(), *variable_queries()]
    assert len(queries) > 40

    def unanswered() -> list[str]:
        return [
            f"{query.where}: {query.expression}"
            for query in queries
            if not result(prometheus, query)
            and not is_while_failing(query)
            and not query.metrics & OF_SEVERAL
        ]

    left: list[str] = []
    try:
        eventually(lambda: not unanswered())
    except AssertionError:
        left = unanswered()
    assert left == []


def test_no_alert_fires_over_a_healthy_broker_and_every_rule_runs(prometheus: Prometheus) -> None:
    eventually(lambda: all(rule["health"] == "ok" for rule in rules_of(prometheus)))
    rules = rules_of(prometheus)
    assert {rule["name"] for rule in rules} == {query.where for query in rule_queries()}
    assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []


def test_faults_of_store_and_broker_reach_panels_and_alerts(
    prometheus: Prometheus, broker: BrokerProcess, store: ServerProcess
) -> None:
    store.stop()
    produce(broker)
    (failing,) = (query for query in panel_queries() if "copy_failing" in query.expression)
    eventually(lambda: result(prometheus, failing))
    up = next(query for query in panel_queries() if "strandline_remote_up" in query.expression)
    eventually(lambda: result(prometheus, up)[0]["value"][1] == "0")
    # This one fires at a lag, the next after a minute: their times are the business of promtool.
    (errors,) = (query for query in panel_queries() if 'error!="NONE"' in query.expression)
    eventually(lambda: result(prometheus, errors))
    broker.kill()
    eventually(lambda: state(prometheus, "StrandlineDown") in ("pending", "firing"))
