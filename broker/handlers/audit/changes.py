"""Handlers whose changes are recorded: who asked for what, and what came of it.

Around the handler, and around the check of rights if there is one, so a refused change is recorded
too. Each item of a request is a line. Values of properties are in it, unless they are passwords or
unknown; of users only name and mechanism are.

Topics that Metadata creates are in `creations.py`. Who else ends transactions than their producers
is an administrator (WriteTxnMarkers): a broker writes the markers of its own partitions itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from strandline.broker.audit.record import AuditRecord
from strandline.broker.config.group_configs import GROUP_CONFIGS
from strandline.broker.config.listener_keys import broker_config
from strandline.broker.handlers.dispatch.dispatch import Handler
from strandline.broker.handlers.services.services import RequestContext
from strandline.broker.protocol.messages.incremental_alter_configs import ConfigOperation
from strandline.broker.protocol.schema.api import ApiKey, api_name
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.protocol.schema.schema import Request, Response
from strandline.storage.concurrency.turns import in_turns
from strandline.storage.config.definition import ValueType
from strandline.storage.config.log_config import TOPIC_CONFIGS

# What one item of a request is about, and its error code.
_Item: TypeAlias = tuple[Mapping[str, object], int]
_KINDS = {2: "topic", 4: "broker", 8: "logger", 16: "client metrics", 32: "group"}
_MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
_HIDDEN = "(hidden)"
_UNKNOWN = ErrorCode.UNKNOWN_SERVER_ERROR.name
_ADDED_TO_LISTS = {ConfigOperation.APPEND: "append", ConfigOperation.SUBTRACT: "subtract"}


def recorded_handlers(
    handlers: Mapping[ApiKey, Handler], record: AuditRecord
) -> dict[ApiKey, Handler]:
    """Returns the handlers; those that change something record it."""
    return {
        key: partial(_recorded, handler, _ITEMS[key], api_name(key), record)
        if key in _ITEMS
        else handler
        for key, handler in handlers.items()
    }


def _recorded(
    handler: Handler,
    items: Callable[[Any, Any], Iterator[_Item]],
    name: str,
    record: AuditRecord,
    request: Request,
    context: RequestContext,
) -> Response | Coroutine[object, None, Response]:
    if getattr(request, "validate_only", False):
        return handler(request, context)

    async def tell(coming: Awaitable[Response] | Response) -> Response:
        try:
            response = coming if isinstance(coming, Response) else await coming
        except asyncio.CancelledError:
            # The broker stops; the change may be in the metadata log.
            record.changed(context.caller, name, {"result": "unknown"}, _UNKNOWN)
            raise
        async for what, error_code in in_turns(items(request, response)):
            record.changed(context.caller, name, what, ErrorCode(error_code).name)
        return response

    return tell(handler(request, context))


def _created_topics(request: Any, response: Any) -> Iterator[_Item]:
    asked = {topic.name: topic for topic in request.topics}
    for result in response.topics:
        topic = asked.get(result.name)
        what: dict[str, object] = {"topic": result.name}
        if topic is not None:
            what["partitions"] = topic.num_partitions
            what["properties"] = {
                entry.name: _shown(entry.name, entry.value) for entry in topic.configs
            }
        yield what, result.error_code


def _deleted_topics(_request: Any, response: Any) -> Iterator[_Item]:
    for result in response.responses:
        # A topic that the client may not see has no name.
        yield {"topic": result.name or str(result.topic_id)}, result.error_code


def _created_partitions(request: Any, response: Any) -> Iterator[_Item]:
    counts = {topic.name: topic.count for topic in request.topics}
    for result in response.results:
        yield {"topic": result.name, "partitions": counts.get(result.name)}, result.error_code


def _altered_configs(request: Any, response: Any) -> Iterator[_Item]:
    asked = {(one.resource_type, one.resource_name): one.configs for one in request.resources}
    for result in response.responses:
        kind = _KINDS.get(result.resource_type, str(result.resource_type))
        entries = asked.get((result.resource_type, result.resource_name), ())
        is_logger = result.resource_type == ConfigResourceType.BROKER_LOGGER
        properties = {
            entry.name: entry.value if is_logger else _altered(entry) for entry in entries
        }
        yield {kind: result.resource_name, "properties": properties}, result.error_code


def _altered(entry: Any) -> object:
    """Returns the new value; of a list, what is added to it or taken from it."""
    value = _shown(entry.name, entry.value)
    word = _ADDED_TO_LISTS.get(getattr(entry, "config_operation", ConfigOperation.SET))
    return value if word is None else {word: value}


def _altered_quotas(request: Any, response: Any) -> Iterator[_Item]:
    for entry, result in zip(request.entries, response.entries, strict=False):
        entity = {one.entity_type: one.entity_name for one in entry.entity}
        quotas = {one.key: None if one.remove else one.value for one in entry.ops}
        yield {"quotas_of": entity, "quotas": quotas}, result.error_code


def _altered_users(request: Any, response: Any) -> Iterator[_Item]:
    errors = {result.user: result.error_code for result in response.results}
    for action, changes in (("deleted", request.deletions), ("set", request.upsertions)):
        for change in changes:
            mechanism = _MECHANISMS.get(change.mechanism, str(change.mechanism))
            what = {"user": change.name, "password": action, "mechanism": mechanism}
            yield what, errors.get(change.name, 0)


def _created_rules(request: Any, response: Any) -> Iterator[_Item]:
    for rule, result in zip(request.creations, response.results, strict=False):
        yield {"rule_added": _rule(rule, rule.resource_pattern_type)}, result.error_code


def _deleted_rules(_request: Any, response: Any) -> Iterator[_Item]:
    told = set()
    for result in response.filter_results:
        if result.error_code:
            yield {"rule_removed": None}, result.error_code
        for rule in result.matching_acls:
            removed = _rule(rule, rule.pattern_type)
            # Several filters of a request may match it.
            if (key := tuple(removed.values())) not in told:
                told.add(key)
                yield {"rule_removed": removed}, rule.error_code


def _rule(rule: Any, pattern_type: int) -> dict[str, object]:
    """Numbers as those of Kafka's AclOperation, ResourceType, PatternType, AclPermissionType."""
    return {
        "principal": rule.principal,
        "host": rule.host,
        "resource_type": rule.resource_type,
        "resource": rule.resource_name,
        "pattern_type": pattern_type,
        "operation": rule.operation,
        "permission": rule.permission_type,
    }


def _updated_features(request: Any, response: Any) -> Iterator[_Item]:
    errors = {result.feature: result.error_code for result in response.results}
    for update in request.feature_updates:
        error_code = response.error_code or errors.get(update.feature, 0)
        yield {"feature": update.feature, "level": update.max_version_level}, error_code


def _deleted_records(request: Any, response: Any) -> Iterator[_Item]:
    offsets = {
        (topic.name, one.partition_index): one.offset
        for topic in request.topics
        for one in topic.partitions
    }
    for topic in response.topics:
        for one in topic.partitions:
            at = topic.name, one.partition_index
            what = {"topic": topic.name, "partition": at[1], "deleted_up_to": offsets.get(at)}
            yield what, one.error_code


def _deleted_groups(_request: Any, response: Any) -> Iterator[_Item]:
    for result in response.results:
        yield {"group": result.group_id}, result.error_code


def _deleted_offsets(request: Any, response: Any) -> Iterator[_Item]:
    if response.error_code:
        yield {"offsets_of": request.group_id}, response.error_code
    for topic in response.topics:
        for one in topic.partitions:
            what = {"offsets_of": request.group_id, "topic": topic.name}
            yield {**what, "partition": one.partition_index}, one.error_code


def _reassigned(request: Any, response: Any) -> Iterator[_Item]:
    replicas = {
        (topic.name, one.partition_index): one.replicas
        for topic in request.topics
        for one in topic.partitions
    }
    for topic in response.responses:
        for one in topic.partitions:
            at = topic.name, one.partition_index
            what = {"topic": topic.name, "partition": at[1], "replicas": replicas.get(at)}
            yield what, one.error_code or response.error_code


def _moved(request: Any, response: Any) -> Iterator[_Item]:
    paths = {
        (topic.name, index): folder.path
        for folder in request.dirs
        for topic in folder.topics
        for index in topic.partitions
    }
    for topic in response.results:
        for one in topic.partitions:
            at = topic.topic_name, one.partition_index
            what = {"topic": at[0], "partition": at[1], "folder": paths.get(at)}
            yield what, one.error_code


def _unregistered(request: Any, response: Any) -> Iterator[_Item]:
    yield {"broker": request.broker_id}, response.error_code


def _elected(_request: Any, response: Any) -> Iterator[_Item]:
    for topic in response.replica_election_results:
        for one in topic.partition_result:
            what = {"topic": topic.topic, "partition": one.partition_id}
            yield what, one.error_code or response.error_code


def _ended_transactions(request: Any, response: Any) -> Iterator[_Item]:
    for marker, result in zip(request.markers, response.markers, strict=False):
        for topic in result.topics:
            for one in topic.partitions:
                what = {
                    "transaction_of": marker.producer_id,
                    "committed": marker.transaction_result,
                    "topic": topic.name,
                    "partition": one.partition_index,
                }
                yield what, one.error_code


_ITEMS: Mapping[ApiKey, Callable[[Any, Any], Iterator[_Item]]] = {
    ApiKey.CREATE_TOPICS: _created_topics,
    ApiKey.DELETE_TOPICS: _deleted_topics,
    ApiKey.CREATE_PARTITIONS: _created_partitions,
    ApiKey.ALTER_CONFIGS: _altered_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _altered_configs,
    ApiKey.ALTER_CLIENT_QUOTAS: _altered_quotas,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _altered_users,
    ApiKey.CREATE_ACLS: _created_rules,
    ApiKey.DELETE_ACLS: _deleted_rules,
    ApiKey.UPDATE_FEATURES: _updated_features,
    ApiKey.DELETE_RECORDS: _deleted_records,
    ApiKey.DELETE_GROUPS: _deleted_groups,
    ApiKey.OFFSET_DELETE: _deleted_offsets,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _reassigned,
    ApiKey.ALTER_REPLICA_LOG_DIRS: _moved,
    ApiKey.UNREGISTER_BROKER: _unregistered,
    ApiKey.ELECT_LEADERS: _elected,
    ApiKey.WRITE_TXN_MARKERS: _ended_transactions,
}
RECORDED: Sequence[ApiKey] = tuple(_ITEMS)


def _shown(name: str, value: str | None) -> str | None:
    """A client may put a password under any name; only values of our properties are shown."""
    definition = TOPIC_CONFIGS.get(name) or GROUP_CONFIGS.get(name) or broker_config(name)
    if value is None:
        return None
    if definition is None or definition.type is ValueType.PASSWORD:
        return _HIDDEN
    return value
