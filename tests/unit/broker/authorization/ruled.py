"""Rules as tests write them, an image that has them, and a slow judge of what they allow."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from strandline.broker.authorization.authorizer import Authorizer, Denial
from strandline.broker.authorization.config import STANDARD_AUTHORIZER, AuthorizerConfig
from strandline.broker.cluster.metadata.image import MetadataDelta, MetadataImage
from strandline.broker.cluster.metadata.records import acl_record
from strandline.broker.security.acl import (
    EVERYONE,
    WILDCARD,
    Acl,
    AclOperation,
    AclPermission,
    PatternType,
    ResourceKind,
)

ALICE, HOST = "User:alice", "10.0.0.1"


def rule(
    operation: AclOperation,
    name: str,
    *,
    kind: ResourceKind = ResourceKind.TOPIC,
    pattern: PatternType = PatternType.LITERAL,
    principal: str = ALICE,
    host: str = WILDCARD,
    permission: AclPermission = AclPermission.ALLOW,
) -> Acl:
    return Acl(kind, name, pattern, principal, host, operation, permission)


def image_of(rules: Iterable[Acl], before: MetadataImage | None = None) -> MetadataImage:
    records = [acl_record(uuid.uuid5(uuid.NAMESPACE_OID, repr(acl)), acl) for acl in rules]
    return (before or MetadataImage()).apply_entry(records)


def authorizer_of(
    rules: Iterable[Acl] = (), *, told: list[Denial] | None = None, **settings: object
) -> Authorizer:
    config = AuthorizerConfig(class_name=STANDARD_AUTHORIZER, **settings)  # type: ignore[arg-type]
    made = Authorizer(config, on_denied=(lambda _: None) if told is None else told.append)
    follow(made, MetadataImage(), image_of(rules))
    return made


def follow(authorizer: Authorizer, before: MetadataImage, after: MetadataImage) -> None:
    authorizer.follow(MetadataDelta(before, after), after)


# What Kafka's StandardAuthorizerData says of single rules, asked one after the other.
_IMPLIED_BY = {
    AclOperation.DESCRIBE: {
        AclOperation.DESCRIBE,
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.DELETE,
        AclOperation.ALTER,
    },
    AclOperation.DESCRIBE_CONFIGS: {AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS},
}


def matches_resource(acl: Acl, kind: int, name: str) -> bool:
    if acl.kind != kind:
        return False
    if acl.pattern == PatternType.PREFIXED:
        return name.startswith(acl.name)
    return acl.name in (name, WILDCARD)


def verdict(acl: Acl, principal: str, host: str, operation: AclOperation) -> bool | None:
    """What one rule of the resource says: allowed, denied, or nothing."""
    if acl.principal not in (principal, EVERYONE) or acl.host not in (host, WILDCARD):
        return None
    is_allowance = acl.permission == AclPermission.ALLOW
    enough = _IMPLIED_BY.get(operation, {operation}) if is_allowance else {operation}
    if acl.operation != AclOperation.ALL and acl.operation not in enough:
        return None
    return is_allowance


def judged(
    rules: Iterable[Acl],
    principal: str,
    host: str,
    operation: AclOperation,
    kind: int,
    name: str,
    *,
    without_rules: bool = False,
) -> bool:
    of_resource = [acl for acl in rules if matches_resource(acl, kind, name)]
    if not of_resource:
        return without_rules
    said = {verdict(acl, principal, host, operation) for acl in of_resource}
    return False not in said and True in said
