"""The only owner of fsync, rename and unlink.

A file that must be whole or absent is written as `name.tmp`, synced, renamed over `name`, and the
folder is synced:

    1 write name.tmp   2 fsync name.tmp   3 rename to name   4 fsync folder

A crash after 1 or 2 leaves a `.tmp` that start-up removes; after 3 the new content may be lost with
the power but never torn.

An `OpenFile` owns one descriptor. Readers hold the object, not the number: removing a file while a
reader has it is safe, the descriptor is closed with the last reference.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from strandline.storage.errors import DiskError
from strandline.storage.model import Buffer

TEMPORARY_SUFFIX = ".tmp"

# One read for most checkpoints and indexes; larger ones take more of them.
SMALL_FILE_BYTES = 64 * 1024
LARGE_READ_BYTES = 4 * 1024 * 1024
# Bound on a file that is read as a whole: the largest are indexes, and that of a segment of 2 GiB
# with an entry for each batch is smaller.
WHOLE_FILE_BYTES_MAX = 512 * 1024 * 1024
# A name may lead to a pipe by mistake, and opening one waits for its writer.
_OPENING = os.O_CLOEXEC | os.O_NONBLOCK

# This share of the descriptors, up to this many, is kept from new logs. Less than the reserve
# of connections (`broker.network.server`), or those would keep a log from being created.
DESCRIPTORS_KEPT_PART = 16
DESCRIPTORS_KEPT_MAX = 256


class FileMark(NamedTuple):
    """Identifies a file and its last change, by stat."""

    inode: int
    size_bytes: int
    modified_ns: int
    changed_ns: int


def _mark(found: os.stat_result) -> FileMark:
    return FileMark(found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


class OpenFile:
    """A file descriptor with an owner; closed by `close()` or with the last reference."""

    __slots__ = ("_descriptor", "_path")

    def __init__(self, path: Path | str, *, writable: bool, create: bool = False) -> None:
        """Opens `path`; writable files are opened for appending. A start passes it as text.

        Raises DiskError if the file cannot be opened.
        """
        self._descriptor = -1
        self._path = path
        flags = (os.O_RDWR | os.O_APPEND) if writable else os.O_RDONLY
        if create:
            flags |= os.O_CREAT
        try:
            self._descriptor = os.open(path, flags | _OPENING, 0o600)
            check_regular(self._descriptor)
        except OSError as error:
            self.close()
            raise DiskError(f"cannot open {path}: {error.strerror}") from error

    @property
    def path(self) -> Path:
        return Path(self._path)

    @path.setter
    def path(self, path: Path) -> None:
        """Sets the path after the file was renamed."""
        self._path = path

    def fileno(self) -> int:
        return self._descriptor

    def size_bytes(self) -> int:
        return os.fstat(self._descriptor).st_size

    def modified_ms(self) -> int:
        return os.fstat(self._descriptor).st_mtime_ns // 1_000_000

    def mark(self) -> FileMark:
        return _mark(os.fstat(self._descriptor))

    def append(self, data: Buffer) -> None:
        """Writes all of `data` at the end. Raises DiskError; the tail may then be torn."""
        try:
            written = os.write(self._descriptor, data)
            while written < len(data):
                written += os.write(self._descriptor, memoryview(data)[written:])
        except OSError as error:
            raise DiskError(f"cannot write {self._path}: {error.strerror}") from error

    def read_at(self, position: int, length: int) -> bytes:
        """Up to `length` bytes from `position`; fewer only at the end of the file."""
        try:
            return os.pread(self._descriptor, length, position)
        except OSError as error:
            raise DiskError(f"cannot read {self._path}: {error.strerror}") from error

    def truncate(self, size_bytes: int) -> None:
        try:
            os.ftruncate(self._descriptor, size_bytes)
        except OSError as error:
            raise DiskError(f"cannot truncate {self._path}: {error.strerror}") from error

    def sync(self) -> None:
        """fsync: blocks until the device has the bytes. Call it off the event loop."""
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise DiskError(f"cannot sync {self._path}: {error.strerror}") from error

    def close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<OpenFile {self._path} fd={self._descriptor}>"


@dataclass(frozen=True, slots=True)
class FileRange:
    """Bytes of a file that are sent with `sendfile`; holding it keeps the descriptor open."""

    file: OpenFile
    position: int
    length: int

    def read(self) -> bytes:
        """Returns the bytes themselves, for callers that cannot use `sendfile`."""
        return self.file.read_at(self.position, self.length)


@contextmanager
def private_files() -> Iterator[None]:
    """Meanwhile this process and its children make files 0600 and folders 0700.

    For a process that writes records and keys of users, whatever the umask it was started with.
    Folders and files that are there already keep their modes.
    """
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def write_atomically(path: Path, content: Buffer, *, sync: bool = True) -> None:
    """Replaces `path` by `content`, whole or not at all. Raises DiskError."""
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    try:
        with open(temporary, "wb") as file:
            file.write(content)  # 1
            if sync:
                file.flush()
                os.fsync(file.fileno())  # 2
        temporary.replace(path)  # 3
        if sync:
            sync_directory(path.parent)  # 4
    except OSError as error:
        raise DiskError(f"cannot write {path}: {error.strerror}") from error


def rename(source: Path, target: Path, *, sync: bool = True) -> None:
    """Moves a file or folder within one file system and syncs the folder of the new name."""
    try:
        source.replace(target)
        if sync:
            sync_directory(target.parent)
    except OSError as error:
        raise DiskError(f"cannot rename {source} to {target}: {error.strerror}") from error


def link(source: Path, target: Path) -> None:
    """Gives a file a second name, which is not synced. Raises DiskError."""
    try:
        target.hardlink_to(source)
    except OSError as error:
        raise DiskError(f"cannot link {source} to {target}: {error.strerror}") from error


def remove(path: Path) -> None:
    """Removes a file; a file that is already gone is fine."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise DiskError(f"cannot remove {path}: {error.strerror}") from error


def remove_tree(path: Path) -> None:
    """Removes a folder and all in it; a folder that is already gone is fine."""

    def tolerate_absence(
        _function: Callable[..., object], _path: str, error: BaseException
    ) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    try:
        if path.exists():
            shutil.rmtree(path, onerror=lambda f, p, e: tolerate_absence(f, p, e[1]))
    except OSError as error:
        raise DiskError(f"cannot remove {path}: {error.strerror}") from error


def make_directory(path: Path, *, sync: bool = True) -> None:
    """Creates a folder with its parents; an existing one is fine."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        if sync:
            sync_directory(path.parent)
    except OSError as error:
        raise DiskError(f"cannot create folder {path}: {error.strerror}") from error


def check_descriptors_left() -> None:
    """Raises DiskError, as if there was none, when the last descriptors of the process are reached.

    They are reserved for calls that must always work: clients that connect, checkpoints,
    requests to the object store, child processes.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    kept = min(limit // DESCRIPTORS_KEPT_PART, DESCRIPTORS_KEPT_MAX)
    try:
        # The system gives out the lowest number that is free.
        lowest_free = os.open("/", os.O_RDONLY | os.O_CLOEXEC)
        os.close(lowest_free)
        if lowest_free >= limit - kept:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    except OSError as error:
        raise DiskError(
            f"{error.strerror}: of {limit}, {kept} are kept for other things"
        ) from error


def is_there(folder: Path, name: str) -> bool:
    """Returns whether a folder has an entry of this name.

    As text: a start asks for thousands of names, and making a path of each takes longer.
    """
    try:
        os.stat(f"{folder}/{name}")  # noqa: PTH116
    except OSError:
        return False
    return True


def read_if_there(path: Path | str) -> bytes | None:
    """Returns the content of a file; None if it does not exist. Raises DiskError."""
    try:
        return _content_of(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DiskError(f"cannot read {path}: {error.strerror}") from error


def read_whole(path: Path | str) -> bytes:
    """Returns the content of a file. Raises DiskError, also if it does not exist."""
    try:
        return _content_of(path)
    except OSError as error:
        raise DiskError(f"cannot read {path}: {error.strerror}") from error


def read_named(path: Path | str, bytes_max: int) -> bytes:
    """Returns the content of a file whose name an operator gives; does not wait for a pipe.

    Raises OSError, also for what is no regular file, and for one above `bytes_max`.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | _OPENING)
    except ValueError as error:
        raise OSError(errno.EINVAL, str(error)) from error
    try:
        check_regular(descriptor)
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(bytes_max + 1)
    finally:
        os.close(descriptor)
    if len(content) > bytes_max:
        raise OSError(errno.EFBIG, f"larger than {bytes_max} bytes")
    return content


def check_regular(descriptor: int) -> os.stat_result:
    """fstat of a file. Raises IsADirectoryError for a folder, a pipe or a device.

    Bytes written to such a thing are gone, and its size says nothing of its content.
    """
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder, a pipe or a device")
    return found


def _content_of(path: Path | str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | _OPENING)
    try:
        pieces = [os.read(descriptor, SMALL_FILE_BYTES)]
        # A read returns less than requested only at the end of the file: small ones take one read,
        # and a start reads thousands of them.
        asked_bytes = SMALL_FILE_BYTES
        is_large = len(pieces[-1]) == asked_bytes
        # A device has no end, and a file with holes takes no room before it is read.
        if is_large and check_regular(descriptor).st_size > WHOLE_FILE_BYTES_MAX:
            raise OSError(errno.EOVERFLOW, f"it has more than {WHOLE_FILE_BYTES_MAX} bytes")
        while len(pieces[-1]) == asked_bytes:
            asked_bytes = LARGE_READ_BYTES
            pieces.append(os.read(descriptor, asked_bytes))
        return b"".join(pieces)
    finally:
        os.close(descriptor)


def modified_ms(path: Path | str) -> int | None:
    """Returns the mtime of a file; None if it cannot be read."""
    try:
        return os.stat(path).st_mtime_ns // 1_000_000  # noqa: PTH116
    except OSError:
        return None


def size_bytes(path: Path | str) -> int:
    """Returns the size of a file by name. Raises DiskError."""
    try:
        return os.stat(path).st_size  # noqa: PTH116
    except OSError as error:
        raise DiskError(f"cannot look at {path}: {error.strerror}") from error


def mark(path: str) -> FileMark:
    """The mark of a file or a folder, by name as text: a start asks thousands. Raises DiskError."""
    try:
        return _mark(os.stat(path))  # noqa: PTH116
    except OSError as error:
        raise DiskError(f"cannot look at {path}: {error.strerror}") from error


def device(path: Path) -> int:
    """The number of the device that a file or a folder lies on. Raises DiskError."""
    try:
        return path.stat().st_dev
    except OSError as error:
        raise DiskError(f"cannot look at {path}: {error.strerror}") from error


def sync_file(path: Path) -> None:
    """fsync of a file by name."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise DiskError(f"cannot sync {path}: {error.strerror}") from error


def forget_cached(path: Path) -> None:
    """Drops a file's clean pages from the page cache, so that it is read from the device again.

    A missing file is fine. Raises DiskError.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        return
    except OSError as error:
        raise DiskError(f"cannot look at {path}: {error.strerror}") from error


def sync_directory(path: Path) -> None:
    """fsync of a folder: makes names in it durable."""
    sync_file(path)
