"""A fetch of several cold partitions holds no more than was asked for, and no partition starves."""

from __future__ import annotations

import pytest

from strandline.storage.records.batch.batch import read_header
from tests.support.broker import eventually
from tests.system.tiers.log_client import LogClient, end_of, make_batches
from tests.system.tiers.tiered_broker import (
    FREE_LOCALLY,
    SEGMENT_BYTES,
    TIERED,
    WAIT_S,
    TieredBroker,
)

pytestmark = [pytest.mark.slow, pytest.mark.s3]

TOPICS = ["a", "b", "c", "d"]
BATCHES = {
    topic: make_batches(size_bytes=3 * SEGMENT_BYTES // 2, seed=seed)
    for seed, topic in enumerate(TOPICS)
}
BATCH_BYTES = max(len(batch) for batches in BATCHES.values() for batch in batches)
COLD_END = 64


@pytest.fixture
def cold(broker: TieredBroker) -> TieredBroker:
    """Four topics whose first segment is in the archive alone."""
    for topic, batches in BATCHES.items():
        with broker.client(topic) as client:
            client.create_topic({**TIERED, **FREE_LOCALLY})
            client.produce(batches)
            broker.wait_until_archived(client)
            assert broker.wait_until_freed(client) >= COLD_END
    return broker


def fetch(client: LogClient, offsets: dict[str, int], bytes_max: int) -> dict[str, list[bytes]]:
    """One fetch of all of them that brought something; it keeps to its limit."""
    found: dict[str, list[bytes]] = {}

    def brings_something() -> bool:
        answers = client.fetch_many(offsets, bytes_max=bytes_max)
        assert {answer.error_code for answer in answers.values()} == {0}
        found.update({topic: answer.batches for topic, answer in answers.items()})
        return any(found.values())

    eventually(brings_something, timeout_s=WAIT_S)
    batches = [batch for of_topic in found.values() for batch in of_topic]
    # One batch comes however large it is.
    assert sum(map(len, batches)) <= bytes_max or len(batches) == 1
    return found


@pytest.mark.parametrize("bytes_max", [1_000, BATCH_BYTES * 5 // 4, 3 * BATCH_BYTES, 1 << 20])
def test_cold_partitions_share_what_a_fetch_may_hold(cold: TieredBroker, bytes_max: int) -> None:
    read: dict[str, list[bytes]] = {topic: [] for topic in TOPICS}
    offsets = dict.fromkeys(TOPICS, 0)
    with cold.client(TOPICS[0]) as client:
        while any(offset < COLD_END for offset in offsets.values()):
            # As clients do, whoever had something comes last the next time.
            for topic, batches in fetch(client, offsets, bytes_max).items():
                if batches:
                    read[topic] += batches
                    del offsets[topic]
                    offsets[topic] = end_of(batches)
    for topic, batches in read.items():
        assert batches == BATCHES[topic][: len(batches)]
        assert read_header(batches[-1]).next_offset >= COLD_END
