"""Changes of many partitions, a bounded number in each turn of the loop and in each entry.

    items    [ 250 | 250 | 137 ]
    entries    250   250   137 + what ends it: a broker is fenced, or registered

Others wait until the last one, and see all of it. A crash between two leaves a part, which is true:
each record is. As Kafka's controller, whose batches of such changes are not atomic either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from strandline.broker.cluster.metadata.controller_messages import Decision
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.controller.partitions.decided import Partitions
from strandline.broker.protocol.formats.metadata_records import (
    MetadataRecord,
    PartitionChangeRecord,
)

# Some ten milliseconds of a loop, and less of the brokers that follow.
ITEMS_PER_TURN: Final = 250

ResultT = TypeVar("ResultT")
# A place, or what somebody asks of one.
ItemT = TypeVar("ItemT")
Change = Callable[[Partitions, ItemT], PartitionChangeRecord | None]
Finish = Callable[[MetadataImage], Decision[ResultT]]


def in_turns(
    partitions: Partitions,
    items: Sequence[ItemT],
    change: Change[ItemT],
    finish: Finish[ResultT],
    *,
    first: Sequence[MetadataRecord] = (),
) -> Decision[ResultT]:
    """Changes a partition for each item, or none; `first` precedes the changes.

    `finish` decides what follows in the entry of the last turn, on the image before that entry.
    """
    now, later = items[:ITEMS_PER_TURN], items[ITEMS_PER_TURN:]
    changes = (change(partitions, item) for item in now)
    records = (*first, *(record for record in changes if record is not None))
    if later:
        return Decision(
            records=records,
            results=(),
            then=lambda image: in_turns(partitions.at(image), later, change, finish),
        )
    finished = finish(partitions.image)
    return replace(finished, records=(*records, *finished.records))
