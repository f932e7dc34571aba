"""A decision that is carried out on an image, where no controller runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from strandline.broker.cluster.metadata.controller_messages import Decision
from strandline.broker.cluster.metadata.image import MetadataDelta, MetadataImage
from strandline.broker.controller.partitions.decided import Partitions
from strandline.broker.controller.partitions.index import PartitionIndex
from strandline.broker.protocol.formats.metadata_records import MetadataRecord

ResultT = TypeVar("ResultT")

NO_DEFAULTS: Final[Mapping[str, str]] = {}


def entries_of(
    image: MetadataImage,
    decide: Callable[[Partitions], Decision[ResultT]],
    defaults: Mapping[str, str] = NO_DEFAULTS,
) -> tuple[Sequence[Sequence[MetadataRecord]], Sequence[ResultT]]:
    """Returns the records of each entry, and the results; `defaults` are those of topics."""
    entries: list[Sequence[MetadataRecord]] = []
    partitions = Partitions(image=image, index=PartitionIndex.of(image), defaults=defaults)
    decision = decide(partitions)
    while True:
        if decision.records:
            entries.append(decision.records)
            newer = image.apply_entry(decision.records)
            partitions.index.follow(MetadataDelta(image, newer), newer)
            image = newer
        if decision.then is None:
            return entries, decision.results
        decision = decision.then(image)
