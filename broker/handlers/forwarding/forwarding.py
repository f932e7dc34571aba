"""Handlers that forward to the active controller; they take the place of those that decide here.

CreateTopics, CreatePartitions, DeleteTopics, AlterConfigs, IncrementalAlterConfigs,
AlterClientQuotas, AlterUserScramCredentials, CreateAcls, DeleteAcls, UpdateFeatures,
AlterPartitionReassignments, ListPartitionReassignments, ElectLeaders, UnregisterBroker,
DescribeQuorum. Delegation tokens are refused here: nobody could log in by them.

Levels of loggers are this broker's own (KIP-412): a request that names some is answered in two
parts. Without a controller in time the answer is REQUEST_TIMED_OUT, which clients try again.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from operator import attrgetter
from typing import Any, Final

from strandline.broker.cluster.membership.envelope import Forwarder, NotForwarded
from strandline.broker.handlers.authorization import refusals
from strandline.broker.handlers.dispatch.dispatch import Handler
from strandline.broker.handlers.services.services import RequestContext
from strandline.broker.peers.errors import PeerError
from strandline.broker.protocol.messages.alter_configs import (
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from strandline.broker.protocol.messages.create_partitions import (
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)
from strandline.broker.protocol.messages.create_topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from strandline.broker.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from strandline.broker.protocol.messages.describe_quorum import DescribeQuorumResponse
from strandline.broker.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResult,
)
from strandline.broker.protocol.messages.unregister_broker import UnregisterBrokerResponse
from strandline.broker.protocol.messages.update_features import UpdateFeaturesResponse
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.protocol.schema.schema import Response

Refuse = Callable[[Any, ErrorCode], Response]
Forward = Callable[[Any, RequestContext], Coroutine[object, None, Response]]


def forwarding_handlers(
    forwarder: Forwarder, local: Mapping[ApiKey, Handler]
) -> dict[ApiKey, Handler]:
    """Returns the handlers that forward; `local` has those of this broker."""
    handlers: dict[ApiKey, Handler] = {
        key: _forwarded(forwarder, refuse) for key, refuse in REFUSALS.items()
    }
    handlers[ApiKey.CREATE_TOPICS] = _known_here(
        forwarder, _forwarded(forwarder, REFUSALS[ApiKey.CREATE_TOPICS])
    )
    for key, rows in _WITH_LOGGERS.items():
        handlers[key] = _split(handlers[key], local[key], rows)
    return handlers


def _forwarded(forwarder: Forwarder, refuse: Refuse) -> Forward:
    async def forward(request: Any, context: RequestContext) -> Response:
        try:
            return await forwarder.forward(
                request,
                context.api_version,
                client_id=context.client_id,
                caller=context.caller,
            )
        except PeerError:
            return refuse(request, ErrorCode.REQUEST_TIMED_OUT)
        except NotForwarded as error:
            return refuse(request, error.code)

    return forward


def _known_here(forwarder: Forwarder, forward: Forward) -> Handler:
    """Returns what answers when the new topics are known here: the client asks for them next."""

    async def create(request: CreateTopicsRequest, context: RequestContext) -> Response:
        answer = await forward(request, context)
        assert isinstance(answer, CreateTopicsResponse)
        if not request.validate_only:
            await forwarder.arrived(one.name for one in answer.topics if not one.error_code)
        return answer

    return create


def _split(forward: Handler, local: Handler, rows: str) -> Handler:
    """Returns what forwards all but the levels of loggers, which `local` sets."""

    def handle(request: Any, context: RequestContext) -> Any:
        of_loggers = [one for one in request.resources if _is_of_loggers(one)]
        others = [one for one in request.resources if not _is_of_loggers(one)]
        if not of_loggers:
            return forward(request, context)
        own = local(request.replaced(resources=of_loggers), context)
        if not others:
            return own
        return _together(own, lambda: forward(request.replaced(resources=others), context), rows)

    return handle


async def _together(own: Any, forward: Callable[[], Any], rows: str) -> Response:
    here = own if isinstance(own, Response) else await own
    there: Any = await forward()
    answer: Response = there.replaced(**{rows: [*getattr(there, rows), *getattr(here, rows)]})
    return answer


def _is_of_loggers(resource: Any) -> bool:
    return bool(resource.resource_type == ConfigResourceType.BROKER_LOGGER)


# --- answers without a controller --------------------------------------------------------------


def _rows(
    kind: Callable[..., Response],
    field: str,
    items: Callable[[Any], Iterable[Any]],
    row: Callable[[Any, ErrorCode], object],
) -> Refuse:
    def refuse(request: Any, code: ErrorCode) -> Response:
        return kind(**{field: [row(item, code) for item in items(request)]})

    return refuse


def _deleted(request: DeleteTopicsRequest, code: ErrorCode) -> DeleteTopicsResponse:
    return DeleteTopicsResponse(
        responses=[
            *(
                DeletableTopicResult(name=one.name, topic_id=one.topic_id, error_code=code)
                for one in request.topics
            ),
            *(DeletableTopicResult(name=name, error_code=code) for name in request.topic_names),
        ]
    )


REFUSALS: Final[Mapping[ApiKey, Refuse]] = {
    ApiKey.CREATE_TOPICS: _rows(
        CreateTopicsResponse,
        "topics",
        attrgetter("topics"),
        refusals.named(CreatableTopicResult, "name"),
    ),
    ApiKey.CREATE_PARTITIONS: _rows(
        CreatePartitionsResponse,
        "results",
        attrgetter("topics"),
        refusals.named(CreatePartitionsTopicResult, "name"),
    ),
    ApiKey.DELETE_TOPICS: _deleted,
    ApiKey.ALTER_CONFIGS: _rows(
        AlterConfigsResponse,
        "responses",
        attrgetter("resources"),
        refusals.config_row(AlterConfigsResourceResponse),
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _rows(
        IncrementalAlterConfigsResponse,
        "responses",
        attrgetter("resources"),
        refusals.config_row(IncrementalAlterConfigsResult),
    ),
    ApiKey.ALTER_CLIENT_QUOTAS: refusals.quotas,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: refusals.altered_users,
    ApiKey.CREATE_ACLS: refusals.created_acls,
    ApiKey.DELETE_ACLS: refusals.deleted_acls,
    ApiKey.UPDATE_FEATURES: refusals.top_level(UpdateFeaturesResponse),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: refusals.reassignments,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: refusals.ongoing_reassignments,
    ApiKey.ELECT_LEADERS: refusals.elections,
    ApiKey.UNREGISTER_BROKER: refusals.top_level(UnregisterBrokerResponse),
    ApiKey.DESCRIBE_QUORUM: refusals.top_level(DescribeQuorumResponse, topics=()),
}
# With the field of their answers' rows.
_WITH_LOGGERS: Final = {
    ApiKey.ALTER_CONFIGS: "responses",
    ApiKey.INCREMENTAL_ALTER_CONFIGS: "responses",
}
