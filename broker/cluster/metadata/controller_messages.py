"""Requests to the controller and its decisions (plain values).

A `ControllerRequest` is data: a controller elsewhere could receive it. A `Decision` holds the
records that carry it out and one result for each item of the request. Inside the controller a fault
is raised as a `Refusal`; outside, it is an error code and text in a result.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import ClassVar, Generic, Protocol, TypeVar

from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.records import NodeId, Replicas
from strandline.broker.protocol.formats.metadata_records import MetadataRecord
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.config.definition import BOOLEAN, INT, SHORT, key
from strandline.storage.model import ZERO_TOPIC_ID, TopicId

# CreateTopics: "use the default".
USE_DEFAULT = -1


class Intent(Enum):
    """The intent of a request: carried out, or only checked (`validate_only`)."""

    APPLY = "apply"
    VALIDATE = "validate"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDefaults:
    """Defaults for topics without own settings, and whether topics may be created and deleted."""

    partition_count: int = key(
        "num.partitions",
        INT,
        1,
        "Partitions of a topic that is created without a count.",
        minimum=1,
    )
    replication_factor: int = key(
        "default.replication.factor",
        SHORT,
        1,
        "Replicas of a topic that is created without a count, where the controller runs; a lone"
        " broker can hold only one.",
        minimum=1,
    )
    auto_creation_enabled: bool = key(
        "auto.create.topics.enable",
        BOOLEAN,
        True,
        "Create a topic when a client that allows it asks for its metadata.",
    )
    deletion_enabled: bool = key("delete.topic.enable", BOOLEAN, True, "Allow DeleteTopics.")

    # The broker's defaults, by topic property.
    properties: Mapping[str, str] = field(default_factory=dict)
    # Whether the broker has a remote tier.
    tiering_enabled: bool = False


ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Generic[ResultT]):
    """The records of one log entry (empty: nothing changes) and the results, in request order.

    A change of very many things is several entries: `then` decides on the image after this one what
    comes next, and the results are those of the last.
    """

    records: tuple[MetadataRecord, ...]
    results: tuple[ResultT, ...]
    then: Callable[[MetadataImage], Decision[ResultT]] | None = None


class ControllerRequest(Generic[ResultT]):
    """What is asked of the controller; the answer has a `ResultT` for each item."""

    __slots__ = ()
    # Whether one that changes nothing is answered while an entry is in flight, on the image before
    # it: who asks knows nothing of that entry, and must not wait for the disk.
    overtakes: ClassVar[bool] = False


class Controller(Protocol):
    """The active controller, wherever it is."""

    async def ask(self, request: ControllerRequest[ResultT]) -> Sequence[ResultT]:
        """Returns the results of a request, once its changes are durable and in force here.

        Raises StorageError if they cannot be written; their outcome is then unknown.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaAssignment:
    """The replicas that a client requests for one partition."""

    partition: int
    replicas: Replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """One topic of CreateTopics. `properties` may hold None, which is refused as in Kafka."""

    name: str
    partition_count: int = USE_DEFAULT
    replication_factor: int = USE_DEFAULT
    assignments: tuple[ReplicaAssignment, ...] = ()
    properties: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Whether a part of a request was carried out."""

    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResult(Outcome):
    """The outcome for one topic; counts, id and properties are set only if `error_code` is NONE.

    The id stays zero if the request only validates: no such topic is created.
    """

    name: str
    topic_id: TopicId = ZERO_TOPIC_ID
    partition_count: int = -1
    replication_factor: int = -1
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicReference:
    """A topic by name or by id; DeleteTopics v6 allows either, and forbids both."""

    name: str | None = None
    topic_id: TopicId = ZERO_TOPIC_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteResult(Outcome):
    """The outcome for one reference; `name` is None if the reference is an unknown topic id."""

    name: str | None
    topic_id: TopicId = ZERO_TOPIC_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPartitions:
    """One topic of CreatePartitions: the new total, and the replicas of each new partition."""

    name: str
    partition_count: int
    assignments: tuple[Replicas, ...] | None = None


class FeatureChange(Enum):
    """The kind of a feature update: only a downgrade may lower a level."""

    UPGRADE = auto()
    DOWNGRADE = auto()
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class NewLevel:
    """A level that a client wants for a feature."""

    feature: str
    level: int
    change: FeatureChange


# --- requests --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CreateTopics(ControllerRequest[TopicResult]):
    """Creates topics, with the controller's defaults."""

    topics: Sequence[NewTopic]
    intent: Intent = Intent.APPLY


@dataclass(frozen=True, slots=True)
class DeleteTopics(ControllerRequest[DeleteResult]):
    references: Sequence[TopicReference]


@dataclass(frozen=True, slots=True)
class CreatePartitions(ControllerRequest[TopicResult]):
    topics: Sequence[NewPartitions]
    intent: Intent = Intent.APPLY


@dataclass(frozen=True, slots=True)
class UpdateFeatures(ControllerRequest[Outcome]):
    """Sets all levels, or none."""

    updates: Collection[NewLevel]
    intent: Intent = Intent.APPLY


@dataclass(frozen=True, slots=True)
class AllocateProducerIds(ControllerRequest[range]):
    """Allocates a block of producer ids for a broker alone (KIP-730)."""

    node_id: NodeId


@dataclass(frozen=True, slots=True)
class FinishPurges(ControllerRequest[None]):
    """Removes the notes of purges that are complete."""

    topic_ids: Collection[TopicId]


@dataclass(frozen=True, slots=True)
class RaiseLeaderEpochs(ControllerRequest[None]):
    """Raises the epochs of all that a broker leads: it reuses offsets, which readers must notice
    (KIP-320). Missing folders are created on the way.
    """

    node_id: NodeId


class Refusal(Exception):
    """The request for one topic is refused; the controller turns this into a result."""

    def __init__(self, error_code: ErrorCode, message: str | None = None) -> None:
        super().__init__(message)
        self.error_code = error_code
        self.message = message or error_code.message
