"""What a reader of committed records sees of a partition."""

from __future__ import annotations

import time

from strandline.broker.protocol.codec import codec
from strandline.broker.protocol.messages.fetch import FetchResponsePartition
from strandline.storage.records.batch.any_batch import iter_records, walk
from tests.support.wire import WireClient
from tests.system.calls import fetch

READ_COMMITTED = 1
PATIENCE_S = 60.0
ABORT_KEY = b"\0\0\0\0"


def committed_values(client: WireClient, topic: str, *, partition: int = 0) -> list[bytes]:
    """The values below the last stable offset, without those of aborted transactions."""
    values: list[bytes] = []
    offset = 0
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        answer = fetch(client, topic, offset, partition=partition, isolation_level=READ_COMMITTED)
        assert answer.error_code == 0, answer
        end_offset = take_committed(answer, offset, values)
        if end_offset == offset == answer.last_stable_offset:
            return values
        # A cold read may take longer than remote.fetch.max.wait.ms; the next one finds it ready.
        assert end_offset > offset or time.monotonic() < deadline_s, answer
        offset = end_offset


def is_stable(client: WireClient, topic: str, *, partition: int = 0) -> bool:
    """Whether the partition is served, and no transaction is open in it any more."""
    answer = fetch(client, topic, 0, partition=partition)
    return answer.error_code == 0 and answer.last_stable_offset == answer.high_watermark


def take_committed(answer: FetchResponsePartition, offset: int, values: list[bytes]) -> int:
    """Adds the committed values from `offset` on; returns where the answer ends.

    Filters as Kafka's consumers do: by the aborted transactions of the answer.
    """
    aborted = sorted(
        answer.aborted_transactions or (), key=lambda one: one.first_offset, reverse=True
    )
    aborting: set[int] = set()
    buffer = codec.join(answer.records)
    for batch in walk(buffer):
        header = batch.header
        while aborted and aborted[-1].first_offset <= header.last_offset:
            aborting.add(aborted.pop().producer_id)
        if header.is_control:
            for record in iter_records(buffer, header, batch.position):
                if bytes(record.key or b"") == ABORT_KEY:
                    aborting.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborting):
            values += (
                bytes(record.value or b"")
                for record in iter_records(buffer, header, batch.position)
                if record.offset >= offset
            )
        offset = header.next_offset
    return offset
