"""kill -9, damage to what is left, and a start: the tail is cut, and indexes are made again."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.storage.records.batch.record import Record
from tests.support.broker import BrokerProcess
from tests.support.wire import WireClient
from tests.system.calls import (
    FIRST_TIMESTAMP_MS,
    append,
    batch,
    create_topic,
    fetch,
    offset_at,
    read_all,
    records_in,
)
from tests.system.restarting import (
    SMALL_SEGMENTS,
    last_segment,
    partition_folder,
)

pytestmark = [pytest.mark.slow, pytest.mark.crash]


def half_a_batch(base_offset: int) -> bytes:
    whole = stamped(base_offset)
    return whole[: len(whole) // 2]


def stamped(base_offset: int) -> bytes:
    """A batch as the broker stores it."""
    return struct.pack(">qii", base_offset, len(batch(2)) - 12, 0)[:12] + batch(2)[12:]


def with_a_flipped_bit(base_offset: int) -> bytes:
    damaged = bytearray(stamped(base_offset))
    damaged[-1] ^= 1
    return bytes(damaged)


GARBAGE: dict[str, Callable[[int], bytes]] = {
    "random bytes": lambda _: random.Random(7).randbytes(5000),
    "zeros": lambda _: bytes(70_000),
    "half a batch": half_a_batch,
    "a header only": lambda end: stamped(end)[:61],
    "eleven bytes": lambda end: stamped(end)[:11],
    "a batch with a flipped bit": with_a_flipped_bit,
    "a batch of another place": lambda end: stamped(end + 1000),
    "a batch that goes back": lambda _: stamped(0),
}


def test_garbage_at_the_tail_of_a_segment_is_cut(mortal: BrokerProcess, topic_name: str) -> None:
    """One topic for each kind of garbage; all the records before it stay."""
    topics = {what: f"{topic_name}-{number}" for number, what in enumerate(GARBAGE)}
    sizes: dict[str, int] = {}
    with WireClient(mortal.port) as client:
        for topic in topics.values():
            create_topic(client, topic)
            append(client, topic, *[batch(2)] * 5)
    mortal.kill()
    for what, topic in topics.items():
        segment = last_segment(mortal, topic)
        sizes[topic] = segment.stat().st_size
        with open(segment, "ab") as file:
            file.write(GARBAGE[what](10))
    mortal.start()
    with WireClient(mortal.port) as client:
        for what, topic in topics.items():
            assert last_segment(mortal, topic).stat().st_size == sizes[topic], what
            assert [record.offset for record in read_all(client, topic)] == list(range(10)), what
            assert append(client, topic, batch(2)) == 10, what
            assert len(read_all(client, topic)) == 12, what
    assert "log repaired" in mortal.log_text()


def test_a_torn_last_batch_is_cut_and_what_lies_before_it_stays(
    mortal: BrokerProcess, topic_name: str
) -> None:
    """As after a power cut: the file ends in the middle of the last batch."""
    with WireClient(mortal.port) as client:
        create_topic(client, topic_name)
        append(client, topic_name, *[batch(3)] * 3)
    mortal.kill()
    segment = last_segment(mortal, topic_name)
    with open(segment, "r+b") as file:
        file.truncate(segment.stat().st_size - 10)
    mortal.start()
    with WireClient(mortal.port) as client:
        assert [record.offset for record in read_all(client, topic_name)] == list(range(6))
        assert append(client, topic_name, batch()) == 6


def written_segments(client: WireClient, topic: str) -> list[Record]:
    """Fills four segments; what was written."""
    create_topic(client, topic, 1, {**SMALL_SEGMENTS, "index.interval.bytes": "4096"})
    for number in range(40):
        append(
            client,
            topic,
            batch(10, value=b"x" * 9000, first_timestamp_ms=FIRST_TIMESTAMP_MS + 10 * number),
        )
    return read_all(client, topic)


def remove(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def garble(path: Path) -> None:
    path.write_bytes(random.Random(11).randbytes(path.stat().st_size))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


@pytest.mark.parametrize("stop", [BrokerProcess.kill, BrokerProcess.stop])
def test_indexes_that_are_gone_or_damaged_are_rebuilt(
    mortal: BrokerProcess, topic_name: str, stop: Callable[[BrokerProcess], object]
) -> None:
    """After a clean stop as well, when nobody expects it."""
    damages: dict[str, Callable[[Path], None]] = {
        "removed": remove,
        "emptied": empty,
        "garbled": garble,
        "cut": cut,
    }
    topics = {what: f"{topic_name}-{what}" for what in damages}
    with WireClient(mortal.port) as client:
        written = {what: written_segments(client, topic) for what, topic in topics.items()}
    stop(mortal)
    for what, topic in topics.items():
        indexes = [
            path
            for path in partition_folder(mortal, topic).iterdir()
            if path.suffix in {".index", ".timeindex"} and path.stat().st_size > 5
        ]
        assert len(indexes) >= 6
        for path in indexes:
            damages[what](path)
    mortal.start()
    with WireClient(mortal.port) as client:
        for what, topic in topics.items():
            for offset in (0, 7, 123, 124, 125, 255, 399):
                (first, *_) = records_in(fetch(client, topic, offset))
                assert first.offset == offset - offset % 10, (what, offset)
                found = offset_at(client, topic, FIRST_TIMESTAMP_MS + offset)
                assert (found.offset, found.timestamp) == (
                    offset,
                    FIRST_TIMESTAMP_MS + offset,
                ), what
            assert read_all(client, topic) == written[what]
            segments = sorted(partition_folder(mortal, topic).glob("*.log"))
            assert len(segments) >= 4
            for segment in segments[:-1]:
                assert segment.with_suffix(".index").stat().st_size > 0, (what, segment)
                assert segment.with_suffix(".timeindex").stat().st_size > 0, (what, segment)


def test_a_missing_segment_in_the_middle_ends_the_log_there_and_is_said(
    mortal: BrokerProcess, topic_name: str
) -> None:
    """A log is a prefix of what was appended, never one with a hole."""
    with WireClient(mortal.port) as client:
        written_segments(client, topic_name)
    mortal.kill()
    segments = sorted(partition_folder(mortal, topic_name).glob("*.log"))
    segments[1].unlink()
    mortal.start()
    with WireClient(mortal.port) as client:
        found = [record.offset for record in read_all(client, topic_name)]
        assert found == list(range(int(segments[1].stem)))
        assert append(client, topic_name, batch()) == len(found)
    assert "log repaired" in mortal.log_text()
