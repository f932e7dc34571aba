"""Records of the metadata, byte for byte and word for word as Kafka's own classes write them.

`kafka_metadata_records.jsonl` was written once by the classes of Apache Kafka 4.4.0: each record in
each version, as bytes by MetadataRecordSerde, and as JSON by MetadataJsonConverters from those
bytes. `make takeover` asks kafka-dump-log.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

from strandline.broker.protocol.formats.metadata_records import (
    MetadataRecord,
    PartitionChangeRecord,
    TopicRecord,
    decode_record,
    encode_record,
    record_from_json,
    record_to_json,
)
from strandline.broker.protocol.formats.struct_json import Json
from strandline.broker.protocol.schema.errors import MalformedRequest

ROWS = [
    json.loads(line)
    for line in Path(__file__).with_name("kafka_metadata_records.jsonl").read_text().splitlines()
]
IDS = [f"{row['record']['type']}-{row['record']['version']}" for row in ROWS]
TOPIC_ID = uuid.UUID(int=77)
TOPIC = {"type": "TOPIC_RECORD", "version": 0, "data": {"name": "t", "topicId": "A" * 22}}


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_each_record_in_each_version_is_what_kafka_writes(row: dict[str, dict[str, Json]]) -> None:
    encoded = bytes.fromhex(str(row["bytes"]))
    record = decode_record(encoded)
    assert record_from_json(row["record"]) == record
    written = record_to_json(record)
    if written["version"] == row["record"]["version"]:
        assert written == row["record"]
        assert encode_record(record) == encoded
    assert decode_record(encode_record(record)) == record_from_json(written)


def test_every_type_of_record_is_compared() -> None:
    kinds = {type(decode_record(bytes.fromhex(row["bytes"]))) for row in ROWS}
    assert kinds == set(MetadataRecord.__subclasses__())


def test_a_field_that_nobody_set_is_no_change() -> None:
    record = PartitionChangeRecord(partition_id=1, topic_id=TOPIC_ID)
    found = decode_record(encode_record(record))
    assert found == record
    assert (record.leader, record.isr, record.leader_recovery_state) == (-2, None, -1)


@pytest.mark.parametrize(
    ("encoded", "fault"),
    [
        ("", "ends in the middle"),
        ("010200", "ends in the middle"),
        ("0002000273", "frame version 0"),
        ("010d00", "unknown type 13"),
        ("01020100", "version 1"),
        ("01140000ff", "left after NO_OP_RECORD"),
        ("0102000773", "ends in the middle|after the end"),
    ],
)
def test_damaged_and_unknown_bytes_are_refused(encoded: str, fault: str) -> None:
    with pytest.raises(MalformedRequest, match=fault):
        decode_record(bytes.fromhex(encoded))


def _without(name: str) -> dict[str, Json]:
    return {key: value for key, value in TOPIC.items() if key != name}


@pytest.mark.parametrize(
    "value",
    [
        _without("type"),
        _without("version"),
        _without("data"),
        {**TOPIC, "type": "LATER_RECORD"},
        {**TOPIC, "version": 1},
        {**TOPIC, "version": True},
        {**TOPIC, "data": {"topicId": "A" * 22}},
        {**TOPIC, "data": {"name": None, "topicId": "A" * 22}},
        {**TOPIC, "data": {"name": 7, "topicId": "A" * 22}},
        {**TOPIC, "data": {"name": "t", "topicId": "A" * 21}},
        {**TOPIC, "data": {"name": "t", "topicId": "!" * 22}},
    ],
)
def test_json_that_is_no_record_is_refused(value: dict[str, Json]) -> None:
    with pytest.raises(MalformedRequest):
        record_from_json(value)


@pytest.mark.parametrize("level", [2**15, -(2**15) - 1, 1.5, True, "1", None])
def test_numbers_have_the_width_of_their_field(level: Json) -> None:
    value: dict[str, Json] = {
        "type": "FEATURE_LEVEL_RECORD",
        "version": 0,
        "data": {"name": "group.version", "featureLevel": level},
    }
    with pytest.raises(MalformedRequest, match="featureLevel"):
        record_from_json(value)


def test_fields_of_a_later_kafka_are_skipped() -> None:
    data: dict[str, Json] = {"name": "t", "topicId": "A" * 22, "later": 1}
    expected = TopicRecord(name="t", topic_id=uuid.UUID(int=0))
    assert record_from_json({**TOPIC, "data": data}) == expected
    # A tagged field: tag 9, one byte.
    tagged = encode_record(expected)[:-1] + bytes([1, 9, 1, 0])
    assert decode_record(tagged) == expected
