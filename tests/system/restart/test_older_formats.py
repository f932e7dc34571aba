"""What an older state wrote is read for ever; what a later one wrote is refused, and left alone.

    formats/2026-11-20.tar.xz         the first state with a remote tier
    formats/2026-11-20-groups.tar.xz  groups, compaction, a mirror of the groups
    formats/2026-11-23.tar.xz         pages, pieces of an open segment, key filters, checksums of
                                      chunks, a compacted archive, what a clean stop notes
    formats/2026-11-29-offsets.tar.xz commits with the id of their topic; one is of a topic that was
                                      deleted and made again just before the stop
    formats/2026-11-29-records.tar.xz the same, after a start that converted its metadata log

In each lie `data`, a log folder after a clean stop, `bucket`, and `expected.json`: every record
that was acknowledged, log starts, properties, commits. They are never made anew: a format that
changes gets another archive beside them.
"""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from strandline.broker.cli import main
from strandline.spark_lake import scan
from strandline.storage.local.inspect.verify import verify_folders
from strandline.storage.remote.manifest.json_document import encode_document
from tests.support.broker import BrokerProcess, eventually
from tests.system.restart.written import archive_settings, expected_of, unpack

pytestmark = [pytest.mark.slow, pytest.mark.clients]

FORMATS = Path(__file__).parent / "formats"
# The one with the most kinds of files.
RICHEST = "2026-11-23"
WRITTEN = sorted(path.name.removesuffix(".tar.xz") for path in FORMATS.glob("*.tar.xz"))
READ_S = 60.0


def unpacked(name: str, folder: Path) -> Path:
    """What one state wrote."""
    unpack(FORMATS / f"{name}.tar.xz", folder)
    return folder


@pytest.fixture(params=WRITTEN)
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return unpacked(request.param, tmp_path)


def settings_of(folder: Path) -> dict[str, str]:
    return {**archive_settings(folder), "offsets.topic.num.partitions": "1"}


def bytes_of(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def must_have(expected: dict[str, Any], topic: str, start: int, end: int) -> dict[int, Any]:
    """What has to be read of partition 0, by offset.

    Of a compacted topic, the last record of each key, wherever it is: who reads only up to `end`
    may miss a key whose last record lies behind.
    """
    written = expected["records"][topic]["0"]
    rows = {offset: written[str(offset)] for offset in sorted(map(int, written))}
    if "compact" in expected["properties"][topic].get("cleanup.policy", ""):
        rows = {offset: rows[offset] for offset in {row[0]: o for o, row in rows.items()}.values()}
        rows = {o: row for o, row in rows.items() if None not in row[:2]}
    return {offset: row for offset, row in rows.items() if start <= offset < end}


def check_records(
    expected: dict[str, Any], topic: str, found: dict[int, Any], start: int, end: int
) -> None:
    """Each record as it was written, in order, and none missing of [start, end)."""
    assert list(found) == sorted(found), topic
    everything = expected["records"][topic]["0"]
    for offset, (key, value, headers, timestamp_ms) in found.items():
        wanted = everything[str(offset)]
        pairs = [(name, bytes_of(text)) for name, text in wanted[2]]
        stored = bytes_of(wanted[0]), bytes_of(wanted[1]), pairs, wanted[3]
        assert (key, value, headers, timestamp_ms) == stored, (topic, offset)
    assert must_have(expected, topic, start, end).keys() <= found.keys(), topic


def consumed(broker: BrokerProcess, topic: str) -> tuple[int, int, dict[int, Any]]:
    """Log start and end of partition 0, and its records."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "check",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    place = TopicPartition(topic, 0)
    start, end = consumer.get_watermark_offsets(place, timeout=READ_S)
    consumer.assign([TopicPartition(topic, 0, start)])
    found: dict[int, Any] = {}
    while (message := consumer.poll(READ_S)) is not None and message.error() is None:
        offset = message.offset()
        assert offset is not None
        assert offset not in found, (topic, offset)
        headers = list(message.headers() or ())
        found[offset] = (message.key(), message.value(), headers, message.timestamp()[1])
    consumer.close()
    return start, end, found


def check_broker(broker: BrokerProcess, expected: dict[str, Any], *, may_end_early: bool) -> None:
    """Records, log starts, properties and commits, as a client sees them."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for topic, properties in expected["properties"].items():
        start, end, found = consumed(broker, topic)
        if may_end_early and "remote.storage.enable" not in properties:
            assert (start, end) == (0, 0), topic
            continue
        assert start == expected["log_starts"][topic]["0"], topic
        written_end = max(map(int, expected["records"][topic]["0"])) + 1
        assert end <= written_end, topic
        assert end == written_end or may_end_early, topic
        check_records(expected, topic, found, start, end)
        resource = ConfigResource(ResourceType.TOPIC, topic)
        described = admin.describe_configs([resource])[resource].result(READ_S)
        assert {key: described[key].value for key in properties} == properties
    for group, rows in expected["commits"].items():
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
        places = [TopicPartition(topic, partition) for topic, partition, _ in rows]
        found_offsets = [one.offset for one in consumer.committed(places, timeout=READ_S)]
        consumer.close()
        for (topic, _, offset), at in zip(rows, found_offsets, strict=True):
            is_lost = may_end_early and "remote.storage.enable" not in expected["properties"][topic]
            assert at == (0 if is_lost else offset), (group, topic)


def test_a_folder_and_its_bucket_go_on(written: Path) -> None:
    expected = expected_of(written)
    broker = BrokerProcess(written, settings=settings_of(written))
    with broker:
        check_broker(broker, expected, may_end_early=False)
        assert broker.stop() == 0
    assert "Traceback" not in broker.log_text()
    assert verify_folders([written / "data"]).findings == []


def test_the_bucket_alone_is_enough(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For a check, for the lake, and for a broker that lost its disk."""
    expected, url = expected_of(written), f"file://{written}/bucket"
    assert main(["archive", "verify", "--remote", url]) == 0, capsys.readouterr()
    for topic, properties in expected["properties"].items():
        if "remote.storage.enable" in properties:
            rows = scan(url, topic, options={"includeHeaders": True}).read_all().to_pylist()
            found = {
                row["offset"]: (
                    row["key"],
                    row["value"],
                    [(pair["key"], pair["value"]) for pair in row["headers"] or ()],
                    round(row["timestamp"].timestamp() * 1000),
                )
                for row in rows
            }
            assert len(found) == len(rows) > 0, topic
            check_records(
                expected, topic, found, expected["log_starts"][topic]["0"], max(found) + 1
            )
    restored = written / "restored"
    given = {"node.id": "1", "log.dirs": str(restored / "data"), **settings_of(written)}
    sets = [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
    assert main(["restore", *sets]) == 0, capsys.readouterr()
    with BrokerProcess(restored, settings=settings_of(written)) as broker:
        check_broker(broker, expected, may_end_early=True)


def make_later(path: Path) -> None:
    """The document with the next version of its format."""
    fields = json.loads(path.read_bytes())
    del fields["crc32c"]
    name, version = fields.pop("format"), fields.pop("version") + 1
    path.write_bytes(encode_document(name, version, fields))


def test_a_start_is_refused_by_the_name_of_a_later_format(tmp_path: Path) -> None:
    folder = unpacked(RICHEST, tmp_path)
    make_later(folder / "bucket" / "cluster.json")
    with pytest.raises(
        AssertionError, match=r"cluster\.json: strandline-cluster version 2, .*later"
    ):
        BrokerProcess(folder, settings=settings_of(folder)).start()


def test_nothing_that_a_later_manifest_may_name_is_changed_or_deleted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """While orphans of its neighbour go: what names them is no more known than what is one."""
    folder = unpacked(RICHEST, tmp_path)
    topics = folder / "bucket" / "topics"
    (later,), (known,) = topics.glob("tier-*"), topics.glob("deep-*")
    make_later(later / "0" / "manifest.json")
    for partition in (later / "0", known / "0"):
        stray = partition / f"{7:020d}-0-{7:032x}.log"
        stray.write_bytes(b"named by nobody, or by a later field")
        os.utime(stray, (0, 0))
    before = {path: path.read_bytes() for path in later.rglob("*") if path.is_file()}
    main(["archive", "orphans", "--delete", "--yes", "--remote", f"file://{folder}/bucket"])
    assert not (known / "0" / stray.name).exists(), capsys.readouterr()
    with BrokerProcess(folder, settings=settings_of(folder)) as broker:
        eventually(lambda: "strandline-manifest version 2, this release" in broker.log_text())
        assert broker.stop() == 0
    assert {path: path.read_bytes() for path in later.rglob("*") if path.is_file()} == before
