"""The third part of `make takeover`: the metadata log of an Apache Kafka, and one of ours.

Kafka       a controller and broker: topics, properties, users, ACLs; stopped
strandline  reads the segments and the checkpoint of its __cluster_metadata-0
            kafka-dump-log --cluster-metadata-decoder prints the same records
strandline  writes a segment and a checkpoint of every type of record
Kafka       kafka-dump-log prints what we wrote
"""

from __future__ import annotations

import base64
import json
import subprocess
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from bench.comparison.peers import Kafka, kafka_java
from strandline.broker.cluster.metadata.features import first_levels
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.cluster.metadata.log_format import encode_snapshot
from strandline.broker.cluster.metadata.records import topic_records
from strandline.broker.protocol.formats.metadata_records import (
    MetadataRecord,
    decode_record,
    encode_record,
    record_from_json,
    record_to_json,
)
from strandline.broker.protocol.formats.struct_json import Json
from strandline.storage.records.batch.any_batch import walk
from strandline.storage.records.batch.record import Record, encode_batch, iter_records

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "tests/unit/broker/protocol/formats/kafka_metadata_records.jsonl"
WAIT_S = 60.0
# Keys and values of the control records around a snapshot: version | type 3 and 4, see KIP-630.
SNAPSHOT_HEADER = (b"\x00\x00\x00\x03", b"\x00\x00" + bytes(8) + b"\x00")
SNAPSHOT_FOOTER = (b"\x00\x00\x00\x04", b"\x00\x00\x00")


def run(folder: Path, say: Callable[[str], None]) -> None:
    """Raises AssertionError at what is not as it must be."""
    kafka = Kafka(
        folder,
        settings={
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "metadata.log.max.record.bytes.between.snapshots": "1000",
        },
    )
    try:
        kafka.start()
        change(AdminClient({"bootstrap.servers": kafka.bootstrap}))
    finally:
        kafka.end()
    files = sorted((folder / "data" / "__cluster_metadata-0").glob("*[0-9].*"))
    read = [path for path in files if path.suffix in (".log", ".checkpoint")]
    assert {path.suffix for path in read} == {".log", ".checkpoint"}, files
    seen: set[str] = set()
    for path in read:
        records = list(records_in(path.read_bytes()))
        compare(records, dumped(path), path)
        seen |= {type(record).__name__ for record in records}
    say(
        f"the metadata log of Kafka: {len(seen)} types of records read as kafka-dump-log reads them"
    )
    for path in write(folder / "ours" / "__cluster_metadata-0"):
        records = list(records_in(path.read_bytes()))
        compare(records, dumped(path), path)
        say(f"{path.name}: kafka-dump-log reads the {len(records)} records that we wrote")


def change(admin: AdminClient) -> None:
    """Makes a record of most types."""
    topics = [NewTopic(name, 3, 1, config={"retention.ms": "-1"}) for name in ("a", "b")]
    _wait(admin.create_topics(topics))
    _wait(admin.create_partitions([NewPartitions("a", 5)]))
    _wait(admin.delete_topics(["b"]))
    for kind, name, key, value in (
        (ConfigResource.Type.TOPIC, "a", "segment.ms", "3600000"),
        (ConfigResource.Type.BROKER, "1", "log.cleaner.threads", "2"),
    ):
        entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(kind, name, incremental_configs=[entry])
        _wait(admin.incremental_alter_configs([resource]))
    credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    _wait(admin.alter_user_scram_credentials([UserScramCredentialUpsertion("u", credential, b"p")]))
    acl = AclBinding(
        ResourceType.TOPIC,
        "a",
        ResourcePatternType.LITERAL,
        "User:u",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    _wait(admin.create_acls([acl]))


def _wait(futures: object) -> None:
    assert isinstance(futures, dict)
    for future in futures.values():
        future.result(WAIT_S)


def records_in(content: bytes) -> Iterator[MetadataRecord]:
    """The records that are not of the log itself."""
    for batch in walk(content, verify_crc=True):
        if not batch.header.is_control:
            for record in iter_records(content, batch.header, batch.position):
                assert record.value is not None
                yield decode_record(bytes(record.value))


def dumped(path: Path) -> list[dict[str, Json]]:
    """The JSON of each record that kafka-dump-log prints."""
    command = kafka_java(
        "org.apache.kafka.tools.DumpLogSegments",
        *("--cluster-metadata-decoder", "--skip-record-metadata", "--files", str(path)),
    )
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = [line.partition("payload: ")[2] for line in out.splitlines() if "payload: {" in line]
    return [json.loads(text) for text in found]


def compare(ours: Iterable[MetadataRecord], kafkas: Sequence[dict[str, Json]], path: Path) -> None:
    for record, theirs in zip(ours, kafkas, strict=True):
        assert record_from_json(theirs) == record, (path, theirs)
        again = record_to_json(record)
        assert again == theirs or again["version"] != theirs["version"], (path, theirs)


def write(folder: Path) -> list[Path]:
    """A segment and a checkpoint that hold a record of every type, and a snapshot of ours."""
    folder.mkdir(parents=True)
    lines = RECORDS.read_text().splitlines()
    values = [encode_record(record_from_json(json.loads(line)["record"])) for line in lines]
    records = [Record(offset=o, timestamp_ms=1, key=None, value=v) for o, v in enumerate(values)]
    segment = folder / f"{0:020d}.log"
    segment.write_bytes(encode_batch(records, leader_epoch=1))
    checkpoint = folder / f"{len(records):020d}-{1:010d}.checkpoint"
    checkpoint.write_bytes(
        _control(SNAPSHOT_HEADER, 0)
        + encode_batch(
            [Record(offset=r.offset + 1, timestamp_ms=1, key=None, value=r.value) for r in records],
            leader_epoch=1,
        )
        + _control(SNAPSHOT_FOOTER, len(records) + 1)
    )
    # As it lies in a snapshot of the broker's metadata log.
    image = MetadataImage().apply_entry(
        [*first_levels(), *topic_records("t", uuid.uuid4(), ((1,),) * 3, {"retention.ms": "1"})]
    )
    document = json.loads(encode_snapshot(image, head_checksum="0"))
    ours = folder / f"{0:020d}-{0:010d}.checkpoint"
    ours.write_bytes(base64.b64decode(document["records"]))
    return [segment, checkpoint, ours]


def _control(content: tuple[bytes, bytes], offset: int) -> bytes:
    key, value = content
    record = Record(offset=offset, timestamp_ms=1, key=key, value=value)
    return encode_batch([record], leader_epoch=1, control=True)
