"""The log of one partition of a coordinator's topic: append, wait, and the code of what fails.

    append        in the page cache when it returns; one that fails changes nothing
    settled       the answer may leave: all that was written before, also by others, is below the
                  high watermark, and an own record on the device if `flush.messages` demands it

So no other coordinator ever knows less than an answer told, also that of a read (Kafka's
CoordinatorRuntime defers those as well).
A lone replica's append is below the high watermark when it returns, and so nothing waits for it.

The codes are those of Kafka's CoordinatorOperationExceptionHelper: clients look for the coordinator
again if its log is not writable here, and get the code of a record that its log refuses.
"""

from __future__ import annotations

import asyncio
import logging

from strandline.broker.cluster.replicas.partition import Partition
from strandline.broker.coordination.model.classic_messages import CoordinatorFault
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.errors import RecordsRejected, StorageError, StrandlineError
from strandline.storage.local.log.log import AppendOrigin
from strandline.storage.model import Offset
from strandline.storage.quiet_log import QuietLog

# Limit of a wait for the high watermark: the default of Kafka's offsets.commit.timeout.ms.
REPLICATION_TIMEOUT_S = 5.0

# The request is wrong, not the broker.
_CODES_OF_REQUESTS = (
    ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.MESSAGE_TOO_LARGE,
)


class Journal:
    """Writes the records of one coordinator. Used on the event loop only."""

    __slots__ = ("_content", "_has_resigned", "_partition", "_quiet_log", "_waiting")

    def __init__(self, partition: Partition, content: str, quiet_log: QuietLog) -> None:
        """`content` names the records in log messages; `quiet_log` logs writes that fail."""
        self._partition = partition
        self._content = content
        self._quiet_log = quiet_log
        self._waiting: set[_Replicated] = set()
        self._has_resigned = False

    @property
    def is_replicated(self) -> bool:
        """Whether all that was appended is below the high watermark."""
        return self.is_below(self._partition.log.end_offset)

    def is_below(self, end_offset: Offset) -> bool:
        return self._partition.high_watermark >= end_offset

    def append(
        self, batch: bytearray, *, too_large: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR
    ) -> None:
        """Appends one batch. Raises CoordinatorFault with the code of the answer."""
        if self._has_resigned:
            # The partition may be led here again, by whoever has loaded what came between.
            raise CoordinatorFault(ErrorCode.NOT_COORDINATOR)
        leading = self._partition.leading
        try:
            if leading is not None:
                leading.check_enough_in_sync()
            self._partition.append(memoryview(batch), origin=AppendOrigin.COORDINATOR)
        except (RecordsRejected, StorageError) as error:
            code = _code_of(error, too_large)
            if code not in _CODES_OF_REQUESTS:
                self._log_failed(error)
            raise CoordinatorFault(code) from error

    def _log_failed(self, error: StrandlineError) -> None:
        """Logs it once a minute: refused clients retry at once."""
        where = self._partition.topic_partition
        self._quiet_log.say(
            logging.WARNING,
            f"{self._content} record not written",
            where,
            {"partition": str(where), "error": str(error)},
        )

    async def settled(self, *, must_flush: bool = False) -> None:
        """Returns when what a request wrote or read may be answered. Raises CoordinatorFault.

        With `must_flush` it is on this device then, whatever `flush.messages` says.
        """
        end_offset = self._partition.log.end_offset
        if must_flush or self._partition.must_flush:
            await self.flush()
        if not self.is_below(end_offset):
            await self._wait_below(end_offset)

    async def flush(self) -> None:
        """Returns when what was written is on this device. Raises CoordinatorFault."""
        try:
            await self._partition.flush()
        except StorageError as error:
            raise CoordinatorFault(_code_of(error)) from error

    async def _wait_below(self, end_offset: Offset) -> None:
        waiter = _Replicated(self._partition, end_offset)
        self._waiting.add(waiter)
        self._partition.wait(waiter)
        try:
            async with asyncio.timeout(REPLICATION_TIMEOUT_S):
                await waiter.told
        except TimeoutError as error:
            # As Kafka's coordinators: the records may count yet, and the client asks again.
            raise CoordinatorFault(ErrorCode.COORDINATOR_NOT_AVAILABLE) from error
        finally:
            self._partition.stop_waiting(waiter)
            self._waiting.discard(waiter)
        if not self.is_below(end_offset):
            raise CoordinatorFault(ErrorCode.NOT_COORDINATOR)

    def resign(self) -> None:
        """Ends all waits, and takes no more records: another broker answers now."""
        self._has_resigned = True
        for waiter in self._waiting:
            waiter.on_gone()


class _Replicated:
    """Waits until the high watermark reaches an offset, or cannot any more."""

    def __init__(self, partition: Partition, end_offset: Offset) -> None:
        self.told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._partition = partition
        self._end_offset = end_offset

    def on_high_watermark(self, size_bytes: int) -> None:
        if self._partition.high_watermark >= self._end_offset:
            self.on_gone()

    def on_gone(self) -> None:
        if not self.told.done():
            self.told.set_result(None)


def _code_of(
    error: StrandlineError, too_large: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR
) -> ErrorCode:
    """Returns the code for the client whose records could not be written."""
    match ErrorCode(error.kafka_code):
        case ErrorCode.MESSAGE_TOO_LARGE | ErrorCode.RECORD_LIST_TOO_LARGE:
            return too_large
        case ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        case ErrorCode.NOT_ENOUGH_REPLICAS:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        case ErrorCode.KAFKA_STORAGE_ERROR | ErrorCode.NOT_LEADER_OR_FOLLOWER:
            return ErrorCode.NOT_COORDINATOR
        case code:
            return code
