"""Registrations of broker processes (KIP-631, KIP-841, KIP-858).

A process registers under an id, with a name of its own (the incarnation), and gets an epoch that no
other ever had: the offset at which the log stood. While an incarnation has a session, no other can
have its id. One that registers again, say with other listeners, keeps its epoch and state.

A new incarnation begins fenced. Its predecessor leads nothing any more, and leaves the replicas in
sync, before it comes: the registration is the last record of its entry. If its log folders do not
say that the predecessor ended with all of its logs synced, it is no eligible leader replica either
(KIP-966).

One more thing than in Kafka: the process that follows another one in the same log folders need not
wait for the end of its session, if the connection of the other was closed, or never made to this
controller. The folders are locked, so the other has ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from strandline.broker.cluster.metadata.controller_messages import Decision, Refusal
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.controller.directories import is_reserved
from strandline.broker.controller.messages import Registered
from strandline.broker.controller.partitions.decided import Partitions
from strandline.broker.controller.partitions.elections import crash, leave
from strandline.broker.controller.sessions import Session
from strandline.broker.protocol.formats.metadata_records import (
    BrokerEndpoint,
    BrokerFeature,
    RegisterBrokerRecord,
)
from strandline.broker.protocol.messages.broker_registration import BrokerRegistrationRequest
from strandline.broker.protocol.schema.errors import ErrorCode

METADATA_VERSION = "metadata.version"


def register(
    partitions: Partitions, asked: BrokerRegistrationRequest, session: Session
) -> Decision[Registered]:
    """Registers a process; `session` is that of the present registration of its id."""
    image = partitions.image
    existing = image.brokers.get(asked.broker_id)
    try:
        _check_identity(image, asked, existing, session)
        _check_directories(image, asked)
        _check_features(image.feature_levels, asked)
    except Refusal as refusal:
        refused = Registered(error_code=refusal.error_code, error_message=refusal.message)
        return Decision(records=(), results=(refused,))
    if existing is not None and existing.incarnation_id == asked.incarnation_id:
        record = _record_of(asked, existing.broker_epoch).replaced(
            fenced=existing.fenced, in_controlled_shutdown=existing.in_controlled_shutdown
        )
        return _registered(record)

    def finish(image: MetadataImage) -> Decision[Registered]:
        return _registered(_record_of(asked, image.next_offset))

    # The epoch of the process whose clean end the log folders tell of.
    is_clean = existing is not None and existing.broker_epoch == asked.previous_broker_epoch
    return (leave if is_clean else crash)(partitions, asked.broker_id, finish)


def _registered(record: RegisterBrokerRecord) -> Decision[Registered]:
    registered = Registered(broker_epoch=record.broker_epoch)
    return Decision(records=(record,), results=(registered,))


def _check_identity(
    image: MetadataImage,
    asked: BrokerRegistrationRequest,
    existing: RegisterBrokerRecord | None,
    session: Session,
) -> None:
    if asked.cluster_id != image.cluster_id:
        raise Refusal(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"Expected cluster ID {image.cluster_id}, but got cluster ID {asked.cluster_id}",
        )
    if asked.is_migrating_zk_broker:
        raise Refusal(
            ErrorCode.BROKER_ID_NOT_REGISTERED,
            "Controller does not support registering ZK brokers.",
        )
    if existing is None or existing.incarnation_id == asked.incarnation_id:
        return
    is_alive = session is Session.ALIVE
    if session is Session.UNCONNECTED:
        is_alive = set(existing.log_dirs) != set(asked.log_dirs)
    if is_alive:
        raise Refusal(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            "Another broker is registered with that broker id. If the broker was recently"
            " restarted this should self-resolve once the heartbeat manager expires the broker's"
            " session.",
        )


def _check_directories(image: MetadataImage, asked: BrokerRegistrationRequest) -> None:
    fault = None
    if not asked.log_dirs:
        fault = "No directories specified in request"
    elif any(map(is_reserved, asked.log_dirs)):
        fault = "Reserved directory ID in request"
    elif max(Counter(asked.log_dirs).values()) > 1:
        fault = "Duplicate directory ID in request"
    if fault is not None:
        raise Refusal(ErrorCode.INVALID_REGISTRATION, fault)
    wanted = set(asked.log_dirs)
    for broker in image.brokers.values():
        taken = wanted.intersection(broker.log_dirs)
        if taken and broker.broker_id != asked.broker_id:
            raise Refusal(
                ErrorCode.INVALID_REGISTRATION,
                f"Broker {broker.broker_id} is already registered with directory {min(taken)}",
            )


def _check_features(levels: Mapping[str, int], asked: BrokerRegistrationRequest) -> None:
    """Every finalized level is one that the broker knows; what it does not name, it has not."""
    ranges = {
        one.name: (one.min_supported_version, one.max_supported_version) for one in asked.features
    }
    for name in (*ranges, *(name for name in levels if name not in ranges)):
        lowest, highest = ranges.get(name, (0, 0))
        level = levels.get(name, 0)
        if not lowest <= level <= highest:
            raise Refusal(
                ErrorCode.UNSUPPORTED_VERSION,
                f"Unable to register because the broker does not support finalized version {level}"
                f" of {name}. The broker wants a version between {lowest} and {highest},"
                " inclusive.",
            )
    if METADATA_VERSION not in ranges:
        raise Refusal(
            ErrorCode.INVALID_REGISTRATION,
            f"Request features do not contain '{METADATA_VERSION}'",
        )


def _record_of(asked: BrokerRegistrationRequest, broker_epoch: int) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=asked.broker_id,
        incarnation_id=asked.incarnation_id,
        broker_epoch=broker_epoch,
        end_points=[
            BrokerEndpoint(
                name=listener.name,
                host=listener.host,
                port=listener.port,
                security_protocol=listener.security_protocol,
            )
            for listener in asked.listeners
        ],
        features=[
            BrokerFeature(
                name=feature.name,
                min_supported_version=feature.min_supported_version,
                max_supported_version=feature.max_supported_version,
            )
            for feature in asked.features
        ],
        rack=asked.rack,
        fenced=True,
        log_dirs=asked.log_dirs,
    )
