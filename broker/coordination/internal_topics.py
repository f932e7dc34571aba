"""The topics that belong to the broker: clients may read them, and nothing else.

`__consumer_offsets` holds what the group coordinators know. Clients see in Metadata that it is
internal; producing to it or deleting it is refused with INVALID_TOPIC_EXCEPTION.
"""

from __future__ import annotations

from strandline.broker.protocol.offsets_topic import OFFSETS_TOPIC

INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC})


def is_internal(topic: str | None) -> bool:
    """Whether the topic belongs to the broker."""
    return topic in INTERNAL_TOPICS


def coordinating_partition(group_id: str, partition_count: int) -> int:
    """The partition of `__consumer_offsets` that knows this group, as in every Kafka broker."""
    return (java_hash(group_id) & 0x7FFFFFFF) % partition_count


def java_hash(text: str) -> int:
    """Java's String.hashCode, as an unsigned number: over UTF-16 units, not characters."""
    units = text.encode("utf-16-be", "surrogatepass")
    result = 0
    for position in range(0, len(units), 2):
        result = (31 * result + (units[position] << 8 | units[position + 1])) & 0xFFFFFFFF
    return result
