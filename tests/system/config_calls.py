"""Altering the configuration of a broker, or of a topic, over the wire."""

from __future__ import annotations

from strandline.broker.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResult,
    IncrementalConfig,
)
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from tests.support.wire import WireClient


def alter(
    client: WireClient,
    name: str,
    *operations: tuple[str, int, str | None],
    validate_only: bool = False,
    resource_type: ConfigResourceType = ConfigResourceType.BROKER,
) -> IncrementalAlterConfigsResult:
    resource = IncrementalAlterConfigsResource(
        resource_type=resource_type,
        resource_name=name,
        configs=[
            IncrementalConfig(name=key, config_operation=operation, value=value)
            for key, operation, value in operations
        ],
    )
    (result,) = client.ask(
        IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only),
        IncrementalAlterConfigsResponse,
        1,
    ).responses
    return result
