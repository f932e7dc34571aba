"""Limits of requests and answers: items per request, characters per error message.

The codec bounds a request's bytes, but a short item may need a long answer: a topic's name its
whole configuration, an empty key a coordinator with its address. Two million of them in one request
would delay every other client for many seconds, and fill the memory with the answer.

Error messages quote what a client sent: a topic name, a property and its value. A string of the
protocol has at most 32,767 bytes, which one quoted string may fill.
"""

from __future__ import annotations

from collections.abc import Iterable, Sized

from strandline.broker.network.responses import CloseConnectionError

# More groups or topics than one broker serves.
NAMES_MAX = 10_000
# A request with more takes so much loop time that other clients would notice.
PARTITIONS_MAX = 20_000
MESSAGE_CHARACTERS_MAX = 1000
_CUT = "..."


def refuse_flood(name_count: int, name_count_max: int = NAMES_MAX) -> None:
    """Raises CloseConnectionError for a request with more than `name_count_max` items."""
    if name_count > name_count_max:
        raise CloseConnectionError(
            f"{name_count} things are named in one request, at most {name_count_max} may be"
        )


def refuse_partition_flood(partitions_by_topic: Iterable[Sized]) -> None:
    """Raises CloseConnectionError for too many partitions; a topic without any counts as one."""
    refuse_flood(sum(len(partitions) or 1 for partitions in partitions_by_topic), PARTITIONS_MAX)


def clipped(message: str | None) -> str | None:
    """Truncates an error message to MESSAGE_CHARACTERS_MAX."""
    if message is None or len(message) <= MESSAGE_CHARACTERS_MAX:
        return message
    return message[: MESSAGE_CHARACTERS_MAX - len(_CUT)] + _CUT
