"""Which partition of `__consumer_offsets` knows a group, as in every Kafka broker.

partition = (Java's String.hashCode of the group id, without its sign bit) mod partition count
"""

from __future__ import annotations


def coordinating_partition(group_id: str, partition_count: int) -> int:
    """The partition that the records of this group are in."""
    return (java_hash(group_id) & 0x7FFFFFFF) % partition_count


def java_hash(text: str) -> int:
    """Java's String.hashCode, as an unsigned number: over UTF-16 units, not characters."""
    units = text.encode("utf-16-be", "surrogatepass")
    result = 0
    for position in range(0, len(units), 2):
        result = (31 * result + (units[position] << 8 | units[position + 1])) & 0xFFFFFFFF
    return result
