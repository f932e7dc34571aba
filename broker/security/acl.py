"""Access control lists: a rule, what it names, and a filter of rules. Values only.

A rule (Kafka's AclBinding) allows or denies one operation on the resources that a pattern matches,
to a principal that comes from a host. Numbers are those of Kafka's protocol and of its metadata
records (AclOperation, AclPermissionType, PatternType, ResourceType).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

# Of a principal, a host, or a literal resource: every one.
WILDCARD: Final = "*"
EVERYONE: Final = "User:*"
# The name of the one resource of type CLUSTER.
CLUSTER_NAME: Final = "kafka-cluster"


class ResourceKind(IntEnum):
    """What a rule is about (ResourceType); ANY in filters alone."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How the name of a rule is compared; ANY and MATCH in filters alone."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    """What a rule is for; ANY in filters alone."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclPermission(IntEnum):
    """Whether a rule denies or allows; ANY in filters alone."""

    ANY = 1
    DENY = 2
    ALLOW = 3


class Acl(NamedTuple):
    """One rule. The principal is `User:name`, or a type of another authentication and a name."""

    kind: int
    name: str
    pattern: int
    principal: str
    host: str
    operation: int
    permission: int


class AclFilter(NamedTuple):
    """A filter of rules, as in DescribeAcls and DeleteAcls; None and ANY match everything."""

    kind: int = ResourceKind.ANY
    name: str | None = None
    pattern: int = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: int = AclOperation.ANY
    permission: int = AclPermission.ANY

    def exact(self) -> Acl | None:
        """Returns the only rule that it can match; None if there may be several."""
        if (
            self.name is None
            or self.principal is None
            or self.host is None
            or self.pattern not in (PatternType.LITERAL, PatternType.PREFIXED)
            or AclOperation.ANY in (self.kind, self.operation, self.permission)
        ):
            return None
        return Acl(
            self.kind,
            self.name,
            self.pattern,
            self.principal,
            self.host,
            self.operation,
            self.permission,
        )

    def matches(self, acl: Acl) -> bool:
        """Returns whether the rule passes (AclBindingFilter)."""
        return (
            self.kind in (ResourceKind.ANY, acl.kind)
            and self.operation in (AclOperation.ANY, acl.operation)
            and self.permission in (AclPermission.ANY, acl.permission)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self._matches_pattern(acl)
        )

    def _matches_pattern(self, acl: Acl) -> bool:
        """MATCH: the patterns that match a resource of this name (ResourcePatternFilter)."""
        if self.pattern not in (PatternType.ANY, PatternType.MATCH, acl.pattern):
            return False
        if self.name is None:
            return True
        if self.pattern != PatternType.MATCH:
            return self.name == acl.name
        if acl.pattern == PatternType.LITERAL:
            return acl.name in (self.name, WILDCARD)
        return self.name.startswith(acl.name)
