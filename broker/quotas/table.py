"""Lookup of the quota that applies to a request: the precedence of KIP-55 on the stored quotas.

    1  user + client id            4  default user + client id            7  client id
    2  user + default client id    5  default user + default client id    8  default client id
    3  user                        6  default user

The first row that has a value for the key wins. It also decides how the allowance is shared: rows
with both names have one per pair, rows 3 and 6 one per user across client ids, rows 7 and 8 one per
client id across users.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from strandline.broker.cluster.metadata.records import QuotaEntity

DEFAULT_NAME = ""


class EntityType(StrEnum):
    """The type of an entity that has quotas."""

    USER = "user"
    CLIENT_ID = "client-id"
    IP = "ip"


class QuotaKey(StrEnum):
    """A quota key; the values are Kafka's names."""

    PRODUCER_BYTE_RATE = "producer_byte_rate"
    CONSUMER_BYTE_RATE = "consumer_byte_rate"
    REQUEST_PERCENTAGE = "request_percentage"
    CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
    CONNECTION_CREATION_RATE = "connection_creation_rate"


# Kafka's types of the keys: a rate of bytes is a LONG, one of connections an INT.
CLIENT_KEYS = frozenset(QuotaKey) - {QuotaKey.CONNECTION_CREATION_RATE}
ADDRESS_KEYS = frozenset({QuotaKey.CONNECTION_CREATION_RATE})
LARGEST_INTEGRAL: Mapping[QuotaKey, int] = {
    QuotaKey.PRODUCER_BYTE_RATE: 2**63 - 1,
    QuotaKey.CONSUMER_BYTE_RATE: 2**63 - 1,
    QuotaKey.CONNECTION_CREATION_RATE: 2**31 - 1,
}

# User and client id of an allowance, each empty where it is shared by all of them.
Sharers: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Limit:
    """A bound, and the key of the clients that share it."""

    bound: float
    sharers: Sharers


class QuotaTable:
    """Immutable lookup table of the stored quotas."""

    __slots__ = ("_quotas", "has_addresses", "has_clients")

    def __init__(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        self._quotas = quotas
        self.has_addresses = any(_is_address(entity) for entity in quotas)
        self.has_clients = any(not _is_address(entity) for entity in quotas)

    def find(self, key: QuotaKey, user: str, client_id: str) -> Limit | None:
        """Returns the limit of one client, or None."""
        both, user_only, client_only = (user, client_id), (user, ""), ("", client_id)
        for names, sharers in (
            ({EntityType.USER: user, EntityType.CLIENT_ID: client_id}, both),
            ({EntityType.USER: user, EntityType.CLIENT_ID: DEFAULT_NAME}, both),
            ({EntityType.USER: user}, user_only),
            ({EntityType.USER: DEFAULT_NAME, EntityType.CLIENT_ID: client_id}, both),
            ({EntityType.USER: DEFAULT_NAME, EntityType.CLIENT_ID: DEFAULT_NAME}, both),
            ({EntityType.USER: DEFAULT_NAME}, user_only),
            ({EntityType.CLIENT_ID: client_id}, client_only),
            ({EntityType.CLIENT_ID: DEFAULT_NAME}, client_only),
        ):
            bound = self._quotas.get(_entity(names), {}).get(key)
            if bound is not None:
                return Limit(bound, sharers)
        return None

    def find_address(self, address: str) -> float | None:
        """connection_creation_rate of one address, or of those that have none of their own."""
        for name in (address, DEFAULT_NAME):
            entity = _entity({EntityType.IP: name})
            bound = self._quotas.get(entity, {}).get(QuotaKey.CONNECTION_CREATION_RATE)
            if bound is not None:
                return bound
        return None


def _entity(names: Mapping[EntityType, str]) -> QuotaEntity:
    return QuotaEntity.of({str(kind): name for kind, name in names.items()})


def _is_address(entity: QuotaEntity) -> bool:
    return any(kind == EntityType.IP for kind, _ in entity.names)
