"""Reads the log of a coordinator's partition in runs, for its replay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from strandline.broker.protocol.schema.errors import MalformedRequest
from strandline.storage.errors import CorruptFile
from strandline.storage.model import Buffer, Isolation, Offset
from strandline.storage.tiering.log.unified_log import UnifiedLog

# Some thousand records: enough to make few round trips to the worker, little enough not to keep
# the interpreter from the loop for long.
CHUNK_BYTES = 256 * 1024

R = TypeVar("R")
# (batches, offset) -> the records from this offset on. Raises MalformedRequest, CorruptRecords.
DecodeRecords: TypeAlias = Callable[[Buffer, Offset], Iterator[R]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayChunk(Generic[R]):
    """A run of the log, decoded; the next one begins at `next_offset`."""

    records: tuple[R, ...]
    next_offset: Offset


def read_chunk(
    log: UnifiedLog, offset: Offset, end_offset: Offset, decode: DecodeRecords[R]
) -> ReplayChunk[R]:
    """Reads and decodes some batches from `offset` on, before `end_offset`. Blocks on the disk.

    Raises StorageError, CorruptRecords; CorruptFile for a record that is not in Kafka's format.
    """
    chunk = log.read(offset, bytes_max=CHUNK_BYTES, isolation=Isolation.LOG_END)
    if chunk is None or chunk.range is None:
        raise CorruptFile(f"{log.topic_partition}: nothing at {offset}, before its end")
    try:
        records = tuple(decode(chunk.range.read(), offset))
    except MalformedRequest as error:
        raise CorruptFile(f"{log.topic_partition}: {error}") from error
    return ReplayChunk(records=records, next_offset=min(chunk.next_offset, end_offset))
