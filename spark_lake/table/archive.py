"""The topic as the archive has it at one moment, and what a table lacks of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from uuid import UUID

from strandline.spark_lake.archive.catalog import Catalog, LakePartition
from strandline.spark_lake.archive.objects import ObjectReader
from strandline.spark_lake.plan.planner import OffsetRange, archived_range
from strandline.spark_lake.query.bounds import BoundsResolver
from strandline.spark_lake.query.query import Query
from strandline.spark_lake.table.errors import TableRefused
from strandline.spark_lake.table.offsets import Mode, TableOffsets
from strandline.storage.errors import InvalidConfig
from strandline.storage.model import Offset, TopicPartition
from strandline.storage.remote.manifest.entries import SegmentEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicView:
    """The partitions of one topic, with what the query's options select of each."""

    topic: str
    topic_id: UUID
    partitions: tuple[LakePartition, ...]
    selected: Mapping[TopicPartition, OffsetRange]

    def archived(self, partition: TopicPartition) -> OffsetRange:
        """What the archive has of a partition, whatever the options select."""
        return next(
            archived_range(one.manifest)
            for one in self.partitions
            if one.topic_partition == partition
        )


def load_view(query: Query, reader: ObjectReader) -> TopicView:
    """Reads the manifests of the query's only topic. Raises what `Query.plan` raises."""
    catalog = Catalog(reader)
    catalog.load_cluster()
    options = query.options
    found = catalog.load_partitions(options.selection, open_for=options.open_for)
    topics = {(one.partition.topic, one.partition.topic_id) for one in found}
    if len(topics) != 1:
        names = ", ".join(sorted(name for name, _ in topics))
        raise InvalidConfig(f"a table has one topic, and {names} are selected: name one")
    ((topic, topic_id),) = topics
    resolver = BoundsResolver(reader, catalog, options)
    return TopicView(
        topic=topic, topic_id=topic_id, partitions=found, selected=resolver.resolve_all(found)
    )


def check_identity(view: TopicView, offsets: TableOffsets, *, new_incarnation: bool) -> None:
    """Raises TableRefused if the table has rows of another topic, or of another one of its name."""
    if offsets.topic != view.topic:
        raise TableRefused(
            f"the table has rows of topic {offsets.topic}, not of {view.topic}: name another table"
        )
    others = [one for one in offsets.next_offsets if one != view.topic_id]
    if others and view.topic_id not in offsets.next_offsets and not new_incarnation:
        raise TableRefused(
            f"topic {view.topic} was deleted and made anew: the table has rows of the topic id"
            f" {others[-1]}, the archive has {view.topic_id}, whose offsets begin again."
            " --new-incarnation adds its rows beside the old ones; or name another table"
        )


def check_mode(offsets: TableOffsets, mode: Mode, *, table: str) -> None:
    """Raises TableRefused if the table was made in another mode."""
    if offsets.mode is not mode:
        raise TableRefused(
            f"table {table} was made with --mode {offsets.mode.value}, which stays: name another"
            f" table for {mode.value}"
        )


def check_is_ahead(
    query: Query, view: TopicView, offsets: TableOffsets, reader: ObjectReader
) -> None:
    """Raises TableRefused if the table has offsets that the archive lacks: others will get them."""
    known = offsets.of(view.topic_id)
    if all(known.get(one.partition, 0) <= view.archived(one).end_offset for one in view.selected):
        return
    # Again: another sync may have had a newer view, or options with more of the open segment.
    for one in Catalog(reader).load_partitions(query.options.selection):
        place, manifest = one.topic_partition, one.manifest
        if manifest is None or one.partition.topic_id != view.topic_id:
            # Tiering was turned off, with the archive; or the topic was made anew.
            continue
        next_offset, end_offset = known.get(place.partition, 0), manifest.tail_end_offset
        if next_offset > end_offset:
            raise TableRefused(
                f"of {place.topic} partition {place.partition} the table needs offset {next_offset}"
                f" next, and the archive ends at {end_offset}: an older state of it was restored,"
                f" and its next records have offsets that the table has rows of. Name another"
                " table, which gets what the archive has"
            )


def missing_ranges(
    view: TopicView,
    offsets: TableOffsets,
    ends: Mapping[TopicPartition, Offset],
    *,
    fail_on_data_loss: bool,
) -> dict[TopicPartition, OffsetRange]:
    """What the table lacks before `ends`; a partition that it has never had begins as selected.

    Raises InvalidConfig if the archive no longer has the first of them.
    """
    known = offsets.of(view.topic_id)
    wanted = {}
    for partition, selected in view.selected.items():
        start = known.get(partition.partition, selected.start_offset)
        end = min(selected.end_offset, ends.get(partition, 0))
        available = view.archived(partition)
        if start < min(end, available.start_offset):
            if fail_on_data_loss:
                raise InvalidConfig(
                    f"the table needs offset {start} of {partition.topic} partition"
                    f" {partition.partition} next, the archive begins at {available.start_offset}:"
                    " retention deleted the records between; --option failOnDataLoss=false goes on"
                    " without them"
                )
            start = min(end, available.start_offset)
        if start < end:
            wanted[partition] = OffsetRange(start_offset=start, end_offset=end)
    return wanted


def entries_of(
    partition: LakePartition, wanted: OffsetRange, catalog: Catalog
) -> Iterator[SegmentEntry]:
    """The entries with wanted offsets, in order; loads one sealed page at a time."""
    manifest = partition.manifest
    if manifest is None:
        return
    for page in manifest.pages:
        if wanted.overlaps(page):
            for entry in catalog.load_pages([page])[page.key]:
                if wanted.overlaps(entry):
                    yield entry
    for entry in manifest.segments:
        if wanted.overlaps(entry):
            yield entry
