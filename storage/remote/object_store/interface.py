"""What strandline asks of an object store, whichever it is.

    key    `topics/orders-<uuid>/0/manifest.json`: relative to the store's root URL, components
           separated by `/`, none of them empty, `.` or `..`; no key is also the folder of another
    range  [start, end) in bytes

Every call is synchronous, thread-safe, and ends within a deadline: success, or one of

    ObjectNotFound      404, the key does not exist
    AccessDenied        403 or 401, or no credentials
    ObjectArchived      the object must be restored from cold storage before it can be read
    ObjectCorrupt       the bytes are not those that were written, or fewer than were asked for
    PreconditionFailed  a conditional write lost
    StoreFull           there is no room; nothing was written, and deleting goes on
    BucketMissing       the root itself does not exist; says nothing about any key
    TierUnavailable     everything that may pass: timeout, refused, reset, 5xx, throttled

A store retries by itself what is worth retrying, within its bounds. A `put` that ends in
TierUnavailable has an unknown outcome: the object may be there, or appear later. That is why no
key is ever used twice, and why what must change in place (manifests) changes by compare-and-swap.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, TypeAlias

from strandline.storage.errors import DiskError, ObjectCorrupt, TierUnavailable
from strandline.storage.model import Buffer, TimestampMs
from strandline.storage.system import crc32c

# S3's own bound; ours are a fifth of it.
KEY_BYTES_MAX = 1024

BLOCK_BYTES = 1024 * 1024


class BucketMissing(TierUnavailable):
    """The bucket or folder that holds everything does not exist.

    Not an ObjectNotFound: a lost bucket must never look like "this partition has no manifest yet".
    Retriable, because an operator can create it while we run.
    """


# The `modified_ms` of an object of which the store did not say it.
AGE_UNKNOWN = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """What a store knows of an object without reading it.

    `etag` changes with every write of other content, and is empty in listings of stores for which
    it is dear, or that leave it out. `crc32c` is of the whole object; None where the store does not
    know it (listings, uploads in parts, objects written by others, servers that keep none).
    `noted_crc32c` is what its writer noted beside it: no store compares that with the bytes, and
    copies of the object take it along. `modified_ms` is the store's own clock.
    """

    key: str
    size_bytes: int
    etag: str = ""
    crc32c: int | None = None
    noted_crc32c: int | None = None
    modified_ms: TimestampMs = AGE_UNKNOWN

    @property
    def stated_crc32c(self) -> int | None:
        """What its bytes should have by the store's word, or else by the writer's."""
        return self.noted_crc32c if self.crc32c is None else self.crc32c


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """A whole object, and the information that belongs to exactly these bytes."""

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
    """What a bucket is told of an object besides its bytes; stores without such things ignore it.

    `storage_class` is a class of S3's, empty for the bucket's default; `tags` are key and value.
    """

    storage_class: str = ""
    tags: tuple[tuple[str, str], ...] = ()


class BodyUnreadable(DiskError):
    """The local disk cannot read the file to upload; the store is not at fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileBody:
    """The first `size_bytes` of a file, streamed from disk; the file must not change meanwhile.

    `crc32c` is the caller's checksum of these bytes. If the file differs when it is sent, the store
    raises ObjectCorrupt instead of archiving damage.
    """

    path: Path
    size_bytes: int
    crc32c: int
    options: ObjectOptions = ObjectOptions()

    def open(self) -> BinaryIO:
        """The file, for reading. Raises BodyUnreadable."""
        try:
            return open(self.path, "rb")
        except OSError as error:
            raise BodyUnreadable(f"cannot open {self.path}: {error.strerror}") from error

    def read(self, file: BinaryIO, byte_count: int, position: int) -> bytes:
        """Up to `byte_count` bytes of the opened `file`, as `os.pread`. Raises BodyUnreadable."""
        try:
            return os.pread(file.fileno(), byte_count, position)
        except OSError as error:
            raise BodyUnreadable(f"cannot read {self.path}: {error.strerror}") from error

    def blocks(self, key: str) -> Iterator[bytes]:
        """The file block by block; ends in ObjectCorrupt unless it has this size and checksum."""
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
    """How long each part of a request may take, in seconds, and how often it is tried."""

    # Connecting inside one region takes milliseconds; two seconds is one lost SYN and its repeat.
    connect_s: float = 2.0
    # Silence on the socket, not the length of a transfer.
    read_s: float = 10.0
    # One request with all its attempts. Bodies of up to 16 MiB pass in this even at 1 MB/s.
    request_s: float = 30.0
    # One whole upload of a file, however many parts it has.
    upload_s: float = 600.0
    attempts_max: int = 4


class GetsRanges(Protocol):
    """As much of a store as is needed to look into objects."""

    def get(self, key: str, *, start: int, end: int) -> bytes:
        """As `ObjectStore.get`."""


class ReadsArchive(Protocol):
    """As much of a store as is needed to load what an archive says of itself."""

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        """As `ObjectStore.get`."""

    def list_folders(self, prefix: str) -> Iterable[str]:
        """As `ObjectStore.list_folders`."""


class ObjectStore(Protocol):
    """A flat space of immutable and compare-and-swapped objects; see the top of this file."""

    @property
    def url(self) -> str:
        """The root, as it was given to `open_store`."""

    def check(self) -> None:
        """Raises BucketMissing, AccessDenied or TierUnavailable unless the root can be used."""

    def clock_ms(self) -> TimestampMs:
        """What time it is by the clock that gives objects their `modified_ms`, to the second.

        It may be hours away from ours, and ages of objects are differences of its times alone.
        """

    def put(self, key: str, body: PutBody, *, condition: PutCondition | None = None) -> ObjectInfo:
        """Writes the whole object, or nothing. Readers never see a part of it.

        Returns the new object's size, etag and crc32c. Raises PreconditionFailed if `condition`
        did not hold: then somebody else's object lies there, never our own. A key that is missing
        does not satisfy IfMatches.
        """

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        """Exactly the bytes [start, end), to the end of the object without `end`.

        Raises ObjectCorrupt if the object is shorter than `end`.
        """

    def get_object(self, key: str) -> StoredObject:
        """The whole object with the etag of these very bytes: what a later IfMatches needs."""

    def get_into(self, key: str, target: memoryview, *, start: int) -> None:
        """Fills all of the writable `target` with the bytes from `start`; else as `get`."""

    def head(self, key: str) -> ObjectInfo:
        """Size, etag and checksum as they lie there now."""

    def list(
        self, prefix: str, *, start_after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        """Objects whose key begins with `prefix`, in byte order of the keys, page by page.

        `start_after` is exclusive; at most `limit` objects come. A missing folder is empty.
        """

    def list_folders(self, prefix: str) -> Iterator[str]:
        """Names of the folders directly under `prefix` (which ends in `/`), in byte order.

        `topics/a/x` and `topics/b/y` under `topics/` are `a` and `b`.
        """

    def delete(self, keys: Sequence[str]) -> None:
        """Deletes all of `keys`; an absent one is fine. After an error some may be left."""

    def abort_uploads(self, prefix: str, *, older_than_ms: int) -> int:
        """Drops what unfinished uploads left behind that began that many milliseconds ago by our
        clock (0: all of it). One that is under way fails then, and is made again.

        Returns how many. Such remains are no objects: only this finds them.
        """

    def close(self) -> None:
        """Gives up connections and running retries; calls after it may fail."""


def check_key(key: str) -> str:
    """The key itself; asserts that it is one. Keys are made by `keys.py`, so a bad one is ours."""
    assert key, "an object key is not empty"
    assert len(key.encode()) <= KEY_BYTES_MAX, key
    assert all(part not in ("", ".", "..") for part in key.split("/")), key
    return key


def checksum(body: Buffer) -> int:
    """CRC-32C of `body`."""
    computed: int = crc32c.crc32c(body)
    return computed
