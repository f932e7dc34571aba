"""What a broker puts into the bucket of its open segments is read, each record once."""

from __future__ import annotations

import threading

import pytest

from strandline.spark_lake import count, scan
from strandline.spark_lake.query.arrow_scan import make_query
from tests.conftest import S3Bucket
from tests.support.broker import eventually
from tests.system.tiers.conftest import MakeBroker
from tests.system.tiers.log_client import end_of, make_batches
from tests.system.tiers.tiered_broker import SEGMENT_BYTES, TIERED, WAIT_S, Archive

pytestmark = [pytest.mark.slow, pytest.mark.s3]

TOPIC = "open"
ROUNDS = 8


def test_records_of_the_open_segment_are_read_once_while_it_grows_closes_and_is_archived(
    make_broker: MakeBroker, s3_bucket: S3Bucket, archive: Archive
) -> None:
    """Objects of pieces go at once, so that readers lose what they planned all the time."""
    broker = make_broker(settings={"strandline.remote.active.segment.upload.ms": "100"})
    broker.start()
    options = {"s3.endpoint.url": s3_bucket.endpoint_url}
    written = make_batches(size_bytes=ROUNDS * SEGMENT_BYTES // 2)
    end = end_of(written)
    with broker.client(TOPIC) as client:
        client.create_topic({**TIERED, "segment.bytes": str(SEGMENT_BYTES)})
        step = max(1, len(written) // 60)
        client.produce(written[:step])
        eventually(lambda: archive.manifest(TOPIC) is not None, timeout_s=WAIT_S)
        done = threading.Event()

        def produce() -> None:
            for start in range(step, len(written), step):
                client.produce(written[start : start + step])
                done.wait(0.1)
            done.set()

        producing = threading.Thread(target=produce)
        producing.start()
        seen = [0]
        queries = 0
        while not done.is_set() or seen[-1] < end:
            query = make_query(s3_bucket.url, TOPIC, columns=["offset"], options=options)
            plan = query.plan(query.open())
            done.wait(0.15)
            offsets = [
                offset
                for split in plan.splits
                for batch in query.read(split, query.open())
                for offset in batch.column("offset").to_pylist()
            ]
            assert offsets == list(range(len(offsets)))
            seen.append(len(offsets))
            queries += 1
            assert queries < 2000
        producing.join(WAIT_S)
        # The last closed one may still be on its way, and its pieces be what was read.
        archived = broker.wait_until_archived(client)
    assert seen == sorted(seen)
    assert 0 < archived < end
    broker.kill()
    assert count(s3_bucket.url, TOPIC, options=options) == end
    assert scan(s3_bucket.url, TOPIC, options=options).read_all().num_rows == end
    closed = {**options, "includeOpenSegment": False}
    assert count(s3_bucket.url, TOPIC, options=closed) == archived
