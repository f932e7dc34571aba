"""A broker registers what others need to reach it."""

from __future__ import annotations

import uuid
from pathlib import Path

from strandline.broker.config.loading import load_config
from strandline.broker.protocol.formats.metadata_records import decode_record, encode_record
from strandline.broker.server.registration import new_registration
from strandline.storage.local.formats.checkpoint import encode_id
from tests.unit.storage.local.log_folders import open_dirs

LISTENERS = "PLAINTEXT://127.0.0.1:0,CLIENTS://0.0.0.0:9095"
ADVERTISED = "CLIENTS://kafka.example:9095"
PROTOCOLS = "CLIENTS:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT"


def test_a_registration_names_listeners_features_and_log_folders(tmp_path: Path) -> None:
    config = load_config(
        None,
        [
            "node.id=7",
            "broker.rack=zone-a",
            f"listeners={LISTENERS}",
            f"advertised.listeners={ADVERTISED}",
            f"listener.security.protocol.map={PROTOCOLS}",
            "sasl.enabled.mechanisms=SCRAM-SHA-256",
        ],
    )
    dirs = open_dirs(tmp_path)
    record, again = (new_registration(config, dirs) for _ in range(2))
    found = [(one.name, one.host, one.port, one.security_protocol) for one in record.end_points]
    # Port 0 is chosen by the system, after the registration.
    assert found == [("PLAINTEXT", "127.0.0.1", 0, 0), ("CLIENTS", "kafka.example", 9095, 2)]
    levels = [(f.name, f.min_supported_version, f.max_supported_version) for f in record.features]
    assert levels == [
        ("metadata.version", 7, 25),
        ("group.version", 0, 1),
        ("transaction.version", 0, 2),
    ]
    assert (record.broker_id, record.rack, record.fenced) == (7, "zone-a", False)
    assert [encode_id(one) for one in record.log_dirs] == [
        directory.directory_id for directory in dirs.directories
    ]
    # Each process is another incarnation.
    assert record.incarnation_id != again.incarnation_id != uuid.UUID(int=0)
    assert decode_record(encode_record(record)) == record
    dirs.close()
