"""A batch is the same bytes whichever tier answers the fetch, for every codec and batch size.

first broker    everything is local: every batch is fetched and kept
second broker   everything is archived, no local copy is left: every batch is fetched again
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest

from strandline.storage.records.batch.batch import read_header
from strandline.storage.records.compression import Codec
from tests.conftest import make_bucket
from tests.support.ministack import ServerProcess
from tests.system.tiers.log_client import EARLIEST_LOCAL, LogClient, end_of, make_batches
from tests.system.tiers.tiered_broker import SEGMENT_BYTES, TIERED, Archive, TieredBroker

pytestmark = [pytest.mark.slow, pytest.mark.s3]

# Nearly max.message.bytes: almost a segment, so that borders fall right behind it.
LARGE_RECORD_BYTES = 1_000_000
every_codec = pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name.lower())


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A broker whose logs are wholly archived, and what was fetched before they were."""

    broker: TieredBroker
    archive: Archive
    sent: Mapping[Codec, list[bytes]]
    fetched_locally: Mapping[Codec, list[bytes]]

    def client(self, codec: Codec) -> LogClient:
        return self.broker.client(topic_of(codec))

    def segment_borders(self, codec: Codec) -> list[int]:
        """End offsets of all archived segments but the last."""
        return [entry.end_offset for entry in self.archive.segments(topic_of(codec))[:-1]]


def topic_of(codec: Codec) -> str:
    return f"bytes-{codec.name.lower()}"


def batches_of_every_size(codec: Codec) -> list[bytes]:
    """Single tiny records, batches of many, and batches as large as a broker takes."""
    shapes = [
        {"size_bytes": 2_000, "record_count": 1, "record_bytes": 1},
        {"size_bytes": SEGMENT_BYTES // 2, "record_count": 100, "record_bytes": 160},
        {"size_bytes": SEGMENT_BYTES, "record_count": 1, "record_bytes": LARGE_RECORD_BYTES},
        {"size_bytes": SEGMENT_BYTES // 2, "record_count": 7, "record_bytes": 9_001},
        {"size_bytes": 1, "record_count": 1, "record_bytes": 1},
    ]
    batches: list[bytes] = []
    for shape in shapes:
        base_offset = end_of(batches) if batches else 0
        batches += make_batches(base_offset=base_offset, codec=codec, seed=codec, **shape)
    return batches


@pytest.fixture(scope="module")
def moved(ministack: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Moved]:
    bucket = make_bucket(ministack.endpoint_url)
    broker = TieredBroker(tmp_path_factory.mktemp("same-bytes"), bucket)
    sent: dict[Codec, list[bytes]] = {}
    fetched: dict[Codec, list[bytes]] = {}
    with broker:
        for codec in Codec:
            with broker.client(topic_of(codec)) as client:
                client.create_topic(TIERED)
                sent[codec] = client.produce(batches_of_every_size(codec))
                fetched[codec] = client.read(0, end_of(sent[codec]))
                assert client.offset_at(EARLIEST_LOCAL) == 0
        broker.stop()
        broker.settings["log.local.retention.ms"] = "1"
        broker.start()
        for codec in Codec:
            with broker.client(topic_of(codec)) as client:
                assert broker.wait_until_all_cold(client) == end_of(sent[codec])
        yield Moved(broker=broker, archive=Archive.open(bucket), sent=sent, fetched_locally=fetched)


@every_codec
def test_a_batch_fetched_from_the_archive_is_the_one_fetched_from_disk(
    moved: Moved, codec: Codec
) -> None:
    local = moved.fetched_locally[codec]
    with moved.client(codec) as client:
        cold = client.read(0, end_of(local))
    assert cold == local
    # And the one that was sent, but for the two fields that a broker stamps.
    assert cold == moved.sent[codec]


@every_codec
def test_an_archived_segment_is_the_bytes_of_its_batches_and_nothing_else(
    moved: Moved, codec: Codec
) -> None:
    entries = moved.archive.segments(topic_of(codec))
    assert len(entries) >= 3
    in_bucket = b"".join(moved.archive.store.get(entry.log_key) for entry in entries)
    assert in_bucket == b"".join(moved.fetched_locally[codec])


@pytest.mark.parametrize("bytes_max", [1, 20_000, 300_000, 50_000_000])
def test_the_archive_reads_the_same_in_answers_of_any_size(moved: Moved, bytes_max: int) -> None:
    local = moved.fetched_locally[Codec.ZSTD]
    with moved.client(Codec.ZSTD) as client:
        assert client.read(0, end_of(local), bytes_max=bytes_max) == local


def test_a_fetch_from_inside_an_archived_batch_gets_the_whole_batch(moved: Moved) -> None:
    with moved.client(Codec.LZ4) as client:
        for batch in moved.fetched_locally[Codec.LZ4][-8:]:
            header = read_header(batch)
            middle = header.base_offset + header.last_offset_delta // 2
            for offset in {header.base_offset, middle, header.last_offset}:
                records = client.fetch_records(offset, bytes_max=1)
                assert records == batch, offset


def test_a_fetch_at_the_border_of_two_archived_segments_neither_repeats_nor_skips(
    moved: Moved,
) -> None:
    batches = {read_header(batch).base_offset: batch for batch in moved.sent[Codec.SNAPPY]}
    ends = {read_header(batch).next_offset: batch for batch in moved.sent[Codec.SNAPPY]}
    borders = moved.segment_borders(Codec.SNAPPY)
    assert borders
    with moved.client(Codec.SNAPPY) as client:
        for border in borders:
            before, after = ends[border], batches[border]
            assert client.fetch_records(border - 1, bytes_max=1) == before
            assert client.fetch_records(border, bytes_max=1) == after
            across = client.read(border - 1, border + 1, bytes_max=3 << 20)
            assert across == [before, after]
