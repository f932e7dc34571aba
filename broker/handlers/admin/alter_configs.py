"""IncrementalAlterConfigs and AlterConfigs: changes the configuration of topics, brokers, groups.

IncrementalAlterConfigs  0-1  SET, DELETE, and for lists APPEND and SUBTRACT; 1 flexible
AlterConfigs             0-2  replaces all of them: unnamed ones get their default; 2 flexible

Both compute the topic's new set of properties on the newest image and pass it to the controller,
which checks every value as for CreateTopics:

    current properties + request -> NewProperties -> controller -> metadata log -> running logs

The answer is sent when the change is durable and the running logs use it. The resources of a
request are independent: one topic's bad value does not prevent another's good one.

A BROKER resource is this broker, or with an empty name all brokers. Only keys that the table of
configurations marks as dynamic can be altered; they are in force when the answer is sent.

    current keys + request -> check_broker_change -> metadata log -> RunningConfig

A BROKER_LOGGER resource is the loggers of this broker, for IncrementalAlterConfigs alone
(`logger_configs.py`).

A GROUP resource is a group, whether it exists or not (`group_configs.py`); its members get it
with their next heartbeat.

Not alterable: other broker keys (they are read at the start), and the properties that keep group
offsets safe: `__consumer_offsets` stays compacted and on the local disk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias, TypeVar

from strandline.broker.cluster.metadata import controller
from strandline.broker.cluster.metadata.controller_messages import (
    Decision,
    Intent,
    NewProperties,
    Refusal,
    TopicDefaults,
    TopicResult,
)
from strandline.broker.cluster.metadata.image import MetadataImage, TopicImage
from strandline.broker.cluster.metadata.records import ALL_BROKERS, config_records
from strandline.broker.cluster.metadata.topic_names import INTERNAL_TOPICS, topic_name_fault
from strandline.broker.config.group_configs import GROUP_CONFIGS, GROUPS_MAX, check_group_change
from strandline.broker.config.running_config import check_broker_change
from strandline.broker.config.table import BROKER_CONFIGS
from strandline.broker.handlers.admin.logger_configs import (
    logger_changes,
    logger_levels,
    set_levels,
)
from strandline.broker.handlers.services.limits import clipped, refuse_flood
from strandline.broker.handlers.services.services import RequestContext, Services
from strandline.broker.protocol.formats.metadata_records import MetadataRecord, ResourceType
from strandline.broker.protocol.messages.alter_configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from strandline.broker.protocol.messages.describe_configs import ConfigResourceType, type_text
from strandline.broker.protocol.messages.incremental_alter_configs import (
    ConfigOperation,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResult,
    IncrementalConfig,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.protocol.schema.primitives import STRING_BYTES_MAX
from strandline.storage.config.definition import ValueType
from strandline.storage.config.log_config import TOPIC_CONFIGS, ConfigDef
from strandline.storage.errors import StorageError

# Computes a topic's new properties from the current ones. Raises Refusal.
Alteration: TypeAlias = Callable[[Mapping[str, str]], dict[str, str]]
Key: TypeAlias = tuple[int, str]
Resource: TypeAlias = AlterConfigsResource | IncrementalAlterConfigsResource
ResultT = TypeVar("ResultT", AlterConfigsResourceResponse, IncrementalAlterConfigsResult)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceOutcome:
    """The error code and message of one resource."""

    error_code: int = ErrorCode.NONE
    message: str | None = None


class AlterConfigsHandlers:
    """Handlers of the two APIs that change configurations."""

    def __init__(self, services: Services) -> None:
        self._controller = services.controller
        self._services = services

    async def incremental_alter_configs(
        self, request: IncrementalAlterConfigsRequest, _context: RequestContext
    ) -> IncrementalAlterConfigsResponse:
        _refuse_flood(request.resources)

        def alteration(resource: IncrementalAlterConfigsResource) -> Alteration:
            definitions: Mapping[str, ConfigDef] = BROKER_CONFIGS
            inherited = self._services.running.static.given
            if resource.resource_type == ConfigResourceType.TOPIC:
                definitions = TOPIC_CONFIGS
                inherited = self._services.topic_defaults.properties
            elif resource.resource_type == ConfigResourceType.GROUP:
                definitions = GROUP_CONFIGS
            return lambda properties: operated(
                properties, resource.configs, inherited, definitions=definitions
            )

        loggers = {
            _key(resource): resource.configs
            for resource in request.resources
            if resource.resource_type == ConfigResourceType.BROKER_LOGGER
        }
        outcomes = await self._alter(request, alteration, loggers)
        return IncrementalAlterConfigsResponse(
            responses=_results(IncrementalAlterConfigsResult, outcomes)
        )

    async def alter_configs(
        self, request: AlterConfigsRequest, _context: RequestContext
    ) -> AlterConfigsResponse:
        _refuse_flood(request.resources)

        def alteration(resource: AlterConfigsResource) -> Alteration:
            return lambda _properties: replacement(resource.configs)

        outcomes = await self._alter(request, alteration)
        return AlterConfigsResponse(responses=_results(AlterConfigsResourceResponse, outcomes))

    # --- carrying it out ---------------------------------------------------------------------

    async def _alter(
        self,
        request: AlterConfigsRequest | IncrementalAlterConfigsRequest,
        alteration_of: Callable[..., Alteration],
        loggers: Mapping[Key, Sequence[IncrementalConfig]] = MappingProxyType({}),
    ) -> dict[Key, ResourceOutcome]:
        """Returns one outcome per resource, in request order."""
        outcomes: dict[Key, ResourceOutcome] = {}
        topics: dict[str, Alteration] = {}
        others: dict[Key, Alteration] = {}
        known_loggers = logger_levels() if loggers else {}
        intent = Intent.VALIDATE if request.validate_only else Intent.APPLY
        times_named = Counter(map(_key, request.resources))
        for key, alteration in {_key(r): alteration_of(r) for r in request.resources}.items():
            # Fixes the position of each resource, so that the answers keep the order.
            outcomes[key] = ResourceOutcome()
            try:
                if times_named[key] > 1:
                    raise Refusal(
                        ErrorCode.INVALID_REQUEST, "Each resource must appear at most once."
                    )
                if key[0] == ConfigResourceType.BROKER:
                    self._broker_of(key)
                    others[key] = alteration
                elif key in loggers:
                    if self._broker_of(key) is None:
                        raise Refusal(ErrorCode.INVALID_REQUEST, "Broker id must not be empty.")
                    changes = logger_changes(loggers[key], known_loggers)
                    if intent is Intent.APPLY:
                        set_levels(changes)
                elif key[0] == ConfigResourceType.GROUP:
                    if not key[1]:
                        raise Refusal(
                            ErrorCode.INVALID_REQUEST, "Default group resources are not allowed."
                        )
                    others[key] = alteration
                else:
                    topics[_topic_of(key)] = alteration
            except Refusal as refusal:
                outcomes[key] = _refused(refusal)
        for name, outcome in (await self._alter_topics(topics, intent)).items():
            outcomes[ConfigResourceType.TOPIC, name] = outcome
        for key, alteration in others.items():
            outcomes[key] = await self._alter_one(key, alteration, intent)
        return outcomes

    def _broker_of(self, key: Key) -> int | None:
        """Returns the broker's id; None for all brokers. Raises Refusal for any other broker."""
        _, name = key
        if not name:
            return None
        if not name.isascii() or not name.isdigit():
            raise Refusal(
                ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}"
            )
        node_id = self._services.config.node_id
        if name.lstrip("0") != str(node_id).lstrip("0"):
            raise Refusal(
                ErrorCode.INVALID_REQUEST,
                f"Unexpected broker id, expected {node_id}, but received {name}",
            )
        return node_id

    async def _alter_one(self, key: Key, alteration: Alteration, intent: Intent) -> ResourceOutcome:
        """Alters the properties of a broker or a group."""
        make = self._group_change if key[0] == ConfigResourceType.GROUP else self._broker_change

        def decide_one(image: MetadataImage) -> Decision[None]:
            records = make(image, key, alteration)
            return Decision(records=tuple(records) if intent is Intent.APPLY else (), results=())

        try:
            await self._controller.change(decide_one)
        except Refusal as refusal:
            return _refused(refusal)
        except StorageError as error:
            return ResourceOutcome(error_code=error.kafka_code, message=str(error))
        return ResourceOutcome()

    def _broker_change(
        self, image: MetadataImage, key: Key, alteration: Alteration
    ) -> list[MetadataRecord]:
        node_id = self._broker_of(key)
        present = image.broker_properties.get(node_id, {})
        wanted = alteration(present)
        check_broker_change(self._services.running.static, image, node_id, wanted)
        name = ALL_BROKERS if node_id is None else str(node_id)
        return config_records(ResourceType.BROKER, name, present, wanted)

    def _group_change(
        self, image: MetadataImage, key: Key, alteration: Alteration
    ) -> list[MetadataRecord]:
        _, group_id = key
        # A name that is no UTF-8 grows when it is read.
        if len(group_id.encode()) > STRING_BYTES_MAX:
            raise Refusal(
                ErrorCode.INVALID_REQUEST, f"the name is longer than {STRING_BYTES_MAX} bytes"
            )
        present = image.group_properties.get(group_id, {})
        wanted = alteration(present)
        check_group_change(self._services.config, wanted)
        if not present and wanted and len(image.group_properties) >= GROUPS_MAX:
            raise Refusal(
                ErrorCode.POLICY_VIOLATION, f"more than {GROUPS_MAX} groups with properties"
            )
        return config_records(ResourceType.GROUP, group_id, present, wanted)

    async def _alter_topics(
        self, wanted: Mapping[str, Alteration], intent: Intent
    ) -> dict[str, ResourceOutcome]:
        if not wanted:
            return {}
        try:
            decision = await self._controller.change(
                lambda image: decide(
                    image, wanted, defaults=self._services.topic_defaults, intent=intent
                )
            )
        except StorageError as error:
            failed = ResourceOutcome(error_code=error.kafka_code, message=str(error))
            return dict.fromkeys(wanted, failed)
        return {
            result.name: ResourceOutcome(error_code=result.error_code, message=result.error_message)
            for result in decision.results
        }


# --- deciding, purely ------------------------------------------------------------------------


def decide(
    image: MetadataImage,
    wanted: Mapping[str, Alteration],
    *,
    defaults: TopicDefaults,
    intent: Intent,
) -> Decision[TopicResult]:
    """Returns the records for all valid topics, and a result for every topic."""
    changes: list[NewProperties] = []
    refused: list[TopicResult] = []
    for name, alteration in wanted.items():
        try:
            changes.append(_changed(name, image.topics.get(name), alteration))
        except Refusal as refusal:
            refused.append(
                TopicResult(name=name, error_code=refusal.error_code, error_message=refusal.message)
            )
    decision = controller.set_topic_properties(image, changes, defaults=defaults, intent=intent)
    return Decision(records=decision.records, results=(*decision.results, *refused))


def _changed(name: str, topic: TopicImage | None, alteration: Alteration) -> NewProperties:
    if topic is None:
        fault = topic_name_fault(name)
        if fault is not None:
            raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic named {name!r}")
    properties = alteration(topic.properties)
    if name in INTERNAL_TOPICS:
        _check_internal(name, properties)
    return NewProperties(name=name, properties=properties)


def _check_internal(name: str, properties: Mapping[str, str]) -> None:
    """Raises Refusal for a change that would expire group offsets, or move them to the archive.

    Kafka accepts such a change and loses the offsets.
    """
    policy = _elements(properties.get("cleanup.policy", ""))
    if policy != ["compact"]:
        raise Refusal(ErrorCode.INVALID_CONFIG, f"{name} needs cleanup.policy=compact.")
    if properties.get("remote.storage.enable", "").strip().lower() == "true":
        raise Refusal(ErrorCode.INVALID_CONFIG, f"{name} cannot have remote.storage.enable=true.")


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


# --- resources -------------------------------------------------------------------------------


def _refuse_flood(resources: Sequence[Resource]) -> None:
    refuse_flood(len(resources))
    refuse_flood(sum(len(resource.configs) for resource in resources))


def _key(resource: Resource) -> Key:
    return resource.resource_type, resource.resource_name


def _topic_of(key: Key) -> str:
    """Returns the topic's name. Raises Refusal for any other resource."""
    kind, name = key
    if kind != ConfigResourceType.TOPIC:
        raise Refusal(
            ErrorCode.INVALID_REQUEST, f"{type_text(kind)}: there is no configuration to alter here"
        )
    if not name:
        raise Refusal(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
    return name


def _results(row: type[ResultT], outcomes: Mapping[Key, ResourceOutcome]) -> list[ResultT]:
    return [
        row(
            error_code=outcome.error_code,
            error_message=clipped(outcome.message),
            resource_type=kind,
            resource_name=name,
        )
        for (kind, name), outcome in outcomes.items()
    ]


def _refused(refusal: Refusal) -> ResourceOutcome:
    return ResourceOutcome(error_code=refusal.error_code, message=refusal.message)
