"""Work that a Produce answer waits for after the append: an fsync, or a check of timestamps.

    ToFlush    the records are in the log; the answer is an error if they do not reach the device
    ToBlame    the batch is refused for its header's max timestamp; a worker reads its records
               for those that are too new, so that their producer fails them alone (KIP-467)

Either modifies an answer in place before it is sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from strandline.broker.cluster.replicas.partition import Partition
from strandline.broker.handlers.produce.delayed import PendingReplication
from strandline.broker.protocol.messages.produce import (
    ProduceRecordError,
    ProduceResponsePartition,
)
from strandline.storage.errors import InvalidTimestamp, RecordsRejected, StorageError
from strandline.storage.local.log.append_rules import check_records
from strandline.storage.quiet_log import QuietLog


@dataclass(frozen=True, slots=True)
class PendingFlush:
    """An append whose answer waits for an fsync, and the position of that answer."""

    partition: Partition
    answers: list[ProduceResponsePartition]
    position: int


@dataclass(frozen=True, slots=True)
class PendingTimestampCheck:
    """A batch refused for its header's max timestamp, and the position of its answer."""

    partition: Partition
    answers: list[ProduceResponsePartition]
    position: int
    records: memoryview


Later: TypeAlias = PendingFlush | PendingTimestampCheck | PendingReplication


async def complete(
    later: Sequence[PendingFlush | PendingTimestampCheck],
    workers: Executor,
    *,
    now_ms: int,
    quiet_log: QuietLog,
) -> None:
    """Completes the waiting answers, in order. `workers` read the records."""
    for entry in later:
        if isinstance(entry, PendingFlush):
            await _flush(entry, quiet_log)
        else:
            await _blame(entry, workers, now_ms)


async def _flush(entry: PendingFlush, quiet_log: QuietLog) -> None:
    try:
        await entry.partition.flush()
    except StorageError as error:
        where = entry.partition.topic_partition
        quiet_log.say(
            logging.ERROR,
            "flush failed",
            where,
            {"partition": str(where), "error": str(error)},
        )
        entry.answers[entry.position] = ProduceResponsePartition(
            index=entry.answers[entry.position].index,
            error_code=error.kafka_code,
            error_message=str(error),
        )


async def _blame(entry: PendingTimestampCheck, workers: Executor, now_ms: int) -> None:
    """Names the records that are too new, if the header's max timestamp is right."""
    try:
        await asyncio.get_running_loop().run_in_executor(
            workers, partial(check_records, entry.records, entry.partition.log.config, now_ms)
        )
    except InvalidTimestamp as error:
        refused = entry.answers[entry.position]
        refused.record_errors = record_errors(error)  # type: ignore[misc]  # nobody has it yet
        refused.error_message = str(error)  # type: ignore[misc]
    except RecordsRejected:
        pass  # The batch is refused already.


def record_errors(error: RecordsRejected) -> list[ProduceRecordError]:
    """Converts the records that an error names for the answer."""
    return [
        ProduceRecordError(batch_index=wrong.batch_index, batch_index_error_message=wrong.message)
        for wrong in error.record_errors
    ]
