"""The page of a controller: brokers and partitions as it sees them, in Kafka's names.

As ControllerMetadataMetrics and QuorumControllerMetrics have them (KIP-1131 those of one broker).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from strandline.broker.cluster.metadata.image import NO_LEADER, MetadataImage
from strandline.broker.controller.attended_time import AttendedTime
from strandline.broker.controller.feed import ServedMetadataLog
from strandline.broker.controller.sessions import BrokerSessions
from strandline.broker.protocol.formats.metadata_records import RegisterBrokerRecord
from strandline.broker.telemetry.access_rows import access_rows
from strandline.broker.telemetry.collector import free_space, written
from strandline.broker.telemetry.common_rows import connection_rows, process_rows, request_rows
from strandline.broker.telemetry.exposition import PageFormat, Sample
from strandline.broker.telemetry.families import ADDED_UP_PER_STEP, Row, Step, row_of, single
from strandline.broker.telemetry.sources import NodeSources

# Kafka's BrokerRegistrationState.
FENCED: Final = 10
IN_CONTROLLED_SHUTDOWN: Final = 20
ACTIVE: Final = 30
_PREFIX: Final = "kafka_controller_kafkacontroller_"
_RAFT: Final = "kafka_server_raft_metrics_"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSources(NodeSources):
    """The parts of a controller that the page reads."""

    node_id: int
    feed: ServedMetadataLog
    sessions: BrokerSessions
    time: AttendedTime
    # How many brokers and others follow the log.
    observer_count: Callable[[], int]


def controller_page(sources: ControllerSources, wanted: PageFormat) -> Iterator[str]:
    """The page in pieces, as `metrics_page`."""
    return written(_families(sources), wanted)


def _families(sources: ControllerSources) -> Iterator[Step]:
    yield from request_rows(sources.requests)
    yield from connection_rows(sources.server, sources.failed_logins())
    yield from access_rows(sources)
    yield from _broker_rows(sources)
    yield from _partition_rows(sources.metadata.image)
    yield from _log_rows(sources)
    yield row_of("strandline_log_directory_free_bytes", free_space(sources.log_dirs))
    yield from process_rows({})


def registration_state(broker: RegisterBrokerRecord) -> int:
    """Returns the state of a broker by Kafka's number."""
    if broker.fenced:
        return FENCED
    return IN_CONTROLLED_SHUTDOWN if broker.in_controlled_shutdown else ACTIVE


def _broker_rows(sources: ControllerSources) -> Iterator[Row]:
    brokers = sources.metadata.image.brokers
    states = {node: registration_state(one) for node, one in sorted(brokers.items())}
    found = list(states.values())
    yield single(f"{_PREFIX}activecontrollercount", 1)
    yield single(f"{_PREFIX}activebrokercount", len(found) - found.count(FENCED))
    yield single(f"{_PREFIX}fencedbrokercount", found.count(FENCED))
    yield single(f"{_PREFIX}controlledshutdownbrokercount", found.count(IN_CONTROLLED_SHUTDOWN))
    yield row_of(
        f"{_PREFIX}brokerregistrationstate",
        [Sample(state, (str(node),)) for node, state in states.items()],
    )
    sessions, now_s = sources.sessions, sources.time.now_s()
    heard = {
        node: sessions.heard_s((node, broker.broker_epoch)) for node, broker in brokers.items()
    }
    yield row_of(
        f"{_PREFIX}timesincelastheartbeatreceivedms",
        [
            Sample(int(1000 * (now_s - at_s)), (str(node),))
            for node, at_s in sorted(heard.items())
            if at_s is not None
        ],
    )


def _partition_rows(image: MetadataImage) -> Iterator[Step]:
    count = leaderless = not_preferred = 0
    for topic in image.topics.values():
        for partition in topic.partitions:
            count += 1
            leaderless += partition.leader == NO_LEADER
            not_preferred += partition.leader != partition.replicas[0]
            if count % ADDED_UP_PER_STEP == 0:
                yield None
    yield single(f"{_PREFIX}globaltopiccount", len(image.topics))
    yield single(f"{_PREFIX}globalpartitioncount", count)
    yield single(f"{_PREFIX}offlinepartitionscount", leaderless)
    yield single(f"{_PREFIX}preferredreplicaimbalancecount", not_preferred)


def _log_rows(sources: ControllerSources) -> Iterator[Row]:
    feed, applied = sources.feed, sources.metadata.image.next_offset - 1
    # All that is in the log is durable.
    yield single(f"{_PREFIX}lastcommittedrecordoffset", feed.end - 1)
    yield single(f"{_PREFIX}lastappliedrecordoffset", applied)
    yield single(f"{_RAFT}current_leader", sources.node_id)
    yield single(f"{_RAFT}current_epoch", feed.epoch)
    yield single(f"{_RAFT}high_watermark", feed.end)
    yield single(f"{_RAFT}log_end_offset", feed.end)
    yield single(f"{_RAFT}number_of_voters", 1)
    yield single(f"{_RAFT}number_of_observers", sources.observer_count())
    yield single("strandline_metadata_version", sources.metadata.image.version)
