"""IncrementalAlterConfigs and AlterConfigs: changes the configuration of topics, brokers, groups.

IncrementalAlterConfigs  0-1  SET, DELETE, and for lists APPEND and SUBTRACT; 1 flexible
AlterConfigs             0-2  replaces all of them: unnamed ones get their default; 2 flexible

The controller decides (`config/config_changes.py`). The answer is sent when the change is durable
and in force: running logs, brokers and groups use it.

A BROKER resource is this broker, or with an empty name all brokers; a controller takes those of
every registered broker, which hands them on to it. A BROKER_LOGGER resource is the
loggers of this broker, for IncrementalAlterConfigs alone (`logger_configs.py`). Members of a GROUP
get its change with their next heartbeat.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeAlias, TypeVar

from strandline.broker.cluster.metadata.controller_messages import Intent, Refusal
from strandline.broker.config.config_changes import (
    AlterConfigs,
    ConfigResource,
    ConfigResult,
    altered,
)
from strandline.broker.config.listener_keys import RENEWABLE, are_dynamic
from strandline.broker.config.table import BROKER_CONFIGS
from strandline.broker.handlers.admin.logger_configs import (
    logger_changes,
    logger_levels,
    set_levels,
)
from strandline.broker.handlers.services.limits import clipped, refuse_flood
from strandline.broker.handlers.services.services import NodeServices, RequestContext
from strandline.broker.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from strandline.broker.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResult,
)
from strandline.broker.protocol.schema.config_resources import ConfigResourceType, type_text
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.errors import InvalidConfig, StorageError

Key: TypeAlias = tuple[int, str]
ResultT = TypeVar("ResultT", AlterConfigsResourceResponse, IncrementalAlterConfigsResult)


class AlterConfigsHandlers:
    """Handlers of the two APIs that change configurations."""

    def __init__(self, services: NodeServices, *, of_every_broker: bool = False) -> None:
        """At a controller properties `of_every_broker` can be altered, elsewhere its own ones."""
        self._controller = services.controller
        self._services = services
        self._of_every_broker = of_every_broker

    async def incremental_alter_configs(
        self, request: IncrementalAlterConfigsRequest, _context: RequestContext
    ) -> IncrementalAlterConfigsResponse:
        outcomes = await self._alter(request)
        return IncrementalAlterConfigsResponse(
            responses=_results(IncrementalAlterConfigsResult, outcomes)
        )

    async def alter_configs(
        self, request: AlterConfigsRequest, _context: RequestContext
    ) -> AlterConfigsResponse:
        outcomes = await self._alter(request)
        return AlterConfigsResponse(responses=_results(AlterConfigsResourceResponse, outcomes))

    async def _alter(
        self, request: AlterConfigsRequest | IncrementalAlterConfigsRequest
    ) -> dict[Key, ConfigResult]:
        """Returns one outcome per resource, in request order."""
        refuse_flood(len(request.resources))
        refuse_flood(sum(len(resource.configs) for resource in request.resources))
        intent = Intent.VALIDATE if request.validate_only else Intent.APPLY
        outcomes: dict[Key, ConfigResult] = {}
        wanted: list[ConfigResource] = []
        times_named = Counter(map(_key, request.resources))
        for key, resource in {_key(one): one for one in request.resources}.items():
            # Fixes the position of each resource, so that the answers keep the order.
            outcomes[key] = _outcome(key)
            try:
                if times_named[key] > 1:
                    raise Refusal(
                        ErrorCode.INVALID_REQUEST, "Each resource must appear at most once."
                    )
                if self._is_of_controller(resource):
                    await self._check_tls(resource)
                    wanted.append(resource)
                elif isinstance(resource, IncrementalAlterConfigsResource):
                    self._set_loggers(resource, intent)
            except Refusal as refusal:
                outcomes[key] = _outcome(key, refusal.error_code, refusal.message)
        return outcomes | await self._ask(wanted, intent)

    async def _ask(
        self, wanted: Sequence[ConfigResource], intent: Intent
    ) -> dict[Key, ConfigResult]:
        if not wanted:
            return {}
        try:
            results = await self._controller.ask(AlterConfigs(wanted, intent))
        except StorageError as error:
            code = ErrorCode(error.kafka_code)
            return {_key(one): _outcome(_key(one), code, str(error)) for one in wanted}
        return {_key(one): one for one in results}

    def _is_of_controller(self, resource: ConfigResource) -> bool:
        """Whether the controller keeps the configuration; loggers are this broker's.

        Raises Refusal if there is none to alter here.
        """
        kind, name = resource.resource_type, resource.resource_name
        match kind:
            case ConfigResourceType.BROKER:
                self._check_broker(name, may_be_another=self._of_every_broker)
            case ConfigResourceType.TOPIC | ConfigResourceType.GROUP:
                if not name:
                    what = ConfigResourceType(kind).name.lower()
                    raise Refusal(
                        ErrorCode.INVALID_REQUEST, f"Default {what} resources are not allowed."
                    )
            case ConfigResourceType.BROKER_LOGGER if isinstance(
                resource, IncrementalAlterConfigsResource
            ):
                return False
            case _:
                raise Refusal(
                    ErrorCode.INVALID_REQUEST,
                    f"{type_text(kind)}: there is no configuration to alter here",
                )
        return True

    def _check_broker(self, name: str, *, may_be_another: bool = False) -> None:
        """Raises Refusal unless it is this broker, or one that is registered if others may be.

        The empty name means all.
        """
        if not name:
            return
        if not name.isascii() or not name.isdigit():
            raise Refusal(
                ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}"
            )
        node_id = self._services.config.node_id
        if may_be_another and int(name) != node_id:
            if int(name) not in self._services.metadata.image.brokers:
                raise Refusal(
                    ErrorCode.BROKER_ID_NOT_REGISTERED, f"No broker with id {name} found."
                )
        elif name.lstrip("0") != str(node_id).lstrip("0"):
            raise Refusal(
                ErrorCode.INVALID_REQUEST,
                f"Unexpected broker id, expected {node_id}, but received {name}",
            )

    async def _check_tls(self, resource: ConfigResource) -> None:
        """Raises Refusal for files of TLS that a listener of this broker could not take up.

        As in Kafka, the broker that has the files looks at them. They may be slow to read.
        """
        check, running = self._services.check_tls, self._services.running
        if check is None or resource.resource_type != ConfigResourceType.BROKER:
            return
        names = [one.name for one in resource.configs]
        # AlterConfigs takes back what it does not name.
        may_concern = any(name.endswith(RENEWABLE) for name in (*names, *running.own))
        if not resource.resource_name or not may_concern or not are_dynamic(names):
            return
        try:
            own = altered(running.own, resource, running.static.given, BROKER_CONFIGS)
            wanted = running.with_own(own)
        except (Refusal, InvalidConfig):
            return  # The controller says what is wrong.
        try:
            await check(running.current, wanted)
        except InvalidConfig as error:
            raise Refusal(ErrorCode.INVALID_REQUEST, str(error)) from None

    def _set_loggers(self, resource: IncrementalAlterConfigsResource, intent: Intent) -> None:
        """Sets the loggers of this broker. Raises Refusal."""
        self._check_broker(resource.resource_name)
        if not resource.resource_name:
            raise Refusal(ErrorCode.INVALID_REQUEST, "Broker id must not be empty.")
        changes = logger_changes(resource.configs, logger_levels())
        if intent is Intent.APPLY:
            set_levels(changes)


def _key(one: ConfigResource | ConfigResult) -> Key:
    return one.resource_type, one.resource_name


def _outcome(
    key: Key, code: ErrorCode = ErrorCode.NONE, message: str | None = None
) -> ConfigResult:
    kind, name = key
    return ConfigResult(
        resource_type=kind, resource_name=name, error_code=code, error_message=message
    )


def _results(row: type[ResultT], outcomes: Mapping[Key, ConfigResult]) -> list[ResultT]:
    return [
        row(
            error_code=outcome.error_code,
            error_message=clipped(outcome.error_message),
            resource_type=kind,
            resource_name=name,
        )
        for (kind, name), outcome in outcomes.items()
    ]
