"""The errors of the storage layers, in three families.

    StrandlineError
    ├── RecordsRejected      *they* sent records or asked for offsets that cannot be served
    └── StorageError         *the world* failed: disk, object store, a damaged file
        ├── DiskError
        └── TierError        the object store; 404, 403, timeout and bad checksum stay four classes

*We* being wrong is an `assert`, never one of these. `kafka_code` is the error code of the Kafka
protocol that a client is told; the numbers are from the protocol's error table.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import ClassVar, NamedTuple


class RecordError(NamedTuple):
    """Why one record of a batch is refused; `batch_index` counts from the batch's first."""

    batch_index: int
    message: str


class StrandlineError(Exception):
    """Root of every error that strandline raises on purpose."""

    kafka_code: ClassVar[int] = -1  # UNKNOWN_SERVER_ERROR


# --- they ------------------------------------------------------------------------------------


class RecordsRejected(StrandlineError):
    """The request named records or offsets that cannot be appended or read; nothing was changed.

    `record_errors` names the invalid records, if the fault is in single ones (KIP-467).
    """

    def __init__(self, message: str, *, record_errors: Sequence[RecordError] = ()) -> None:
        super().__init__(message)
        self.record_errors = tuple(record_errors)


class CorruptRecords(RecordsRejected):
    """Bytes that are not a record batch: bad CRC, impossible length, unknown magic."""

    kafka_code = 2  # CORRUPT_MESSAGE


class DecompressedTooLarge(CorruptRecords):
    """Records that would take more memory than their reader allows.

    Producers split the batch at this code, and do not send it again as it is.
    """

    kafka_code = 10  # MESSAGE_TOO_LARGE


class InvalidRecords(RecordsRejected):
    """A well-formed batch that breaks the rules of a produce request (Kafka's LogValidator)."""

    kafka_code = 87  # INVALID_RECORD


class InvalidTimestamp(RecordsRejected):
    """A record timestamp outside `message.timestamp.{before,after}.max.ms`."""

    kafka_code = 32  # INVALID_TIMESTAMP


class UnsupportedCodec(RecordsRejected):
    """A compression codec that does not exist, or not in this version of the request."""

    kafka_code = 76  # UNSUPPORTED_COMPRESSION_TYPE


class MessageTooLarge(RecordsRejected):
    """A batch larger than `max.message.bytes`."""

    kafka_code = 10  # MESSAGE_TOO_LARGE


class RecordListTooLarge(RecordsRejected):
    """A batch larger than a whole segment may be."""

    kafka_code = 18  # RECORD_LIST_TOO_LARGE


class OffsetOutOfRange(RecordsRejected):
    """An offset below the log start or above the end."""

    kafka_code = 1  # OFFSET_OUT_OF_RANGE


class OutOfOrderSequence(RecordsRejected):
    """An idempotent producer skipped a sequence number."""

    kafka_code = 45  # OUT_OF_ORDER_SEQUENCE_NUMBER


class InvalidProducerEpoch(RecordsRejected):
    """A producer with an older epoch than the log has seen."""

    kafka_code = 47  # INVALID_PRODUCER_EPOCH


class ReadOnlyReplica(RecordsRejected):
    """This broker serves another one's archive and takes no records."""

    kafka_code = 44  # POLICY_VIOLATION

    def __init__(self) -> None:
        super().__init__("this broker is a read-only replica of another one's archive")


class ArchiveLost(RecordsRejected):
    """Another broker owns this one's archive, so that the records would lie on one disk alone.

    As of a replica: producers fail, and do not try again.
    """

    kafka_code = 44  # POLICY_VIOLATION


class InvalidConfig(StrandlineError):
    """A configuration key or value that is refused; the message names it and the remedy."""

    kafka_code = 40  # INVALID_CONFIG


class UnknownTopic(InvalidConfig):
    """An archive has no topic of the given name; as a command's end this is no usage error."""


# --- the world -------------------------------------------------------------------------------


class StorageError(StrandlineError):
    """Disk or object store failed; the class says what to do about it."""

    kafka_code = 56  # KAFKA_STORAGE_ERROR


# The disk has no room for this process at present; existing data stay good.
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_TOO_MANY_OPEN = frozenset({errno.EMFILE, errno.ENFILE})
# This process, or the whole machine, is short of something that is not the disk.
_SHORT = _TOO_MANY_OPEN | {errno.ENOMEM, errno.EINTR, errno.EAGAIN}


class DiskError(StorageError):
    """A local file operation failed; raised from the OSError that says why, if there was one."""

    @property
    def is_full(self) -> bool:
        """Whether the disk is only full: then nothing is broken, and room may be made."""
        return isinstance(self.__cause__, OSError) and self.__cause__.errno in NO_ROOM

    @property
    def is_out_of_descriptors(self) -> bool:
        """Whether a file could not be opened, as this process has too many open: nothing was done.

        Clients can cause this: each connection is a descriptor.
        """
        return isinstance(self.__cause__, OSError) and self.__cause__.errno in _TOO_MANY_OPEN

    @property
    def condemns_folder(self) -> bool:
        """Whether the log folder of the failed file cannot be trusted any more."""
        cause = self.__cause__
        return isinstance(cause, OSError) and cause.errno not in NO_ROOM | _SHORT


class OutOfResources(StorageError):
    """The process has no memory left or may start no more threads; the caller waits."""


class LogDirLocked(DiskError):
    """Another process holds the log folder."""


class CorruptFile(StorageError):
    """A local file or a remote object whose magic, version or checksum is wrong."""


class UnsupportedFormat(StorageError):
    """A file or object written by a newer strandline (or by something else)."""

    @classmethod
    def of_version(cls, what: str, found: object, known: range) -> UnsupportedFormat:
        """`what` names the file or object, and its format; the text says what to do."""
        reads = f"{known.start}" if len(known) == 1 else f"{known.start} to {known.stop - 1}"
        if isinstance(found, int) and found < known.start:
            advice = "a state before the first release wrote it: strandline docs how-to/upgrade"
        else:
            advice = "a later release wrote it, start that one or a newer one"
        return cls(f"{what} version {found}, this release reads {reads}: {advice}")


class TierError(StorageError):
    """An object-store operation failed."""

    def __init__(self, key: str, operation: str, detail: str = "") -> None:
        # The key is empty in errors of the whole store.
        request = f"{operation} {key}".rstrip()
        super().__init__(f"{request}: {detail}" if detail else request)
        self.key = key
        self.operation = operation
        self.detail = detail


class ObjectNotFound(TierError):
    """404: the key (or the bucket) does not exist."""


class AccessDenied(TierError):
    """403 or 401: the credentials may not do this."""


class TierUnavailable(TierError):
    """Timeout, refused or reset connection, 5xx, throttling: try again later."""


class StoreFull(TierError):
    """The store has no room; its objects can be read, and deleted to make some."""


class ObjectCorrupt(TierError):
    """The object's bytes or size are not what the manifest promises."""


class ObjectArchived(TierError):
    """The object lies in a storage class that must be restored first (InvalidObjectState)."""


class PreconditionFailed(TierError):
    """A conditional write lost: the object exists already, or is no longer the one we read."""


class ManifestFenced(TierError):
    """A manifest with a higher epoch or version was found: this broker is no longer the owner."""
