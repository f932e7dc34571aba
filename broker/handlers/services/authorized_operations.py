"""Authorized operations of a resource, as bits (KIP-430): all, as there is no authorizer.

Bit numbers are those of Kafka's AclOperation, the sets those of its AclEntry.supportedOperations.
"""

from __future__ import annotations

from enum import IntFlag
from typing import Final


class Operation(IntFlag):
    """The operations that a resource can have."""

    READ = 1 << 3
    WRITE = 1 << 4
    CREATE = 1 << 5
    DELETE = 1 << 6
    ALTER = 1 << 7
    DESCRIBE = 1 << 8
    CLUSTER_ACTION = 1 << 9
    DESCRIBE_CONFIGS = 1 << 10
    ALTER_CONFIGS = 1 << 11
    IDEMPOTENT_WRITE = 1 << 12


_CONFIGS: Final = Operation.DESCRIBE_CONFIGS | Operation.ALTER_CONFIGS
ALL_OF_A_GROUP: Final = Operation.READ | Operation.DELETE | Operation.DESCRIBE | _CONFIGS
ALL_OF_A_TOPIC: Final = ALL_OF_A_GROUP | Operation.WRITE | Operation.CREATE | Operation.ALTER
ALL_OF_THE_CLUSTER: Final = (
    Operation.CREATE
    | Operation.ALTER
    | Operation.DESCRIBE
    | Operation.CLUSTER_ACTION
    | Operation.IDEMPOTENT_WRITE
    | _CONFIGS
)
