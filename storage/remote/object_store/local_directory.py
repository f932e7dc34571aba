"""An object store in a local folder (`file:///folder`), for brokers without S3.

    <root>/topics/orders-<uuid>/0/manifest.json     an object is a file, its key is its path
    <root>/%tmp/<unique>                            uploads in progress

`local_names` encodes keys that are no file names. The store's own names begin with `%` and two
letters that are no hexadecimal number, so no key collides with them.

An object appears whole or not at all:

    1 write %tmp/<unique>   2 fsync it
    3 a new object: link it to its name, which fails if the name is taken; fsync the folder
    4 an object that exists: lock (flock) its file, check the condition, rename, fsync the folder

Creating an object needs no lock. The lock of 4 makes check and rename, or check and deletion,
atomic for all processes on this machine. It is that of one object, and who waits for it gives up
after a time: a process that was stopped (SIGSTOP) within a put holds up nothing else. A killed one
leaves no lock. An upload also locks its file in %tmp, so that no cleanup takes it for the remains
of a dead process.
The etag contains checksum, size, inode and modification time, so `head` reads the file: it reports
the bytes that are on the disk now, as a check after a copy needs.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from strandline.storage import entropy, files
from strandline.storage.clock import Clock, SystemClock
from strandline.storage.errors import (
    NO_ROOM,
    AccessDenied,
    DiskError,
    ObjectCorrupt,
    ObjectNotFound,
    PreconditionFailed,
    StoreFull,
    TierError,
    TierUnavailable,
)
from strandline.storage.model import Buffer, TimestampMs
from strandline.storage.remote.object_store.interface import (
    BLOCK_BYTES,
    BodyUnreadable,
    BucketMissing,
    FileBody,
    IfAbsent,
    IfMatches,
    Lack,
    ObjectInfo,
    PutBody,
    PutCondition,
    StoredObject,
    check_key,
)
from strandline.storage.remote.object_store.local_names import CONTINUATION, key_of, path_of
from strandline.storage.remote.silence import Silence
from strandline.storage.system import crc32c

_TEMPORARY_FOLDER = "%tmp"
# Earlier releases locked this file in the root.
_OLD_LOCK = "%lock"
# Each topic purge removes remains within microseconds; to lose this many races is no accident.
_STAGING_ATTEMPTS_MAX = 10
# A lock is held while an object is read and a folder synced, which takes a slow disk some seconds.
LOCK_WAIT_S_MAX = 10.0
LOCK_POLL_S = 0.01


class LocalDirectoryStore:
    """An object store in a local folder.

    The root folder is created with the first object, and never again: if it is missing or empty
    later, its volume is probably not mounted. An object written into the empty mount point would be
    hidden when the volume returns, so all calls raise TierUnavailable then. `%tmp` tells an empty
    mount point from an archive without objects.
    """

    def __init__(self, root: Path, *, clock: Clock | None = None) -> None:
        self._root = root
        self._clock = clock or SystemClock()
        self._closing = threading.Event()
        self._silence = Silence(self.url, self._clock)
        # Whether the root was seen, and the folder for uploads in it.
        self._was_there = False
        self._had_folders = False

    @property
    def url(self) -> str:
        return self._root.absolute().as_uri()

    def check(self) -> None:
        """Unlike a bucket, a missing folder is created: its parent must exist."""
        with self._request("", "check"):
            if not self._root.parent.is_dir():
                raise BucketMissing("", "check", f"folder {self._root.parent} does not exist")
            if os.path.lexists(self._root) and not self._root.is_dir():
                # A file, or a link to nothing.
                raise BucketMissing("", "check", f"{self._root} is no folder")
            with self._staged([b""]) as staged:
                # As 3: not every file system has hard links.
                files.link(staged, staged.with_suffix(".link"))
                files.remove(staged.with_suffix(".link"))

    def clock_ms(self) -> TimestampMs:
        """Returns the time of the file system, which may be another machine's."""
        with self._request("", "clock"), self._staged([b""]) as staged:
            return staged.stat().st_mtime_ns // 1_000_000

    # --- writing -----------------------------------------------------------------------------

    def put(self, key: str, body: PutBody, *, condition: PutCondition | None = None) -> ObjectInfo:
        path = self._path(check_key(key))
        blocks = body.blocks(key) if isinstance(body, FileBody) else [body]
        with self._request(key, "put"), self._staged(blocks) as staged:
            written = self._read_info(key, staged)
            for _ in range(_STAGING_ATTEMPTS_MAX):
                if self._place(key, staged, path, condition):
                    return written
        raise TierUnavailable(key, "put", "the object is created and deleted all the time")

    def _place(self, key: str, staged: Path, path: Path, condition: PutCondition | None) -> bool:
        """Gives the file its name; returns False if the object there was deleted meanwhile."""
        if not isinstance(condition, IfMatches) and _link(staged, path):  # 3
            return True
        if isinstance(condition, IfAbsent):
            raise PreconditionFailed(key, "put", "the object exists")
        with self._held(key, "put", path) as is_there:  # 4
            if isinstance(condition, IfMatches):
                self._check_etag(key, path if is_there else None, condition.etag)
            if is_there:
                files.rename(staged, path)
            return is_there

    def _check_etag(self, key: str, path: Path | None, etag: str) -> None:
        found = "absent" if path is None else self._read_info(key, path).etag
        if found != etag:
            raise PreconditionFailed(key, "put", f"the object is {found}, not {etag}")

    @contextmanager
    def _staged(self, blocks: Iterable[Buffer]) -> Iterator[Path]:
        """A synced file of `blocks`, locked against aborts; deleted afterwards unless renamed."""
        self._make_folders()
        file = _open_held(self._root / _TEMPORARY_FOLDER)
        staged = Path(file.name)
        try:
            with file:
                for block in blocks:
                    file.write(block)  # 1
                    self._silence.note_progress()
                file.flush()
                files.sync_file(staged)  # 2
                yield staged
        finally:
            files.remove(staged)

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._delete(key, None)

    def delete_matching(self, key: str, etag: str) -> None:
        self._delete(key, etag)

    def _delete(self, key: str, etag: str | None) -> None:
        path = self._path(check_key(key))
        with self._request(key, "delete"):
            self._make_folders()
            if not path.is_file():
                return
            with self._held(key, "delete", path) as is_there:
                if not is_there:
                    return
                if etag is not None:
                    self._check_etag(key, path, etag)
                files.remove(path)
                self._drop_empty_folders(path.parent)

    @property
    def lacks(self) -> frozenset[Lack]:
        return frozenset()

    def try_out(self, key: str) -> None:
        """A folder lacks nothing."""

    def _drop_empty_folders(self, folder: Path) -> None:
        """Removes folders that became empty: a store has no folders, only keys."""
        while folder != self._root:
            try:
                folder.rmdir()
            except OSError:
                return
            folder = folder.parent

    def abort_uploads(self, prefix: str, *, older_than_ms: int) -> int:
        """Ignores `prefix`, because temporary files have no key; uploads in progress continue."""
        del prefix
        before_ms = self._clock.now_ms() - older_than_ms
        removed_count = 0
        with self._request("", "abort_uploads"):
            for entry in _scan(self._root / _TEMPORARY_FOLDER):
                path = Path(entry.path)
                modified_ms = files.modified_ms(path)
                is_old = modified_ms is not None and modified_ms < before_ms
                if is_old or not older_than_ms:
                    removed_count += _remove_unheld(path)
        return removed_count

    # --- reading -----------------------------------------------------------------------------

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        with self._open(key, "get") as descriptor:
            size_bytes = os.fstat(descriptor).st_size
            stop = size_bytes if end is None else end
            if start > size_bytes or stop > size_bytes:
                raise ObjectCorrupt(
                    key, "get", f"has {size_bytes} bytes, [{start}, {end}) were asked for"
                )
            content = os.pread(descriptor, stop - start, start)
            if len(content) == stop - start:
                return content
            # The range exceeds the limit of one call (2 GiB on Linux), or the file shrank.
            whole = bytearray(stop - start)
            _read_into(key, descriptor, memoryview(whole), start)
            return bytes(whole)

    def get_object(self, key: str) -> StoredObject:
        with self._open(key, "get") as descriptor:
            content = bytearray(os.fstat(descriptor).st_size)
            _read_into(key, descriptor, memoryview(content), 0)
            info = _info(key, os.fstat(descriptor), crc32c.crc32c(content))
            return StoredObject(info=info, body=bytes(content))

    def get_into(self, key: str, target: memoryview, *, start: int) -> None:
        with self._open(key, "get") as descriptor:
            _read_into(key, descriptor, target, start)

    def head(self, key: str) -> ObjectInfo:
        with self._request(key, "head"):
            try:
                return self._read_info(key, self._path(check_key(key)))
            except FileNotFoundError:
                self._check_root(key, "head")
                raise

    def list(
        self, prefix: str, *, start_after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        with self._request(prefix, "list"):
            self._check_root(prefix, "list")
            keys = sorted(self._keys_below(prefix), key=str.encode)
        first = bisect_right(keys, start_after.encode(), key=str.encode)
        yield from islice(self._existing(keys[first:]), limit)

    def _existing(self, keys: Sequence[str]) -> Iterator[ObjectInfo]:
        for key in keys:
            try:
                status = self._path(key).stat()
            except FileNotFoundError:
                continue
            yield ObjectInfo(
                key=key, size_bytes=status.st_size, modified_ms=status.st_mtime_ns // 1_000_000
            )

    def list_folders(self, prefix: str) -> Iterator[str]:
        assert prefix == "" or prefix.endswith("/"), prefix
        with self._request(prefix, "list"):
            self._check_root(prefix, "list")
            names = {key[len(prefix) :].partition("/")[0] for key in self._folder_keys(prefix)}
        return iter(sorted(names, key=str.encode))

    def close(self) -> None:
        """Ends waits for locks."""
        self._closing.set()

    def __repr__(self) -> str:
        return f"<LocalDirectoryStore {self._root}>"

    # --- names -------------------------------------------------------------------------------

    def _path(self, key: str) -> Path:
        return self._root / path_of(key)

    def _keys_below(self, prefix: str) -> Iterator[str]:
        folder = prefix.rpartition("/")[0]
        top = self._path(folder) if folder else self._root
        for path in _walk_files(top):
            key = self._key(path)
            if key is not None and key.startswith(prefix):
                yield key

    def _folder_keys(self, prefix: str) -> Iterator[str]:
        """One key for each folder directly under `prefix` with an object in it, at any depth."""
        top = self._path(prefix.rstrip("/")) if prefix else self._root
        for entry in _scan(top):
            if entry.is_dir():
                for path in _walk_files(Path(entry.path)):
                    key = self._key(path)
                    if key is not None:
                        yield key
                        if not entry.name.endswith(CONTINUATION):
                            break

    def _key(self, path: Path) -> str | None:
        parts = path.relative_to(self._root).parts
        if parts[0] in (_OLD_LOCK, _TEMPORARY_FOLDER):
            return None
        return key_of("/".join(parts))

    # --- files -------------------------------------------------------------------------------

    def _make_folders(self) -> None:
        folder = self._root / _TEMPORARY_FOLDER
        if not folder.is_dir():
            self._check_root("", "write")
            files.make_directory(folder)
        self._was_there = self._had_folders = True

    def _note_presence(self) -> None:
        """Records that an object was found, so the root exists."""
        if not self._was_there:
            self._had_folders = (self._root / _TEMPORARY_FOLDER).is_dir()
            self._was_there = True

    def _check_root(self, key: str, operation: str) -> None:
        """Raises TierUnavailable if the root existed and is missing or empty now."""
        expected = self._root / _TEMPORARY_FOLDER if self._had_folders else self._root
        if self._was_there and not expected.is_dir():
            raise TierUnavailable(
                key, operation, f"folder {self._root} is gone: is its volume mounted?"
            )

    @contextmanager
    def _held(self, key: str, operation: str, path: Path) -> Iterator[bool]:
        """Keeps others from replacing or deleting the object; yields whether it exists.

        Raises TierUnavailable if it is another's for too long.
        """
        for _ in range(int(LOCK_WAIT_S_MAX / LOCK_POLL_S)):
            descriptor = _open_if_there(path)
            if descriptor is None:
                yield False
                return
            try:
                if _try_lock(descriptor) and _is_at(descriptor, path):
                    yield True
                    return
            finally:
                os.close(descriptor)
            self._closing.wait(LOCK_POLL_S)
        raise TierUnavailable(
            key,
            operation,
            f"another process has held it for {LOCK_WAIT_S_MAX:.0f} s: is it stopped?",
        )

    @contextmanager
    def _request(self, key: str, operation: str) -> Iterator[None]:
        """A request to the store; raises file system errors as tier errors."""
        try:
            with self._silence:
                yield
        except (TierError, BodyUnreadable):
            raise
        except (OSError, DiskError) as error:
            cause = error.__cause__ if isinstance(error, DiskError) else error
            match cause:
                # A put needs no object, so for a put it is the folder that is missing.
                case FileNotFoundError() | NotADirectoryError() | IsADirectoryError() if (
                    operation != "put"
                ):
                    raise ObjectNotFound(key, operation) from error
                # A bad sector damages one object; TierUnavailable would be retried without end.
                case OSError(errno=errno.EIO) if operation in ("get", "head"):
                    raise ObjectCorrupt(key, operation, str(error)) from error
                case OSError(errno=number) if number in NO_ROOM:
                    raise StoreFull(key, operation, str(error)) from error
                case PermissionError():
                    raise AccessDenied(key, operation, str(error)) from error
                case _:
                    raise TierUnavailable(key, operation, str(error)) from error

    @contextmanager
    def _open(self, key: str, operation: str) -> Iterator[int]:
        with self._request(key, operation):
            path = self._path(check_key(key))
            try:
                descriptor = _open_at_once(str(path), os.O_RDONLY)
            except FileNotFoundError:
                self._check_root(key, operation)
                raise
            self._note_presence()
            try:
                files.check_regular(descriptor)
                yield descriptor
            finally:
                os.close(descriptor)

    def _read_info(self, key: str, path: Path) -> ObjectInfo:
        crc = 0
        with open(path, "rb", opener=_open_at_once) as file:
            files.check_regular(file.fileno())
            while block := file.read(BLOCK_BYTES):
                crc = crc32c.crc32c(block, crc)
                self._silence.note_progress()
            return _info(key, os.fstat(file.fileno()), crc)


def _open_at_once(path: str, flags: int) -> int:
    """As `open`, but does not block on a pipe without a writer."""
    return os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)


def _open_if_there(path: Path) -> int | None:
    try:
        # NFS locks only what may be written.
        return _open_at_once(str(path), os.O_RDWR)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file still has this name: it may have been replaced before it was locked."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _link(staged: Path, path: Path) -> bool:
    """Gives the file a second name, durably; returns False if that is taken."""
    for _ in range(_STAGING_ATTEMPTS_MAX):
        try:
            _make_parents(path)
            files.link(staged, path)
        except DiskError as error:
            if isinstance(error.__cause__, FileExistsError):
                return False
            # A deletion next to it has just removed the empty folder.
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
        else:
            files.sync_directory(path.parent)
            return True
    raise FileNotFoundError(errno.ENOENT, "its folder is removed at once", str(path.parent))


def _remove_unheld(path: Path) -> bool:
    """Removes a file unless it is locked; returns whether it did.

    Holds the lock meanwhile, so that an upload that waits for it notices the removal.
    """
    try:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            files.remove(path)
    except (BlockingIOError, FileNotFoundError):
        return False
    return True


def _open_held(folder: Path) -> BinaryIO:
    """Returns a new, locked file. Raises FileNotFoundError if others remove every attempt."""
    for _ in range(_STAGING_ATTEMPTS_MAX):
        file = open(folder / entropy.new_id().hex, "wb")  # noqa: SIM115  # the caller's to close
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return file
        # Another process took it for the remains of an upload before it was locked.
        file.close()
    raise FileNotFoundError(errno.ENOENT, "new files are removed at once", str(folder))


def _info(key: str, status: os.stat_result, crc: int) -> ObjectInfo:
    return ObjectInfo(
        key=key,
        size_bytes=status.st_size,
        etag=f'"{crc:08x}-{status.st_size:x}-{status.st_ino:x}-{status.st_mtime_ns:x}"',
        crc32c=crc,
        modified_ms=status.st_mtime_ns // 1_000_000,
    )


def _read_into(key: str, descriptor: int, target: memoryview, start: int) -> None:
    done = 0
    while done < len(target):
        count = os.preadv(descriptor, [target[done:]], start + done)
        if count == 0:
            raise ObjectCorrupt(
                key, "get", f"ends at {start + done}, {len(target) - done} bytes too early"
            )
        done += count


def _make_parents(path: Path) -> None:
    """Makes the folders of `path` durable, each in its parent."""
    missing: list[Path] = []
    folder = path.parent
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for folder in reversed(missing):
        files.make_directory(folder)


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _walk_files(folder: Path) -> Iterator[Path]:
    for entry in _scan(folder):
        if entry.is_dir(follow_symlinks=False):
            yield from _walk_files(Path(entry.path))
        else:
            yield Path(entry.path)
