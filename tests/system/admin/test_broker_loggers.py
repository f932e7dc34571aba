"""Levels of the broker's loggers, over the wire (KIP-412): codes are those of Apache Kafka 4.1."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from strandline.broker.protocol.messages.alter_configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResponse,
)
from strandline.broker.protocol.messages.describe_configs import (
    ConfigSource,
    DescribeConfigsEntry,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from strandline.broker.protocol.messages.incremental_alter_configs import (
    ConfigOperation,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    IncrementalConfig,
)
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from tests.support.broker import BrokerProcess
from tests.support.wire import WireClient
from tests.system.group_calls import GroupMember, new_group

pytestmark = pytest.mark.slow

INVALID_CONFIG = 40
INVALID_REQUEST = 42
LOGGER = ConfigResourceType.BROKER_LOGGER
SET, DELETE, APPEND, SUBTRACT = ConfigOperation
REBALANCE = "broker.coordination.classic.group"
BROKER_SETTINGS = {"group.initial.rebalance.delay.ms": "0"}


@pytest.fixture(scope="module", autouse=True)
def loggers(broker: BrokerProcess) -> None:
    """Loads what serves groups, and with it the loggers of the tests."""
    rebalance(broker)


def rebalance(broker: BrokerProcess) -> str:
    """Makes a group, whose name the log tells at INFO."""
    group_id = new_group()
    member = GroupMember(broker.port, group_id)
    member.join()
    member.close()
    return group_id


def levels(
    client: WireClient, *, node_id: str = "1", keys: Sequence[str] | None = None
) -> dict[str, DescribeConfigsEntry]:
    resource = DescribeConfigsResource(
        resource_type=LOGGER, resource_name=node_id, configuration_keys=keys
    )
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    (result,) = client.ask(request, DescribeConfigsResponse, 4).results
    assert result.error_code == 0, result
    return {row.name: row for row in result.configs}


def alter(
    client: WireClient,
    *operations: tuple[str, ConfigOperation, str | None],
    node_id: str = "1",
    validate_only: bool = False,
) -> int:
    request = IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsResource(
                resource_type=LOGGER,
                resource_name=node_id,
                configs=[
                    IncrementalConfig(name=name, config_operation=operation, value=value)
                    for name, operation, value in operations
                ],
            )
        ],
        validate_only=validate_only,
    )
    (result,) = client.ask(request, IncrementalAlterConfigsResponse, 1).responses
    assert (result.resource_type, result.resource_name) == (LOGGER, node_id)
    assert bool(result.error_message) == bool(result.error_code)
    return result.error_code


def test_every_logger_is_told_with_the_level_in_force(client: WireClient) -> None:
    told = levels(client)
    assert told["root"].value == "INFO"
    assert told[REBALANCE].value == "INFO"
    row = told["broker.coordination"]
    assert (row.read_only, row.is_sensitive, list(row.synonyms)) == (False, False, [])
    assert row.config_source == ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG
    assert not [name for name in told if name.startswith(("strandline", "boto", "asyncio"))]
    assert list(levels(client, keys=["root", "nobody"])) == ["root"]


def test_a_level_holds_at_once_for_what_is_below_until_it_is_deleted(
    broker: BrokerProcess, client: WireClient
) -> None:
    assert rebalance(broker) in broker.log_text()
    assert alter(client, ("broker.coordination", SET, "WARN")) == 0
    assert levels(client)[REBALANCE].value == "WARN"
    assert levels(client)["root"].value == "INFO"
    assert rebalance(broker) not in broker.log_text()
    assert alter(client, (REBALANCE, SET, "DEBUG")) == 0
    assert rebalance(broker) in broker.log_text()
    assert alter(client, (REBALANCE, DELETE, None)) == 0
    assert rebalance(broker) not in broker.log_text()
    assert alter(client, ("broker.coordination", DELETE, None)) == 0
    assert rebalance(broker) in broker.log_text()


@pytest.mark.parametrize("level", ["TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL"])
def test_every_level_of_kafka_is_taken_and_told(client: WireClient, level: str) -> None:
    assert alter(client, (REBALANCE, SET, level)) == 0
    assert levels(client)[REBALANCE].value == level
    assert alter(client, (REBALANCE, DELETE, None)) == 0


@pytest.mark.parametrize(
    ("operations", "code"),
    [
        ([("nobody", SET, "INFO")], INVALID_CONFIG),
        ([("nobody", DELETE, None)], INVALID_CONFIG),
        ([("root", DELETE, None)], INVALID_REQUEST),
        ([(REBALANCE, SET, "info")], INVALID_CONFIG),
        ([(REBALANCE, SET, "WARNING")], INVALID_CONFIG),
        ([(REBALANCE, SET, "OFF")], INVALID_CONFIG),
        ([(REBALANCE, SET, None)], INVALID_REQUEST),
        ([(REBALANCE, APPEND, "INFO")], INVALID_REQUEST),
        ([(REBALANCE, SUBTRACT, "INFO")], INVALID_REQUEST),
        ([(REBALANCE, SET, "ERROR"), (REBALANCE, SET, "WARN")], INVALID_REQUEST),
        ([(REBALANCE, SET, "ERROR"), ("nobody", SET, "INFO")], INVALID_CONFIG),
    ],
)
def test_a_wrong_level_or_logger_changes_nothing(
    client: WireClient,
    operations: Sequence[tuple[str, ConfigOperation, str | None]],
    code: int,
) -> None:
    assert alter(client, *operations) == code
    assert levels(client)[REBALANCE].value == "INFO"


def test_loggers_are_those_of_this_broker(client: WireClient) -> None:
    for node_id in ("", "2", "x"):
        assert alter(client, ("root", SET, "INFO"), node_id=node_id) == INVALID_REQUEST
        resource = DescribeConfigsResource(resource_type=LOGGER, resource_name=node_id)
        request = DescribeConfigsRequest(resources=[resource])
        (result,) = client.ask(request, DescribeConfigsResponse, 4).results
        assert (result.error_code, list(result.configs)) == (INVALID_REQUEST, [])


def test_a_level_is_only_tried_when_that_is_what_was_asked(client: WireClient) -> None:
    assert alter(client, (REBALANCE, SET, "ERROR"), validate_only=True) == 0
    assert levels(client)[REBALANCE].value == "INFO"


def test_the_older_api_takes_no_levels(client: WireClient) -> None:
    resource = AlterConfigsResource(
        resource_type=LOGGER,
        resource_name="1",
        configs=[AlterableConfig(name=REBALANCE, value="ERROR")],
    )
    request = AlterConfigsRequest(resources=[resource])
    (result,) = client.ask(request, AlterConfigsResponse, 2).responses
    assert result.error_code == INVALID_REQUEST
    assert levels(client)[REBALANCE].value == "INFO"
