"""Properties of single groups: the GROUP resource of the configuration APIs.

    consumer.session.timeout.ms       over group.consumer.session.timeout.ms of the broker
    consumer.heartbeat.interval.ms    over group.consumer.heartbeat.interval.ms

Both are for groups of the new protocol, whose members get them from the broker; members of classic
groups send their own. Kafka's other properties are for share groups and Kafka Streams, which are
not served. A group need not exist to have properties, and keeps them after its deletion.

The bounds are the broker's (group.consumer.min.*, group.consumer.max.*). If they are changed later,
a group outside the bounds gets the nearest bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from strandline.broker.cluster.metadata.controller_messages import Refusal
from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.table import BROKER_CONFIGS
from strandline.broker.coordination.model.consumer_messages import MemberTimes
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.config.log_config import ConfigDef, nearest_name, parse_config_value
from strandline.storage.errors import InvalidConfig

SESSION_TIMEOUT = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL = "consumer.heartbeat.interval.ms"
# More than one broker serves: each is a line of a snapshot that every start reads.
GROUPS_MAX = 100_000

GROUP_CONFIGS: Mapping[str, ConfigDef] = MappingProxyType(
    {
        name: ConfigDef(
            name=name,
            type=BROKER_CONFIGS[f"group.{name}"].type,
            default=BROKER_CONFIGS[f"group.{name}"].default,
            doc=BROKER_CONFIGS[f"group.{name}"].doc,
            minimum=1,
            synonyms=(f"group.{name}",),
        )
        for name in (HEARTBEAT_INTERVAL, SESSION_TIMEOUT)
    }
)


def check_group_change(config: BrokerConfig, properties: Mapping[str, str]) -> None:
    """Raises Refusal unless a group can run with these properties."""
    for name, text in properties.items():
        definition = GROUP_CONFIGS.get(name)
        if definition is None:
            raise Refusal(
                ErrorCode.INVALID_CONFIG,
                f"Unknown group config name: {name}{nearest_name(name, GROUP_CONFIGS)}",
            )
        try:
            value = parse_config_value(definition, text)
        except InvalidConfig as error:
            raise Refusal(ErrorCode.INVALID_CONFIG, str(error)) from None
        low, high = _bounds(config)[name]
        if not low <= int(str(value)) <= high:
            raise Refusal(
                ErrorCode.INVALID_CONFIG,
                f"{name}={text}: expected {low} to {high}, as the broker's group.consumer.min and"
                " group.consumer.max keys say",
            )
    times = member_times(config, properties)
    if times.session_timeout_ms <= times.heartbeat_interval_ms:
        raise Refusal(
            ErrorCode.INVALID_CONFIG,
            f"{SESSION_TIMEOUT}={times.session_timeout_ms} must be greater than"
            f" {HEARTBEAT_INTERVAL}={times.heartbeat_interval_ms}",
        )


def member_times(config: BrokerConfig, properties: Mapping[str, str]) -> MemberTimes:
    """Returns the timeouts for the members of a group with these properties."""
    rules = config.groups.consumer
    values = {
        SESSION_TIMEOUT: rules.session_timeout_ms,
        HEARTBEAT_INTERVAL: rules.heartbeat_interval_ms,
    }
    bounds = _bounds(config)
    for name, text in properties.items():
        # Properties stored by another release that this one does not know are ignored.
        if name in values and text.isdecimal():
            low, high = bounds[name]
            values[name] = min(max(int(text), low), high)
    return MemberTimes(
        session_timeout_ms=values[SESSION_TIMEOUT], heartbeat_interval_ms=values[HEARTBEAT_INTERVAL]
    )


def _bounds(config: BrokerConfig) -> dict[str, tuple[int, int]]:
    rules = config.groups.consumer
    return {
        SESSION_TIMEOUT: (rules.session_timeout_ms_min, rules.session_timeout_ms_max),
        HEARTBEAT_INTERVAL: (rules.heartbeat_interval_ms_min, rules.heartbeat_interval_ms_max),
    }
