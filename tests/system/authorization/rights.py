"""The rights that Kafka's requests need, as a table: `rights.tsv`.

    row       its name; `probes.py` has a request of each
    kind, name, operation    the right that the request needs
    or_else   rights of which each is enough instead, separated by `;`
    given     rights that it needs besides, for other parts of it
    denied    what who lacks the right sees: error codes, or that something is hidden or masked

The facts are those of Apache Kafka 4.3.1, where most rows were run (KafkaApis, ControllerApis).
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from strandline.broker.security.acl import (
    WILDCARD,
    Acl,
    AclOperation,
    AclPermission,
    PatternType,
    ResourceKind,
)

CLIENT = "User:ANONYMOUS"
# What else allows an operation.
IMPLIED_BY = {
    AclOperation.DESCRIBE: {
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.DELETE,
        AclOperation.ALTER,
    },
    AclOperation.DESCRIBE_CONFIGS: {AclOperation.ALTER_CONFIGS},
}


def right(
    text: str,
    *,
    pattern: PatternType = PatternType.LITERAL,
    permission: AclPermission = AclPermission.ALLOW,
    host: str = WILDCARD,
    principal: str = CLIENT,
) -> Acl:
    """The right of the client that `TOPIC t READ` says."""
    kind, name, operation = text.split(" ")
    return Acl(
        ResourceKind[kind], name, pattern, principal, host, AclOperation[operation], permission
    )


def rights(text: str) -> list[Acl]:
    return [right(one) for one in text.split(";") if one]


@dataclass(frozen=True, kw_only=True)
class Row:
    row: str
    api: str
    when: str
    needed: Acl
    or_else: tuple[Acl, ...]
    given: tuple[Acl, ...]
    denied: frozenset[str]

    def everything_else(self) -> list[Acl]:
        """Every right to the same resource that is not enough."""
        enough = {
            acl.operation for acl in (self.needed, *self.or_else) if acl[:2] == self.needed[:2]
        }
        for operation in tuple(enough):
            enough |= IMPLIED_BY.get(AclOperation(operation), set())
        return [
            self.needed._replace(operation=operation)
            for operation in AclOperation
            if operation not in enough | {AclOperation.ANY, AclOperation.ALL}
        ]


def read_rows() -> list[Row]:
    with (Path(__file__).parent / "rights.tsv").open() as lines:
        return [
            Row(
                row=one["row"],
                api=one["api"],
                when=one["when"],
                needed=right(f"{one['kind']} {one['name']} {one['operation']}"),
                or_else=tuple(rights(one["or_else"])),
                given=tuple(rights(one["given"])),
                denied=frozenset(one["denied"].split(" ")),
            )
            for one in csv.DictReader(lines, delimiter="\t")
        ]


ROWS = read_rows()
