"""The configuration in force: what was altered counts, what could not be run with is refused."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

import pytest

from strandline.broker.cluster.metadata.controller_messages import Refusal
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.records import config_records, topic_records
from strandline.broker.config.loading import load_config
from strandline.broker.config.running_config import check_broker_change
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.config.log_config import LogConfig
from tests.unit.broker.cluster.controlled import since
from tests.unit.broker.config.loaded import altered

# --- altered while it runs -----------------------------------------------------------------------


def test_what_is_taken_back_leaves_what_the_broker_was_started_with() -> None:
    running = altered({"max.connections": "7"}, {}, "max.connections=9")
    stored = config_records(ConfigResourceType.BROKER, "1", {}, {"max.connections": "7"})
    running.follow(*since(MetadataImage().apply_entry(stored), MetadataImage()))
    assert running.current.network.connections_max == 9
    assert dict(running.current.given) == {"max.connections": "9"}


def test_stored_keys_that_cannot_be_applied_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    running = altered({"node.id": "5", "max.connections": "many"}, {"log.roll.ms": "9"})
    assert running.current.node_id == 1
    assert running.current.topics.properties == {"segment.ms": "9"}
    assert caplog.text.count("stored configuration not applied") == 2


def test_stored_passwords_of_other_brokers_are_not_told(caplog: pytest.LogCaptureFixture) -> None:
    """Kafka stores values of type PASSWORD as they are."""
    secret = "correct horse"
    stored = {
        "listener.name.tls.ssl.keystore.password": secret,
        "listener.name.tls.gssapi.sasl.jaas.config": secret,
        "max.connections": "many",
    }
    altered(stored, {})
    fields = [one.fields for one in caplog.records if "not applied" in one.message]  # type: ignore[attr-defined]
    assert len(fields) == 3
    assert secret not in str(fields)
    assert "many" in str(fields)


def test_of_topics_with_the_same_properties_one_is_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loop stands still meanwhile."""
    image = MetadataImage()
    for number in range(100):
        properties = {"retention.ms": str(number % 2)}
        topic_id = uuid.UUID(int=number + 1)
        image = image.apply_entry(topic_records(f"t{number}", topic_id, ((1,),), properties))
    checked = 0
    resolve_checked = LogConfig.resolve_checked

    def counted(*layers: Mapping[str, str]) -> LogConfig:
        nonlocal checked
        checked += 1
        return resolve_checked(*layers)

    monkeypatch.setattr(LogConfig, "resolve_checked", counted)
    check_broker_change(load_config(), image, 1, {"log.retention.ms": "7"})
    # The defaults twice, and two kinds of topics.
    assert checked <= 2 + 2


def test_a_topic_that_contradicts_itself_already_holds_up_no_change_of_the_broker() -> None:
    """The file's defaults may have changed since it was made; only what a change breaks is said."""
    properties = {"min.compaction.lag.ms": "5000"}
    image = MetadataImage().apply_entry(
        topic_records("slow", uuid.UUID(int=1), ((1,),), properties)
    )
    key = "log.cleaner.max.compaction.lag.ms"
    contradicted = load_config(None, [f"{key}=4000"])
    for properties in ({"max.connections": "9"}, {key: "3000"}, {key: "6000"}):
        check_broker_change(contradicted, image, 1, properties)
    with pytest.raises(Refusal, match="topic slow could not run with it"):
        check_broker_change(load_config(), image, 1, {key: "4000"})


def test_sections_are_checked_as_in_a_file() -> None:
    static = load_config(None, ["log.cleaner.threads=4"])
    with pytest.raises(Refusal, match="at least 1 MiB for each of the 4 threads") as caught:
        check_broker_change(
            static, MetadataImage(), 1, {"log.cleaner.dedupe.buffer.size": str(1 << 20)}
        )
    assert caught.value.error_code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("properties", "complaint"),
    [
        ({"nonsense": "1"}, "unknown key"),
        ({"node.id": "2"}, "Cannot update these configs dynamically: node.id"),
        ({"log.retention.hours": "2"}, "Cannot update these configs dynamically"),
        ({"max.connections": "-1"}, "must be at least 0"),
        # Kafka's DynamicBrokerConfigTest, KafkaConfigTest.testMaxConnectionsPerIpProp and
        # testInvalidGzipCompressionLevel.
        ({"max.connections": "0"}, "nobody could connect to take it back"),
        ({"listener.name.plaintext.max.connections": "0"}, "nobody could connect"),
        ({"max.connections.per.ip": "0"}, "can be set to zero only if"),
        ({"compression.gzip.level": "0"}, "must be -1, or from 1 to 9"),
        ({"max.connections.per.ip.overrides": "x:1"}, "expected address:count"),
        ({"log.local.retention.ms": "9999999999"}, "must not exceed"),
        ({"log.retention.ms": "0"}, "must be -1, for no limit, or at least 1"),
        ({"log.retention.ms": "1"}, "topic tiered could not run with it"),
    ],
)
def test_what_a_broker_could_not_run_with_is_refused(
    properties: dict[str, str], complaint: str
) -> None:
    tiered = {"local.retention.ms": "5", "remote.storage.enable": "true"}
    image = MetadataImage().apply_entry(topic_records("tiered", uuid.UUID(int=1), ((1,),), tiered))
    with pytest.raises(Refusal, match=complaint) as caught:
        check_broker_change(load_config(), image, None, properties)
    assert caught.value.error_code is ErrorCode.INVALID_REQUEST
