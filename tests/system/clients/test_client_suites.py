"""Quick ones of kafka-python's and librdkafka's own tests; `make compat` runs all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compat.judging import surprises
from tests.compat.suites import (
    SLOW_KAFKA_PYTHON,
    run_kafka_python,
    run_librdkafka_quickly,
    start_broker,
)
from tests.support.heavy import heavy

pytestmark = [pytest.mark.clients, pytest.mark.slow]


@pytest.mark.heavy
def test_the_quick_tests_of_kafka_python_say_what_the_list_of_known_failures_says(
    tmp_path: Path,
) -> None:
    with start_broker(tmp_path) as broker:
        outcomes = list(run_kafka_python(broker, without=SLOW_KAFKA_PYTHON))
    assert surprises(outcomes) == []
    assert sum(outcome.result == "passed" for outcome in outcomes) > 40


@pytest.mark.parametrize("brokers", [1, heavy(3)])
def test_quick_tests_of_librdkafka_pass(tmp_path: Path, brokers: int) -> None:
    """In C, against the very librdkafka that confluent-kafka brings."""
    with start_broker(tmp_path, brokers=brokers) as broker:
        outcomes = list(run_librdkafka_quickly(broker))
    assert {
        outcome.test: outcome.detail for outcome in outcomes if outcome.result != "passed"
    } == {}
    assert len(outcomes) >= 20
