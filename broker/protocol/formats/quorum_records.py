"""Control records of the metadata log and of its snapshots (KIP-595, KIP-630, KIP-853).

    key     version 0 i16 | type i16
    value   version 0 i16 | fields, flexible

They are for those who replicate the log, and say nothing of the metadata: where a snapshot begins
and ends, which version of the quorum is in force, and which nodes vote.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Mapping, Sequence
from typing import Final

from strandline.broker.protocol.formats.versioned import write_struct
from strandline.broker.protocol.schema import schema as wire
from strandline.broker.protocol.schema.schema import Struct

_VERSION: Final = 0
_KEY: Final = struct.Struct(">hh")


class QuorumRecord(Struct):
    """One control record; its version is always 0."""


class SnapshotHeaderRecord(QuorumRecord):
    """Time in ms since 1970 of the newest record that the snapshot contains."""

    last_contained_log_timestamp: int = wire.int64()


class SnapshotFooterRecord(QuorumRecord):
    """The snapshot is complete."""


class KRaftVersionRecord(QuorumRecord):
    """The level of kraft.version: from 1 on the log says who votes."""

    k_raft_version: int = wire.int16()


class VoterEndpoint(Struct):
    name: str = wire.string()
    host: str = wire.string()
    port: int = wire.uint16()


class VoterFeature(Struct):
    """The levels of kraft.version that a voter knows."""

    min_supported_version: int = wire.int16()
    max_supported_version: int = wire.int16()


class Voter(Struct):
    voter_id: int = wire.int32()
    voter_directory_id: uuid.UUID = wire.uuid_()
    endpoints: Sequence[VoterEndpoint] = wire.array(VoterEndpoint)
    k_raft_version_feature: VoterFeature = wire.struct(VoterFeature)


class VotersRecord(QuorumRecord):
    """All voters, from here on."""

    voters: Sequence[Voter] = wire.array(Voter)


# ControlRecordType.
_TYPES: Final[Mapping[type[QuorumRecord], int]] = {
    SnapshotHeaderRecord: 3,
    SnapshotFooterRecord: 4,
    KRaftVersionRecord: 5,
    VotersRecord: 6,
}


def encode_quorum_record(record: QuorumRecord) -> tuple[bytes, bytes]:
    """Encodes a control record as the key and the value of a record in a control batch."""
    key = _KEY.pack(_VERSION, _TYPES[type(record)])
    return key, write_struct(record, _VERSION, flexible_from=0)
