"""The answer to a fetch that is known again, from the log on this disk.

    offset        long way               here
    below local   the archive            None (fetch.py)
    local         records, or a wait     records; None where one would wait, or be told of an error

A consumer that reads on gets a thousand such answers per GB. Each sends a megabyte through a core
whose cache has one, and finds the interpreter's code and objects thrown out: what an answer costs
is how much of both it touches. So it takes the shortest way there is, and whatever is out of the
ordinary is left to `FetchHandler.handle`, which tests hold to the same bytes and the same counts.
"""

from __future__ import annotations

from strandline.broker.cluster.replicas.partition import Partition
from strandline.broker.handlers.fetch.fetch_again import FetchAgain
from strandline.broker.protocol.schema.schema import Part
from strandline.storage.errors import RecordsRejected, StorageError
from strandline.storage.model import Isolation, Offset


def local_answer(
    again: FetchAgain, correlation_id: int, partition: Partition, offset: Offset, bytes_max: int
) -> list[Part] | None:
    """Records from `offset` on, which is local. None if there are too few, or anything is special.

    `bytes_max` is what the broker puts into one answer at most.
    """
    unified_log = partition.log
    local = unified_log.local
    end_offset = local.end_offset
    last_stable_offset = local.last_stable_offset
    is_committed = again.isolation is Isolation.READ_COMMITTED
    readable_end = last_stable_offset if is_committed else end_offset
    if offset >= readable_end:
        return None
    bytes_max = min(again.bytes_max, bytes_max)
    try:
        read = local.read(
            offset,
            bytes_max=min(again.partition_bytes_max, max(bytes_max, 0)),
            end_offset=last_stable_offset if is_committed else None,
        )
    except (RecordsRejected, StorageError):
        return None
    found = read.range
    if found is None or (
        # Not all that is there, or all that was asked for: nothing to wait for.
        read.next_offset >= readable_end and found.length < min(again.min_bytes, bytes_max)
    ):
        return None
    if is_committed and local.aborted_transactions(offset, read.next_offset):
        return None
    traffic = partition.traffic
    traffic.fetch_requests += 1
    traffic.bytes_out += found.length
    told = end_offset, last_stable_offset, unified_log.log_start_offset
    return again.answer(correlation_id, told, (found,), found.length)
