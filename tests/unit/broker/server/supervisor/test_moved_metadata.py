"""What the metadata say when a lone broker becomes one of several."""

from __future__ import annotations

from strandline.broker.cluster.metadata.controller_messages import Decision
from strandline.broker.controller.partitions.elections import come_back
from strandline.broker.protocol.formats.metadata_records import (
    UNASSIGNED_DIRECTORY,
    PartitionChangeRecord,
)
from strandline.broker.server.supervisor.moved_metadata import led_by_none
from tests.unit.broker.controller.cluster_of_brokers import (
    TOPIC_ID,
    broker,
    carried_out,
    cluster,
    first,
    folder,
    leaders,
)

NOTHING: Decision[None] = Decision(records=(), results=())


def test_a_lone_broker_whose_folder_is_another_by_now_leads_what_it_has_among_several() -> None:
    """A restore gave it a new one; as a lone broker it has served it."""
    image = cluster(broker(1), partitions=[(1,)]).apply_entry(
        [PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, directories=[folder(1)])]
    )
    image = image.apply_entry(led_by_none(image, 1))
    assert first(image).directories == (UNASSIGNED_DIRECTORY,)
    assert (leaders(image), led_by_none(image, 1)) == ([-1], [])
    again = image.apply_entry([broker(1, 9, fenced=True, log_dirs=[folder(2)])])
    led, _ = carried_out(again, lambda one: come_back(one, 1, lambda _: NOTHING))
    assert leaders(led) == [1]
