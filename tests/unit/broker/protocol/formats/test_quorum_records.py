"""Control records of the metadata log are what another library reads."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from kio.schema.k_raft_version_record.v0.data import KRaftVersionRecord as KioKRaftVersion
from kio.schema.snapshot_footer_record.v0.data import SnapshotFooterRecord as KioFooter
from kio.schema.snapshot_header_record.v0.data import SnapshotHeaderRecord as KioHeader
from kio.schema.voters_record.v0.data import VotersRecord as KioVoters
from kio.serial import entity_reader

from strandline.broker.protocol.formats.quorum_records import (
    KRaftVersionRecord,
    QuorumRecord,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    Voter,
    VoterEndpoint,
    VoterFeature,
    VotersRecord,
    encode_quorum_record,
)

FOLDER = uuid.UUID(int=7)
VOTERS = VotersRecord(
    voters=[
        Voter(
            voter_id=1000,
            voter_directory_id=FOLDER,
            endpoints=[VoterEndpoint(name="CONTROLLER", host="h", port=9093)],
            k_raft_version_feature=VoterFeature(min_supported_version=0, max_supported_version=1),
        )
    ]
)


@pytest.mark.parametrize(
    ("record", "kind", "theirs"),
    [
        (SnapshotHeaderRecord(last_contained_log_timestamp=0), 3, KioHeader),
        (SnapshotFooterRecord(), 4, KioFooter),
        (KRaftVersionRecord(k_raft_version=1), 5, KioKRaftVersion),
        (VOTERS, 6, KioVoters),
    ],
)
def test_others_read_all_of_a_control_record(record: QuorumRecord, kind: int, theirs: Any) -> None:
    key, value = encode_quorum_record(record)
    assert key == bytes([0, 0, 0, kind])
    found, size_bytes = entity_reader(theirs)(value, 0)
    assert size_bytes == len(value)
    assert found.version == 0


def test_voters_have_their_folder_their_addresses_and_their_versions() -> None:
    found, _ = entity_reader(KioVoters)(encode_quorum_record(VOTERS)[1], 0)
    (voter,) = found.voters
    (endpoint,) = voter.endpoints
    assert (voter.voter_id, voter.voter_directory_id) == (1000, FOLDER)
    assert (endpoint.name, endpoint.host, endpoint.port) == ("CONTROLLER", "h", 9093)
    feature = voter.k_raft_version_feature
    assert (feature.min_supported_version, feature.max_supported_version) == (0, 1)
