"""How many things one request may name, where an answer about each is dear.

The codec bounds a request's bytes, but one byte may stand for much: a topic's name for its whole
configuration, an empty key for a coordinator with its address. Two million of them in one request
would hold up every other client for many seconds, and fill the memory with the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sized

from strandline.broker.network.answers import CloseConnectionError

# More groups or topics than one broker serves.
NAMES_MAX = 10_000
# A request that names more is answered in turns of the loop that others would notice.
PARTITIONS_MAX = 20_000


def refuse_flood(name_count: int, name_count_max: int = NAMES_MAX) -> None:
    """Raises CloseConnectionError for a request that names more than `name_count_max` things."""
    if name_count > name_count_max:
        raise CloseConnectionError(
            f"{name_count} things are named in one request, at most {name_count_max} may be"
        )


def refuse_partition_flood(partitions_by_topic: Iterable[Sized]) -> None:
    """The same for partitions, given as those of each topic; a topic without any counts as one."""
    refuse_flood(sum(len(partitions) or 1 for partitions in partitions_by_topic), PARTITIONS_MAX)
