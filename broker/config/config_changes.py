"""Decides AlterConfigs and IncrementalAlterConfigs on a metadata image. Pure.

    current properties + changes of a resource -> new properties -> checks -> ConfigRecords

The resources of a request are independent: one's bad value does not prevent another's good one. A
broker's is checked with those before it in force.

A BROKER resource is a broker, or with an empty name all brokers. Only keys that the table of
configurations marks as dynamic can be altered. A GROUP resource is a group, whether it exists or
not (`group_configs.py`).

Not alterable: the properties that keep group offsets safe. `__consumer_offsets` stays compacted and
on the local disk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from strandline.broker.cluster.metadata import controller
from strandline.broker.cluster.metadata.controller_messages import (
    ControllerRequest,
    Decision,
    Intent,
    Outcome,
    Refusal,
    TopicDefaults,
)
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.records import ALL_BROKERS, config_records
from strandline.broker.cluster.metadata.topic_names import INTERNAL_TOPICS, topic_name_fault
from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.group_configs import GROUP_CONFIGS, GROUPS_MAX, check_group_change
from strandline.broker.config.min_isr import check_min_isr, clear_elr
from strandline.broker.config.running_config import check_broker_change
from strandline.broker.config.table import BROKER_CONFIGS
from strandline.broker.protocol.formats.metadata_records import MetadataRecord
from strandline.broker.protocol.messages.alter_configs import AlterableConfig, AlterConfigsResource
from strandline.broker.protocol.messages.incremental_alter_configs import (
    ConfigOperation,
    IncrementalAlterConfigsResource,
    IncrementalConfig,
)
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.protocol.schema.primitives import STRING_BYTES_MAX
from strandline.storage.config.definition import ValueType
from strandline.storage.config.log_config import TOPIC_CONFIGS, ConfigDef

Properties: TypeAlias = Mapping[str, str]
ConfigResource: TypeAlias = AlterConfigsResource | IncrementalAlterConfigsResource


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigResult(Outcome):
    """The outcome for one resource."""

    resource_type: int
    resource_name: str


@dataclass(frozen=True, slots=True)
class AlterConfigs(ControllerRequest[ConfigResult]):
    """Alters the properties of resources, each named once, as either request of Kafka has them."""

    resources: Sequence[ConfigResource]
    intent: Intent = Intent.APPLY


def alter(
    image: MetadataImage, request: AlterConfigs, *, static: BrokerConfig, current: BrokerConfig
) -> Decision[ConfigResult]:
    """Returns one result per resource. `static` is the configuration of the start."""
    records: list[MetadataRecord] = []
    applied_count = 0
    results: list[ConfigResult] = []
    for resource in request.resources:
        if len(records) > applied_count and _depends_on_others(image, resource, request):
            image = image.apply_entry(records[applied_count:])
            applied_count = len(records)
        code = ErrorCode.NONE
        message: str | None = None
        try:
            changes = _records(image, resource, static, current)
            records += [*changes, *clear_elr(image, changes)]
        except Refusal as refusal:
            code, message = refusal.error_code, refusal.message
        results.append(
            ConfigResult(
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                error_code=code,
                error_message=message,
            )
        )
    if request.intent is Intent.VALIDATE:
        records.clear()
    return Decision(records=tuple(records), results=tuple(results))


def _depends_on_others(
    image: MetadataImage, resource: ConfigResource, request: AlterConfigs
) -> bool:
    """Whether the changes of other resources may refuse this one's."""
    match resource.resource_type:
        case ConfigResourceType.BROKER:
            return True
        case ConfigResourceType.GROUP:
            return len(image.group_properties) + len(request.resources) > GROUPS_MAX
        case _:
            return False


def _records(
    image: MetadataImage, resource: ConfigResource, static: BrokerConfig, current: BrokerConfig
) -> Sequence[MetadataRecord]:
    """Returns the records that alter a resource. Raises Refusal."""
    name = resource.resource_name
    match resource.resource_type:
        case ConfigResourceType.BROKER:
            node_id = int(name) if name else None
            present = image.broker_properties.get(node_id, {})
            wanted = altered(present, resource, static.given, BROKER_CONFIGS)
            check_broker_change(static, image, node_id, wanted)
            check_min_isr(image, node_id, present, wanted)
            stored = ALL_BROKERS if node_id is None else str(node_id)
            return config_records(ConfigResourceType.BROKER, stored, present, wanted)
        case ConfigResourceType.GROUP:
            return _group_records(image, resource, static.given, current)
        case _:
            return _topic_records(image, resource, current.topics)


def _group_records(
    image: MetadataImage, resource: ConfigResource, given: Properties, current: BrokerConfig
) -> Sequence[MetadataRecord]:
    group_id = resource.resource_name
    # A name that is no UTF-8 grows when it is read.
    if len(group_id.encode()) > STRING_BYTES_MAX:
        raise Refusal(
            ErrorCode.INVALID_REQUEST, f"the name is longer than {STRING_BYTES_MAX} bytes"
        )
    present = image.group_properties.get(group_id, {})
    wanted = altered(present, resource, given, GROUP_CONFIGS)
    check_group_change(current, wanted)
    if not present and wanted and len(image.group_properties) >= GROUPS_MAX:
        raise Refusal(ErrorCode.POLICY_VIOLATION, f"more than {GROUPS_MAX} groups with properties")
    return config_records(ConfigResourceType.GROUP, group_id, present, wanted)


def _topic_records(
    image: MetadataImage, resource: ConfigResource, defaults: TopicDefaults
) -> Sequence[MetadataRecord]:
    name = resource.resource_name
    topic = image.topics.get(name)
    if topic is None:
        fault = topic_name_fault(name)
        if fault is not None:
            raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic named {name!r}")
    wanted = altered(topic.properties, resource, defaults.properties, TOPIC_CONFIGS)
    if name in INTERNAL_TOPICS:
        _check_internal(name, wanted)
    return controller.topic_config_records(topic, wanted, defaults)


def _check_internal(name: str, properties: Mapping[str, str]) -> None:
    """Raises Refusal for a change that would expire group offsets, or move them to the archive.

    Kafka accepts such a change and loses the offsets.
    """
    policy = _elements(properties.get("cleanup.policy", ""))
    if policy != ["compact"]:
        raise Refusal(ErrorCode.INVALID_CONFIG, f"{name} needs cleanup.policy=compact.")
    if properties.get("remote.storage.enable", "").strip().lower() == "true":
        raise Refusal(ErrorCode.INVALID_CONFIG, f"{name} cannot have remote.storage.enable=true.")


def altered(
    properties: Properties,
    resource: ConfigResource,
    inherited: Properties,
    definitions: Mapping[str, ConfigDef],
) -> dict[str, str]:
    """Returns `properties` after either request. Raises Refusal."""
    if isinstance(resource, AlterConfigsResource):
        return replacement(resource.configs)
    return operated(properties, resource.configs, inherited, definitions=definitions)


def replacement(configs: Sequence[AlterableConfig]) -> dict[str, str]:
    """Returns the properties that AlterConfigs sets. Raises Refusal."""
    _check_names([config.name for config in configs])
    return {config.name: _value(config.name, config.value) for config in configs}


def operated(
    properties: Mapping[str, str],
    operations: Sequence[IncrementalConfig],
    defaults: Mapping[str, str],
    *,
    definitions: Mapping[str, ConfigDef] = TOPIC_CONFIGS,
) -> dict[str, str]:
    """Returns `properties` after IncrementalAlterConfigs. Raises Refusal.

    A list without its own value starts from the inherited one: from `defaults` (the broker's
    current or static values), or from Kafka's.
    """
    _check_names([operation.name for operation in operations])
    # None of the values may be null, whatever else is wrong.
    values = {
        operation.name: _value(operation.name, operation.value)
        for operation in operations
        if operation.config_operation != ConfigOperation.DELETE
    }
    altered = dict(properties)
    for operation in operations:
        name = operation.name
        match operation.config_operation:
            case ConfigOperation.SET:
                altered[name] = values[name]
            case ConfigOperation.DELETE:
                altered.pop(name, None)
            case ConfigOperation.APPEND | ConfigOperation.SUBTRACT:
                definition = _list_of(name, operation.config_operation, definitions)
                inherited = defaults.get(name, definition.default)
                altered[name] = _edited(
                    altered.get(name, inherited), values[name], operation.config_operation
                )
                _check_length(name, altered[name])
            case unknown:
                raise Refusal(
                    ErrorCode.INVALID_REQUEST, f"Unknown alter config operation: {unknown}"
                )
    return altered


def _edited(current: str, named: str, operation: int) -> str:
    # Dict keys: each element once, in request order.
    elements, others = dict.fromkeys(_elements(current)), dict.fromkeys(_elements(named))
    if operation == ConfigOperation.APPEND:
        return ",".join(elements | others)
    return ",".join(element for element in elements if element not in others)


def _elements(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _list_of(name: str, operation: int, definitions: Mapping[str, ConfigDef]) -> ConfigDef:
    definition = definitions.get(name)
    verb = ConfigOperation(operation).name
    if definition is None:
        raise Refusal(ErrorCode.INVALID_CONFIG, f"Can't {verb} to unknown property {name}.")
    if definition.type is not ValueType.LIST:
        raise Refusal(
            ErrorCode.INVALID_CONFIG, f"Can't {verb} to key {name} because its type is not LIST."
        )
    return definition


def _check_length(name: str, text: str) -> None:
    # Each APPEND fits a string of the protocol; their sum may not, but must fit DescribeConfigs.
    if len(text.encode()) > STRING_BYTES_MAX:
        raise Refusal(
            ErrorCode.INVALID_CONFIG, f"{name} would be longer than {STRING_BYTES_MAX} bytes"
        )


def _check_names(names: Sequence[str]) -> None:
    if len(set(names)) != len(names):
        raise Refusal(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")


def _value(name: str, value: str | None) -> str:
    if value is None:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {name}")
    return value.strip()
