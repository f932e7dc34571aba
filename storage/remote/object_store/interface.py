"""The interface of an object store, and the values that it takes and returns.

    key    `topics/orders-<uuid>/0/manifest.json`: relative to the store's root URL, components
           separated by `/`, none of them empty, `.` or `..`; no key is also the folder of another
    range  [start, end) in bytes

Every call is synchronous and thread-safe. Within a deadline it succeeds, or raises one of

    ObjectNotFound      404, the key does not exist
    AccessDenied        403 or 401, or no credentials
    ObjectArchived      the object must be restored from cold storage before it can be read
    ObjectCorrupt       the bytes are not those that were written, or fewer than requested
    PreconditionFailed  a conditional write lost
    StoreFull           no space is left: nothing was written; deletes still work
    BucketMissing       the root itself does not exist; says nothing about any key
    TierUnavailable     every transient failure: timeout, refused, reset, 5xx, throttled

A store retries transient failures itself, within its bounds. A `put` that ends in TierUnavailable
has an unknown outcome: the object may exist, or appear later. So no key is ever used twice, and
objects that must change in place (manifests) change by compare-and-swap.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import BinaryIO, Protocol, TypeAlias

from strandline.storage.errors import DiskError, ObjectCorrupt, TierUnavailable
from strandline.storage.model import Buffer, TimestampMs
from strandline.storage.system import crc32c

# S3's own bound; ours are a fifth of it.
KEY_BYTES_MAX = 1024

BLOCK_BYTES = 1024 * 1024


class BucketMissing(TierUnavailable):
    """The bucket or root folder does not exist.

    Not an ObjectNotFound: a lost bucket must never look like "this partition has no manifest yet".
    Retriable, because an operator can create it while the broker runs.
    """


# The `modified_ms` of an object if the store does not state it.
AGE_UNKNOWN = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """An object's size, etag, checksums and time, as the store reports them without its bytes.

    `etag` changes with every write of other content; listings may leave it empty. `crc32c` is that
    of the whole object; None if the store does not know it (listings, multipart uploads, objects of
    other writers, servers without checksums). `noted_crc32c` is the one in the writer's metadata:
    no store compares it with the bytes, and copies of the object keep it. `modified_ms` is from
    the store's clock.
    """

    key: str
    size_bytes: int
    etag: str = ""
    crc32c: int | None = None
    noted_crc32c: int | None = None
    modified_ms: TimestampMs = AGE_UNKNOWN

    @property
    def stated_crc32c(self) -> int | None:
        """The store's checksum of the object, or else the writer's."""
        return self.noted_crc32c if self.crc32c is None else self.crc32c


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """The bytes of a whole object, and the information of exactly these bytes."""

    info: ObjectInfo
    body: bytes


@dataclass(frozen=True, slots=True)
class IfAbsent:
    """Write only if the key does not exist."""


@dataclass(frozen=True, slots=True)
class IfMatches:
    """Write only if the object is still the one with this etag."""

    etag: str


PutCondition: TypeAlias = IfAbsent | IfMatches


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectOptions:
    """An object's S3 storage class ("" for the bucket's default) and tags (key and value).

    Stores that have neither ignore them.
    """

    storage_class: str = ""
    tags: tuple[tuple[str, str], ...] = ()


class Lack(Enum):
    """A kind of request that a server does not know, and that the store does in another way."""

    # Bodies are read back after each write.
    CHECKSUMS = "checksums"
    # Large files are sent in one request.
    MULTIPART = "multipart"
    # Objects are deleted one by one.
    BATCH_DELETE = "batch_delete"
    # A DELETE that arrives late may delete a later object of its key.
    CONDITIONAL_DELETE = "conditional_delete"


class BodyUnreadable(DiskError):
    """The local disk cannot read the file to upload; the store is not at fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileBody:
    """`size_bytes` of a file from `start` on, streamed from disk; they must not change meanwhile.

    `crc32c` is the caller's checksum of these bytes. If the file differs when it is sent, the store
    raises ObjectCorrupt instead of archiving damage.
    """

    path: Path
    size_bytes: int
    crc32c: int
    options: ObjectOptions = ObjectOptions()
    start: int = 0

    def open(self) -> BinaryIO:
        """Returns the file, for reading. Raises BodyUnreadable."""
        try:
            return open(self.path, "rb")
        except OSError as error:
            raise BodyUnreadable(f"cannot open {self.path}: {error.strerror}") from error

    def read(self, file: BinaryIO, byte_count: int, position: int) -> bytes:
        """Up to `byte_count` bytes of the body from `position` on. Raises BodyUnreadable."""
        try:
            return os.pread(file.fileno(), byte_count, self.start + position)
        except OSError as error:
            raise BodyUnreadable(f"cannot read {self.path}: {error.strerror}") from error

    def blocks(self, key: str) -> Iterator[bytes]:
        """The body block by block; ends in ObjectCorrupt unless it has this size and checksum."""
        crc = position = 0
        with self.open() as file:
            while block := self.read(file, min(self.size_bytes - position, BLOCK_BYTES), position):
                crc = crc32c.crc32c(block, crc)
                position += len(block)
                yield block
        if (position, crc) != (self.size_bytes, self.crc32c):
            raise ObjectCorrupt(key, "put", f"{self.path} is not what it was said to be")


PutBody: TypeAlias = Buffer | FileBody


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Limits of a request: seconds for each of its parts, and the number of attempts."""

    # Connecting inside one region takes milliseconds; two seconds is one lost SYN and its repeat.
    connect_s: float = 2.0
    # Silence on the socket, not the duration of a transfer.
    read_s: float = 10.0
    # One request with all its attempts: enough for a body of 16 MiB even at 1 MB/s.
    request_s: float = 30.0
    # The upload of one file, with all its parts.
    upload_s: float = 600.0
    attempts_max: int = 4


class GetsRanges(Protocol):
    """The part of a store that reads ranges of objects."""

    def get(self, key: str, *, start: int, end: int) -> bytes:
        """As `ObjectStore.get`."""


class ReadsArchive(Protocol):
    """The part of a store that loads manifests and topics."""

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        """As `ObjectStore.get`."""

    def list_folders(self, prefix: str) -> Iterable[str]:
        """As `ObjectStore.list_folders`."""


class ObjectStore(Protocol):
    """A flat namespace of immutable and compare-and-swapped objects."""

    @property
    def url(self) -> str:
        """The root, as `open_store` takes it."""

    def check(self) -> None:
        """Raises BucketMissing, AccessDenied or TierUnavailable unless the root can be used."""

    def clock_ms(self) -> TimestampMs:
        """Returns the time of the store's clock, which sets `modified_ms`, to the second.

        It may differ from ours by hours: compute ages of objects from its times alone.
        """

    def put(self, key: str, body: PutBody, *, condition: PutCondition | None = None) -> ObjectInfo:
        """Writes the whole object, or nothing. Readers never see a part of it.

        Returns the new object's size, etag and crc32c. Raises PreconditionFailed if `condition`
        did not hold: then the object is another writer's, never our own. A missing key does not
        satisfy IfMatches.
        """

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        """Exactly the bytes [start, end), or to the end of the object if `end` is None.

        Raises ObjectCorrupt if the object is shorter than `end`.
        """

    def get_object(self, key: str) -> StoredObject:
        """Returns the whole object with the etag of exactly these bytes, for a later IfMatches."""

    def get_into(self, key: str, target: memoryview, *, start: int) -> None:
        """Fills all of the writable `target` with the bytes from `start`; else as `get`."""

    def head(self, key: str) -> ObjectInfo:
        """Returns the object's current size, etag and checksum."""

    def list(
        self, prefix: str, *, start_after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        """Objects whose key begins with `prefix`, in byte order of the keys, page by page.

        `start_after` is exclusive, `limit` bounds the count. A missing folder is empty.
        """

    def list_folders(self, prefix: str) -> Iterator[str]:
        """Names of the folders directly under `prefix` (which ends in `/`), in byte order.

        `topics/a/x` and `topics/b/y` under `topics/` are `a` and `b`.
        """

    def delete(self, keys: Sequence[str]) -> None:
        """Deletes all of `keys`; absent ones are ignored. After an error some may remain."""

    def delete_matching(self, key: str, etag: str) -> None:
        """Deletes the object if it is still the one with this etag; an absent one is ignored.

        Raises PreconditionFailed if it is another one. A store with Lack.CONDITIONAL_DELETE deletes
        that as well.
        """

    @property
    def lacks(self) -> frozenset[Lack]:
        """The requests that the server does not know, as far as they were tried."""

    def try_out(self, key: str) -> None:
        """Tries the requests of which `lacks` tells, with an object of its own at `key`.

        The object may stay. Raises what `put` and `delete` raise.
        """

    def abort_uploads(self, prefix: str, *, older_than_ms: int) -> int:
        """Aborts incomplete uploads that began `older_than_ms` ago by our clock (0: all of them).

        Returns their number. No listing of objects shows them. An upload in progress fails, and is
        retried.
        """

    def close(self) -> None:
        """Closes connections and ends retries; later calls may fail."""


_NO_PARTS = frozenset({"", ".", ".."})


def check_key(key: str) -> str:
    """Returns the key; asserts that it is valid, because `keys.py` makes all of them."""
    assert key, "an object key is not empty"
    assert len(key.encode()) <= KEY_BYTES_MAX, key
    assert _NO_PARTS.isdisjoint(key.split("/")), key
    return key


def checksum(body: Buffer) -> int:
    """CRC-32C of `body`."""
    computed: int = crc32c.crc32c(body)
    return computed
