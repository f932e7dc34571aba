"""What an alteration makes of a topic's properties, and which topics it is kept away from."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from strandline.broker.cluster.metadata import controller
from strandline.broker.cluster.metadata.controller_messages import (
    Decision,
    NewTopic,
    Refusal,
    TopicDefaults,
)
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.topic_names import INTERNAL_TOPICS
from strandline.broker.config.config_changes import (
    AlterConfigs,
    ConfigResource,
    ConfigResult,
    alter,
    operated,
)
from strandline.broker.config.loading import load_config
from strandline.broker.protocol.messages.alter_configs import AlterableConfig, AlterConfigsResource
from strandline.broker.protocol.messages.incremental_alter_configs import (
    ConfigOperation,
    IncrementalConfig,
)
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from strandline.broker.protocol.schema.errors import ErrorCode
from tests.unit.broker.cluster.controlled import with_brokers

DEFAULTS = TopicDefaults(tiering_enabled=True)
CONFIG = replace(load_config(), topics=DEFAULTS)
THROTTLED = "leader.replication.throttled.replicas"


def image_with(name: str, properties: dict[str, str] | None = None) -> MetadataImage:
    before = with_brokers(1)
    created = controller.create_topics(
        before,
        [NewTopic(name=name, partition_count=1, properties=dict(properties or {}))],
        defaults=DEFAULTS,
        new_topic_id=lambda: uuid.UUID(int=7),
    )
    return before.apply_entry(created.records)


def altered(image: MetadataImage, name: str, to: dict[str, str]) -> Decision[ConfigResult]:
    return alter(image, AlterConfigs([replaced(name, to)]), static=CONFIG, current=CONFIG)


def replaced(name: str, to: dict[str, str], kind: int = ConfigResourceType.TOPIC) -> ConfigResource:
    return AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[AlterableConfig(name=key, value=value) for key, value in to.items()],
    )


def operation(kind: int, value: str | None, name: str = THROTTLED) -> IncrementalConfig:
    return IncrementalConfig(name=name, config_operation=kind, value=value)


@pytest.mark.parametrize(
    "to",
    [
        {},
        {"segment.bytes": "1048576"},
        {"cleanup.policy": "delete"},
        {"cleanup.policy": "compact,delete"},
        {"cleanup.policy": "compact", "remote.storage.enable": " TRUE "},
    ],
)
@pytest.mark.parametrize("name", sorted(INTERNAL_TOPICS))
def test_internal_topics_stay_compacted_and_on_this_disk(name: str, to: dict[str, str]) -> None:
    decision = altered(image_with(name, {"cleanup.policy": "compact"}), name, to)
    assert decision.records == ()
    assert decision.results[0].error_code == ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize("name", sorted(INTERNAL_TOPICS))
def test_what_else_internal_topics_have_can_be_altered(name: str) -> None:
    image = image_with(name, {"cleanup.policy": "compact", "segment.bytes": "104857600"})
    to = {"cleanup.policy": " compact ", "segment.bytes": "1048576", "compression.type": "zstd"}
    decision = altered(image, name, to)
    assert decision.results[0].error_code == ErrorCode.NONE
    after = image.apply_entry(decision.records)
    assert dict(after.topics[name].properties) == {**to, "cleanup.policy": "compact"}


@pytest.mark.parametrize(
    "to",
    [
        {},
        {"remote.storage.enable": "false"},
        {"remote.storage.enable": " FALSE ", "remote.log.delete.on.disable": "false"},
    ],
)
@pytest.mark.parametrize("how", ["true", " TRUE "])
def test_an_archive_is_not_given_up_without_saying_so(how: str, to: dict[str, str]) -> None:
    decision = altered(image_with("a", {"remote.storage.enable": how}), "a", to)
    assert decision.records == ()
    assert decision.results[0].error_code == ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize(
    "to",
    [
        {"remote.storage.enable": "FALSE", "remote.log.delete.on.disable": " True "},
        {"remote.log.delete.on.disable": "true"},
    ],
)
def test_an_archive_is_given_up_by_whoever_says_so(to: dict[str, str]) -> None:
    decision = altered(image_with("a", {"remote.storage.enable": " TRUE "}), "a", to)
    assert (decision.results[0].error_code, bool(decision.records)) == (ErrorCode.NONE, True)


def test_a_topic_can_become_tiered_and_a_tiered_one_can_be_altered() -> None:
    untiered = image_with("a")
    tiered = altered(untiered, "a", {"remote.storage.enable": "true"})
    assert tiered.results[0].error_code == ErrorCode.NONE
    image = untiered.apply_entry(tiered.records)
    again = altered(image, "a", {"remote.storage.enable": "TRUE", "retention.ms": "5"})
    assert (again.results[0].error_code, bool(again.records)) == (ErrorCode.NONE, True)


def test_what_is_set_already_needs_no_record() -> None:
    decision = altered(image_with("a", {"flush.ms": "5"}), "a", {"flush.ms": "5"})
    assert (decision.records, decision.results[0].error_code) == ((), ErrorCode.NONE)


def test_a_list_begins_as_what_the_broker_gives_its_topics() -> None:
    defaults = {THROTTLED: "5:1,6:1"}
    for kind, expected in (
        (ConfigOperation.APPEND, "5:1,6:1,7:1"),
        (ConfigOperation.SUBTRACT, "5:1,6:1"),
    ):
        assert operated({}, [operation(kind, "7:1")], defaults) == {THROTTLED: expected}
    assert operated({THROTTLED: ""}, [operation(ConfigOperation.APPEND, "7:1")], defaults) == {
        THROTTLED: "7:1"
    }


def test_operations_leave_what_they_were_given_alone() -> None:
    before = {"flush.ms": "5"}
    after = operated(before, [operation(ConfigOperation.DELETE, None, "flush.ms")], {})
    assert (before, after) == ({"flush.ms": "5"}, {})


def test_one_property_cannot_be_named_twice_in_one_alteration() -> None:
    twice = [operation(ConfigOperation.APPEND, "1:1"), operation(ConfigOperation.DELETE, None)]
    with pytest.raises(Refusal) as refused:
        operated({}, twice, {})
    assert refused.value.error_code == ErrorCode.INVALID_REQUEST


def test_a_group_whose_name_no_record_can_hold_gets_no_properties() -> None:
    to = {"consumer.session.timeout.ms": "45000"}
    # What a client sends as bytes that are no UTF-8 takes three bytes each.
    names = ("g", "\ufffd" * 20_000)
    request = AlterConfigs([replaced(name, to, ConfigResourceType.GROUP) for name in names])
    decision = alter(with_brokers(1), request, static=CONFIG, current=CONFIG)
    codes = [result.error_code for result in decision.results]
    assert codes == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
    assert [record.resource_name for record in decision.records] == ["g"]


def test_a_resource_is_decided_after_those_before_it_in_the_request() -> None:
    """One half of a pair that contradicts each other needs no second request."""
    of_all = replaced("", {"log.cleaner.max.compaction.lag.ms": "5"}, ConfigResourceType.BROKER)
    of_one = replaced("1", {"log.cleaner.min.compaction.lag.ms": "7"}, ConfigResourceType.BROKER)
    for resources in ([of_all, of_one], [of_one, of_all]):
        decision = alter(with_brokers(1), AlterConfigs(resources), static=CONFIG, current=CONFIG)
        codes = [result.error_code for result in decision.results]
        assert codes == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
