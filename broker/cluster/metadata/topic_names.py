"""Validation of topic names, by Kafka's rules and with Kafka's texts.

A name becomes part of folder names and of metric names. Metric names cannot tell `.` from `_`, so
`a.b` and `a_b` cannot both exist.
"""

from __future__ import annotations

import re

from strandline.broker.protocol.formats.offsets_topic import OFFSETS_TOPIC
from strandline.broker.protocol.formats.transaction_log import TRANSACTION_TOPIC

# Internal topics belong to the broker: clients may read, but not write, grow or delete them.
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTION_TOPIC})

# Kafka's controllers keep their log under this name. A Kafka that gets this disk later would take
# a topic's folder of this name for that log.
METADATA_TOPIC = "__cluster_metadata"

# With `-<partition>` behind it, a name of this length still fits a file name of 255 bytes.
TOPIC_NAME_LENGTH_MAX = 249

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def topic_name_fault(name: str) -> str | None:
    """Returns the fault of a topic name; None for a legal one."""
    if not name:
        return "Topic name is invalid: the empty string is not allowed"
    if name in (".", ".."):
        return f"Topic name is invalid: '{name}' is not allowed"
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        return (
            f"Topic name is invalid: the length of '{name}' is longer than the max allowed length"
            f" {TOPIC_NAME_LENGTH_MAX}"
        )
    if not _LEGAL.fullmatch(name):
        return (
            f"Topic name is invalid: '{name}' contains one or more characters other than ASCII"
            " alphanumerics, '.', '_' and '-'"
        )
    return None


def collision_key(name: str) -> str:
    """Returns the key that colliding names share."""
    return name.replace(".", "_")
