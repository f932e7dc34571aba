"""Keys of Kafka that mean nothing here are accepted and logged."""

from __future__ import annotations

import logging

import pytest

from tests.unit.broker.config.loaded import load


def test_harmless_keys_are_accepted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        config = load("num.network.threads=3", "num.io.threads=8")
    assert list(config.ignored) == [
        "num.network.threads",
        "num.io.threads",
    ]
    assert [record.fields["key"] for record in caplog.records] == [  # type: ignore[attr-defined]
        "num.network.threads",
        "num.io.threads",
    ]
    assert "num.network.threads" not in config.given


@pytest.mark.parametrize(
    "key",
    [
        "alter.log.dirs.replication.quota.window.num",
        "broker.id.generation.enable",
        "delete.records.purgatory.purge.interval.requests",
        "eligible.leader.replicas.enable",
        "fetch.purgatory.purge.interval.requests",
        "follower.fetch.last.tiered.offset.enable",
        "group.coordinator.append.linger.ms",
        "kafka.metrics.polling.interval.secs",
        "producer.purgatory.purge.interval.requests",
        "remote.log.index.file.cache.ttl.ms",
        "reserved.broker.max.id",
        "server.max.startup.time.ms",
        "unstable.api.versions.enable",
    ],
)
def test_keys_of_kafka_that_say_nothing_here_do_not_stop_a_broker(key: str) -> None:
    assert list(load(f"{key}=1").ignored) == [key]
