"""ListConfigResources: lists the resources that have a configuration.

    0-1   0 asks for client metrics only, which are not configurable here; 1 asks by type

Topics, this broker and its loggers, and groups that have properties of their own. Client metrics
have no configuration here, so none are listed.
"""

from __future__ import annotations

from strandline.broker.handlers.services.limits import refuse_flood
from strandline.broker.handlers.services.services import RequestContext, Services
from strandline.broker.protocol.messages.describe_configs import ConfigResourceType
from strandline.broker.protocol.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    ListedConfigResource,
)
from strandline.broker.protocol.schema.errors import ErrorCode

FIRST_VERSION_WITH_TYPES = 1


class ConfigResourceHandler:
    """Lists names of resources, never values."""

    def __init__(self, services: Services) -> None:
        self._node_id = services.config.node_id
        self._metadata = services.metadata

    def list_config_resources(
        self, request: ListConfigResourcesRequest, context: RequestContext
    ) -> ListConfigResourcesResponse:
        refuse_flood(len(request.resource_types))
        if context.api_version < FIRST_VERSION_WITH_TYPES:
            return ListConfigResourcesResponse()
        known = set(ConfigResourceType) - {ConfigResourceType.UNKNOWN}
        wanted = set(request.resource_types) or known
        if not wanted <= known:
            return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        resources = []
        if ConfigResourceType.TOPIC in wanted:
            resources += [(name, ConfigResourceType.TOPIC) for name in self._metadata.image.topics]
        if ConfigResourceType.BROKER in wanted:
            resources.append((str(self._node_id), ConfigResourceType.BROKER))
        if ConfigResourceType.BROKER_LOGGER in wanted:
            resources.append((str(self._node_id), ConfigResourceType.BROKER_LOGGER))
        if ConfigResourceType.GROUP in wanted:
            resources += [
                (name, ConfigResourceType.GROUP) for name in self._metadata.image.group_properties
            ]
        return ListConfigResourcesResponse(
            config_resources=[
                ListedConfigResource(resource_name=name, resource_type=kind)
                for name, kind in resources
            ]
        )
