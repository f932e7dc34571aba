"""DescribeConfigs and ListConfigResources: configurations, and the resources that have one.

DescribeConfigs      0-4   1 sources and synonyms; 3 types and documentation; 4 flexible
ListConfigResources  0-1   0 asks for client metrics only; 1 asks by type

Resources are topics, this broker and its loggers, and groups that have properties of their own.
Client metrics are not configurable here, so none are listed.

`broker/config/rows.py` builds the rows from the tables that also check and document the properties,
so the three cannot differ. Sensitive values are null.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from strandline.broker.cluster.metadata.controller_messages import Refusal
from strandline.broker.cluster.metadata.topic_names import topic_name_fault
from strandline.broker.config.rows import (
    ConfigRow,
    ValueSource,
    describe_all,
    describe_broker,
    describe_group,
    describe_topic,
)
from strandline.broker.handlers.admin.logger_configs import describe_loggers
from strandline.broker.handlers.services.limits import clipped, refuse_flood
from strandline.broker.handlers.services.services import NodeServices, RequestContext
from strandline.broker.protocol.messages.describe_configs import (
    DescribeConfigsEntry,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from strandline.broker.protocol.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    ListedConfigResource,
)
from strandline.broker.protocol.schema.config_resources import ConfigResourceType, type_text
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.config.definition import as_read

FIRST_LISTING_WITH_TYPES = 1
# Enough for each topic of a large cluster with some ten own keys.
KEYS_MAX = 100_000
# Kafka shows parsed values of synonyms from these sources, and the text as set of others.
OWN_SOURCES = (ValueSource.DYNAMIC_TOPIC, ValueSource.GROUP)


class ConfigHandlers:
    """Handlers that read configurations; `alter_configs.py` changes them."""

    def __init__(self, services: NodeServices) -> None:
        self._running = services.running
        self._metadata = services.metadata

    def describe_configs(
        self, request: DescribeConfigsRequest, _context: RequestContext
    ) -> DescribeConfigsResponse:
        refuse_flood(len(request.resources))
        refuse_flood(sum(len(r.configuration_keys or ()) for r in request.resources), KEYS_MAX)
        # A repeated resource is described once: its name is short, its listing is long.
        once_each = {(r.resource_type, r.resource_name): r for r in request.resources}
        return DescribeConfigsResponse(
            results=[self._describe(resource, request) for resource in once_each.values()]
        )

    def list_config_resources(
        self, request: ListConfigResourcesRequest, context: RequestContext
    ) -> ListConfigResourcesResponse:
        refuse_flood(len(request.resource_types))
        if context.api_version < FIRST_LISTING_WITH_TYPES:
            return ListConfigResourcesResponse()
        known = set(ConfigResourceType) - {ConfigResourceType.UNKNOWN}
        wanted = set(request.resource_types) or known
        if not wanted <= known:
            return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        image, this_broker = self._metadata.image, (str(self._running.static.node_id),)
        names: Mapping[ConfigResourceType, Iterable[str]] = {
            ConfigResourceType.TOPIC: image.topics,
            ConfigResourceType.BROKER: this_broker,
            ConfigResourceType.BROKER_LOGGER: this_broker,
            ConfigResourceType.GROUP: image.group_properties,
        }
        return ListConfigResourcesResponse(
            config_resources=[
                ListedConfigResource(resource_name=name, resource_type=kind)
                for kind, of_kind in names.items()
                if kind in wanted
                for name in of_kind
            ]
        )

    def _describe(
        self, resource: DescribeConfigsResource, request: DescribeConfigsRequest
    ) -> DescribeConfigsResult:
        try:
            rows = self._rows(resource, documented=request.include_documentation)
        except Refusal as refusal:
            return DescribeConfigsResult(
                error_code=refusal.error_code,
                error_message=clipped(refusal.message),
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        # An empty list means all of them, as null does (Kafka's ConfigHelper).
        wanted = frozenset(resource.configuration_keys or ())
        return DescribeConfigsResult(
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            configs=[
                _entry(row, request) if isinstance(row, ConfigRow) else row
                for row in rows
                if not wanted or row.name in wanted
            ],
        )

    def _rows(
        self, resource: DescribeConfigsResource, *, documented: bool
    ) -> Sequence[ConfigRow | DescribeConfigsEntry]:
        """Returns the properties of a resource, or the loggers of a broker. Raises Refusal."""
        name, node_id = resource.resource_name, self._running.static.node_id
        match resource.resource_type:
            case ConfigResourceType.TOPIC:
                topic = self._metadata.image.topics.get(name)
                if topic is None and (fault := topic_name_fault(name)) is not None:
                    raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
                if topic is None:
                    raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic named {name!r}")
                return describe_topic(self._running, topic.properties)
            case ConfigResourceType.BROKER:
                if name not in ("", str(node_id)):
                    raise Refusal(
                        ErrorCode.INVALID_REQUEST, f"this is broker {node_id}, not {name!r}"
                    )
                # An empty name asks for the cluster-wide dynamic keys.
                return describe_broker(self._running) if name else describe_all(self._running)
            case ConfigResourceType.BROKER_LOGGER:
                if name != str(node_id):
                    raise Refusal(
                        ErrorCode.INVALID_REQUEST,
                        f"loggers are those of broker {node_id}, not {name!r}",
                    )
                return describe_loggers(documented=documented)
            case ConfigResourceType.GROUP:
                if not name:
                    raise Refusal(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
                properties = self._metadata.image.group_properties.get(name, {})
                return describe_group(self._running, properties)
            case kind:
                raise Refusal(
                    ErrorCode.INVALID_REQUEST, f"{type_text(kind)}: there is no configuration here"
                )


def _entry(row: ConfigRow, request: DescribeConfigsRequest) -> DescribeConfigsEntry:
    return DescribeConfigsEntry(
        name=row.name,
        value=_shown(row, row.value, as_set=False),
        read_only=row.read_only,
        is_default=row.is_default,
        config_source=row.source,
        is_sensitive=row.sensitive,
        synonyms=[
            DescribeConfigsSynonym(
                name=s.name,
                value=_shown(row, s.value, as_set=s.source not in OWN_SOURCES),
                source=s.source,
            )
            for s in row.synonyms
        ]
        if request.include_synonyms
        else (),
        config_type=row.type.value,
        documentation=row.documentation if request.include_documentation else None,
    )


def _shown(row: ConfigRow, text: str | None, *, as_set: bool) -> str | None:
    if row.sensitive or text is None:
        return None
    return text if as_set else as_read(row.type, text)
