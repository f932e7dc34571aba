"""What configurations are of, in requests and in metadata records (Kafka's ConfigResource)."""

from __future__ import annotations

from enum import IntEnum


class ConfigResourceType(IntEnum):
    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


def type_text(kind: int) -> str:
    """`client metrics (resource type 16)`, as an answer names a type."""
    names = {one.value: one.name.lower().replace("_", " ") for one in ConfigResourceType}
    return f"{names[kind]} (resource type {kind})" if kind in names else f"resource type {kind}"
