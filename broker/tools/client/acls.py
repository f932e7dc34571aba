"""Access control rules of a cluster, as the commands show and change them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple
from typing import Any

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from strandline.broker.tools.client.cluster import result_of
from strandline.broker.tools.client.connection import (
    REQUEST_SECONDS_MAX,
    ClusterConnection,
    quiet_logger,
    settings_checked,
)
from strandline.broker.tools.client.failures import ToolFailure
from strandline.broker.tools.client.rules import Rule

# librdkafka calls the cluster a broker; the number is Kafka's.
_KINDS = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "cluster": ResourceType.BROKER,
    "transactional-id": ResourceType.TRANSACTIONAL_ID,
}
_KIND_NAMES = {kind: name for name, kind in _KINDS.items()}


class ClusterAcls:
    """The rules of a cluster; every call raises ToolFailure."""

    def __init__(self, connection: ClusterConnection) -> None:
        with settings_checked():
            self._admin = AdminClient(connection.client_settings(), logger=quiet_logger())

    def create(self, rules: Iterable[Rule]) -> None:
        """Creates rules; one that is there stays."""
        bindings = [AclBinding(*_words(rule)) for rule in rules]
        futures = self._admin.create_acls(bindings, request_timeout=REQUEST_SECONDS_MAX)
        for future in futures.values():
            result_of(future, "cannot create the ACL")

    def find(self, wanted: Sequence[Rule]) -> list[Rule]:
        """Returns the rules that pass one of the filters, sorted."""
        found: set[Rule] = set()
        for one in wanted:
            future = self._admin.describe_acls(
                AclBindingFilter(*_words(one)), request_timeout=REQUEST_SECONDS_MAX
            )
            found |= {_rule(binding) for binding in result_of(future, "cannot read the ACLs")}
        if not found:
            self._check_readable()
        return sorted(found, key=astuple)

    def _check_readable(self) -> None:
        """Raises ToolFailure for who may not read them: librdkafka keeps that error to itself."""
        future = self._admin.describe_cluster(
            include_authorized_operations=True, request_timeout=REQUEST_SECONDS_MAX
        )
        allowed = result_of(future, "cannot read the ACLs").authorized_operations
        if AclOperation.DESCRIBE not in (allowed or ()):
            raise ToolFailure(
                "cannot read the ACLs: Cluster authorization failed.",
                remedy="come as a super user, or as one with a right to describe the cluster",
            )

    def delete(self, rules: Iterable[Rule]) -> None:
        """Deletes exactly these rules."""
        filters = [AclBindingFilter(*_words(rule)) for rule in rules]
        futures = self._admin.delete_acls(filters, request_timeout=REQUEST_SECONDS_MAX)
        for future in futures.values():
            result_of(future, "cannot delete the ACLs")


def _words(rule: Rule) -> tuple[Any, ...]:
    """Returns the arguments of a binding or its filter, whose stubs know no None."""
    return (
        ResourceType.ANY if rule.kind is None else _KINDS[rule.kind],
        rule.name,
        ResourcePatternType[(rule.pattern or "any").upper()],
        rule.principal,
        rule.host,
        AclOperation[_constant(rule.operation)],
        AclPermissionType[_constant(rule.permission)],
    )


def _constant(word: str | None) -> str:
    return (word or "any").replace("-", "_").upper()


def _rule(binding: AclBinding) -> Rule:
    return Rule(
        kind=_KIND_NAMES.get(ResourceType(binding.restype), "another kind"),
        name=binding.name,
        pattern=ResourcePatternType(binding.resource_pattern_type).name.lower(),
        principal=binding.principal,
        host=binding.host,
        operation=AclOperation(binding.operation).name.lower().replace("_", "-"),
        permission=AclPermissionType(binding.permission_type).name.lower(),
    )
