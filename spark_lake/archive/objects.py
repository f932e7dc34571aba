"""Reader of objects in the bucket: whole small objects, exact ranges, one level of folders.

The client is fsspec (s3fs for `s3://`), which Spark users have installed and know how to configure.
ObjectReader adds what the lake needs: exactly the requested bytes or an error, the errors of
`storage.errors`, few and bounded retries, and counts of requests and bytes.

Forks: Spark forks its Python workers, and s3fs must be created after the fork. So the first read
opens the file system, a read after a fork opens it again (the connections belong to the other
process), and pickling (driver to executor) carries only the parameters to open it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from strandline.spark_lake.options.options import S3Options
from strandline.storage.errors import (
    AccessDenied,
    InvalidConfig,
    ObjectArchived,
    ObjectCorrupt,
    ObjectNotFound,
    StrandlineError,
    TierUnavailable,
    UnsupportedFormat,
)
from strandline.storage.extras import how_to_install
from strandline.storage.remote.ca_file import check_ca_file
from strandline.storage.remote.object_store.local_names import CONTINUATION, key_of, path_of
from strandline.storage.remote.s3.signing import urls_like
from strandline.storage.remote.silence import Silence

T = TypeVar("T")
R = TypeVar("R")

# s3fs tries each call this often, botocore below it once. The defaults of both multiply to 125
# attempts, which makes a server that is away look like a hanging query.
ATTEMPTS_MAX = 3
CONNECT_TIMEOUT_S = 5
# Of silence on the socket, not of a transfer.
READ_TIMEOUT_S = 30
# Connections of one process.
CONNECTIONS_MAX = 32
# Requests in flight while planning: enough to hide S3's latency, few enough for one process.
PARALLEL_READS = 16

# Buckets whose region a process caches.
REGIONS_MAX = 1000
# By endpoint and bucket; None if the server names none.
_regions: dict[tuple[str | None, str], str | None] = {}

# Only signing needs a region on servers that have none; it is the one S3 began with.
DEFAULT_REGION = "us-east-1"

# Advice in error messages; `jvm/plan.py` passes the same texts to the reader inside the JVM.
RETENTION_HINT = (
    "if retention or a topic deletion removed it while the query ran, run the query again"
    " (strandline.remote.delete.grace.ms is how long removed objects stay readable)"
)
SHORT_OBJECT_HINT = (
    "the object is shorter than the manifest says; restore it from a backup, or leave its offsets"
    " out with startingOffsets or endingOffsets"
)
DENIED_HINT = (
    "set the options s3.access.key and s3.secret, or the AWS environment of the driver and the"
    " executors, to credentials that may read the bucket"
)


@contextmanager
def naming_later_formats(url: str) -> Iterator[None]:
    """Adds the archive's URL and the remedy to errors about formats of later releases."""
    try:
        yield
    except UnsupportedFormat as error:
        raise UnsupportedFormat(
            f"{error}; it lies in {url}: update strandline where the driver and the executors run"
        ) from error


def in_parallel(
    load: Callable[[T], R], wanted: Sequence[T], *, threads: int = PARALLEL_READS
) -> list[R]:
    """Returns the results in the order of `wanted`; raises the first error of `load`."""
    if len(wanted) < 2:
        return [load(one) for one in wanted]
    with ThreadPoolExecutor(min(threads, len(wanted))) as pool:
        return list(pool.map(load, wanted))


class FileSystem(Protocol):
    """The part of fsspec that the lake uses."""

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes: ...

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[str]: ...

    def url(self, path: str, expires: int = 3600) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadStatistics:
    """Counts of requests and bytes read from the bucket so far."""

    request_count: int
    bytes_read: int


class ObjectReader:
    """Reader of objects below one root URL; thread-safe, picklable."""

    def __init__(self, url: str, s3: S3Options) -> None:
        self.url = url
        self._s3 = s3
        self._root = url.removeprefix("s3://").removeprefix("file://")
        self._is_local = url.startswith("file://")
        self._lock = threading.Lock()
        self._silence = Silence(url)
        self._process: int | None = None
        self._file_system: FileSystem | None = None
        self._signer: FileSystem | None = None
        self._request_count = 0
        self._bytes_read = 0

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        """Returns the bytes [start, end), or to the end of the object.

        Raises a TierError; ObjectCorrupt if there are fewer.
        """
        assert 0 <= start < (start + 1 if end is None else end), (key, start, end)
        try:
            with self._silence:
                self._silence.note_progress(next_bytes=0 if end is None else end - start)
                content = self._open().cat_file(self._place(key), start=start, end=end)
        except Exception as error:  # fsspec, botocore and aiohttp have no common root
            raise self._translated(key, "read", error) from error
        self._count(len(content))
        if end is not None and len(content) != end - start:
            raise ObjectCorrupt(
                f"{self.url}/{key}",
                "read",
                f"bytes {start} to {end} were asked for, {len(content)} came: {SHORT_OBJECT_HINT}",
            )
        return content

    def list_folders(self, prefix: str) -> list[str]:
        """Names of the folders and objects directly under `prefix`; a missing one is empty."""
        path = self._place(prefix).rstrip("/")
        try:
            with self._silence:
                found = list(self._paths_below(path))
        except Exception as error:
            raise self._translated(prefix, "list", error) from error
        self._count(0)
        return sorted(map(key_of, found) if self._is_local else found)

    def _paths_below(self, path: str) -> Iterator[str]:
        try:
            # A listing that fsspec cached would lack newer topics.
            found = self._open().ls(path, detail=False, refresh=True)
        except FileNotFoundError:
            return
        for one in found:
            name = one.rstrip("/").rsplit("/", 1)[-1]
            if self._is_local and name.endswith(CONTINUATION):
                # One name that spans several folders.
                yield from (f"{name}/{rest}" for rest in self._paths_below(one))
            else:
                yield name

    def filled_folders(self, prefix: str) -> list[str]:
        """As `list_folders`, without the empty folders that disks have."""
        found = self.list_folders(prefix)
        if self._is_local:
            found = [name for name in found if _holds_a_file(self._place(f"{prefix}{name}"))]
        return found

    def addresses(self, keys: Iterable[str], valid_s: int) -> dict[str, str]:
        """Returns the addresses of objects for the JVM's reader: file paths, or presigned URLs.

        Raises a TierError if they cannot be signed.
        """
        wanted = list(dict.fromkeys(keys))
        places = [self._place(key) for key in wanted]
        if not wanted or self._is_local:
            return dict(zip(wanted, places, strict=True))
        try:
            with self._silence:
                signed = _signed_urls(self._signing(), places, valid_s)
        except Exception as error:
            raise self._translated(wanted[0], "sign", error) from error
        return dict(zip(wanted, signed, strict=True))

    def statistics(self) -> ReadStatistics:
        with self._lock:
            return ReadStatistics(request_count=self._request_count, bytes_read=self._bytes_read)

    def _place(self, key: str) -> str:
        """Returns the path of an object; the broker's folders have other names for some."""
        return f"{self._root}/{path_of(key) if self._is_local else key}"

    def _count(self, bytes_read: int) -> None:
        with self._lock:
            self._request_count += 1
            self._bytes_read += bytes_read

    def _open(self) -> FileSystem:
        with self._lock:
            if self._file_system is None or self._process != os.getpid():
                self._process = os.getpid()
                self._signer = None
                self._file_system = _open_file_system(self.url, self._s3)
            return self._file_system

    def _signing(self) -> FileSystem:
        """The file system that signs for the bucket's region: presigned URLs are not redirected.

        botocore redirects the requests of s3fs itself.
        """
        file_system = self._open()
        with self._lock:
            if self._signer is None:
                region = _region_of(
                    file_system, self._root.partition("/")[0], self._s3.endpoint_url
                )
                self._signer = (
                    file_system
                    if region in (None, _region_in_use(file_system))
                    else _open_file_system(self.url, replace(self._s3, region=region))
                )
            return self._signer

    def _translated(self, key: str, operation: str, error: Exception) -> StrandlineError:
        name = f"{self.url}/{key}"
        code = _s3_error_code(error)
        if code == "InvalidObjectState":
            return ObjectArchived(name, operation, "it must be restored from cold storage first")
        if code == "InvalidRange":
            return ObjectCorrupt(name, operation, "the object is shorter than the manifest says")
        if isinstance(error, NotADirectoryError):
            return InvalidConfig(f"{name}: a file is in the way of this path")
        if isinstance(error, FileNotFoundError):
            return ObjectNotFound(name, operation, f"it does not exist; {RETENTION_HINT}")
        is_refused = code in _CREDENTIAL_CODES or type(error).__name__ in _CREDENTIAL_ERRORS
        if is_refused or isinstance(error, PermissionError):
            return AccessDenied(
                name,
                operation,
                f"{error}; {DENIED_HINT}",
            )
        if type(error).__name__ in _SETTING_ERRORS:
            told = " ".join(str(error).split())
            return InvalidConfig(f"{name}: {told}; see the options path and s3.*")
        return TierUnavailable(name, operation, f"{type(error).__name__}: {error}")

    def __getstate__(self) -> tuple[str, S3Options]:
        return self.url, self._s3

    def __setstate__(self, state: tuple[str, S3Options]) -> None:
        ObjectReader.__init__(self, *state)

    def __repr__(self) -> str:
        return f"<ObjectReader {self.url} {self.statistics()}>"


def _holds_a_file(path: str) -> bool:
    return Path(path).is_file() or any(files for _, _, files in os.walk(path))


# S3's codes for which s3fs raises no PermissionError.
_CREDENTIAL_CODES = ("InvalidToken", "TokenRefreshRequired", "RequestTimeTooSkewed")
_CREDENTIAL_ERRORS = (
    "NoCredentialsError",
    "PartialCredentialsError",
    "TokenRetrievalError",
    "UnauthorizedSSOTokenError",
)

# Errors that no retry cures: an invalid profile, region or bucket name.
_SETTING_ERRORS = (
    "ConfigNotFound",
    "ConfigParseError",
    "EndpointResolutionError",
    "InvalidRegionError",
    "ParamValidationError",
    "ProfileNotFound",
)


def _s3_error_code(error: Exception) -> str:
    """S3's error code: s3fs raises the same exception for several of them."""
    response = getattr(error.__cause__, "response", None) or getattr(error, "response", None)
    if not isinstance(response, dict):
        return ""
    return str(response.get("Error", {}).get("Code", ""))


def _open_file_system(url: str, s3: S3Options) -> FileSystem:
    try:
        import fsspec
    except ImportError as error:
        raise InvalidConfig(
            "reading the archive needs fsspec on the driver and the executors:"
            f" {how_to_install('scan')}"
        ) from error
    if url.startswith("file://"):
        local: FileSystem = fsspec.filesystem("file")
        return local
    check_ca_file(s3.ca_file)
    try:
        remote = fsspec.filesystem("s3", **_s3_arguments(s3))
    except ImportError as error:
        raise InvalidConfig(
            f"reading {url} needs s3fs on the driver and the executors: {how_to_install('scan')}"
        ) from error
    remote.retries = ATTEMPTS_MAX
    file_system: FileSystem = remote
    return file_system


def _region_of(file_system: Any, bucket: str, endpoint_url: str | None) -> str | None:
    """The region of a bucket, which S3 names even in a refusal; None if the server names none.

    Each process asks once, because buckets do not move.
    """
    place = (endpoint_url, bucket)
    if place in _regions:
        return _regions[place]
    is_answered = True
    try:
        answer = file_system.call_s3("head_bucket", Bucket=bucket)
    except Exception as error:  # without an answer the region stays as it is
        is_answered = False
        answer = getattr(error.__cause__, "response", None) or getattr(error, "response", None)
    metadata = answer.get("ResponseMetadata", {}) if isinstance(answer, dict) else {}
    region: str | None = metadata.get("HTTPHeaders", {}).get("x-amz-bucket-region")
    if region is not None or is_answered:
        if len(_regions) >= REGIONS_MAX:
            _regions.clear()
        _regions[place] = region
    return region


def _region_in_use(file_system: Any) -> str | None:
    region: str | None = file_system.s3.meta.region_name
    return region


def _signed_urls(file_system: Any, paths: Sequence[str], valid_s: int) -> list[str]:
    """URLs of objects of one bucket, in the order of `paths`; raises what s3fs raises.

    s3fs signs the first URL, and the others too if `urls_like` cannot.
    """
    from fsspec.asyn import sync

    first = str(file_system.url(paths[0], expires=valid_s))
    credentials = file_system.s3._request_signer._credentials  # noqa: SLF001  # has no public name
    frozen = credentials and sync(file_system.loop, credentials.get_frozen_credentials)
    keys = [file_system.split_path(path)[1] for path in paths]
    return urls_like(first, keys, frozen, valid_s=valid_s) or [
        str(file_system.url(path, expires=valid_s)) for path in paths
    ]


def _s3_arguments(s3: S3Options) -> dict[str, Any]:
    region = s3.region or (DEFAULT_REGION if s3.endpoint_url else None)
    config: dict[str, Any] = {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "read_timeout": READ_TIMEOUT_S,
        "retries": {"total_max_attempts": 1},
        "max_pool_connections": CONNECTIONS_MAX,
    }
    if not s3.anonymous:
        # Else URLs have signature version 2, which buckets created since 2020 refuse.
        config["signature_version"] = "s3v4"
    if s3.endpoint_url:
        # Local servers have no DNS name per bucket.
        config["s3"] = {"addressing_style": "path"}
    client = {"region_name": region, "verify": s3.ca_file}
    return {
        "anon": s3.anonymous,
        "profile": s3.profile,
        "requester_pays": s3.requester_pays,
        "key": s3.key,
        "secret": s3.secret,
        "token": s3.token,
        "endpoint_url": s3.endpoint_url,
        "client_kwargs": {name: value for name, value in client.items() if value},
        "config_kwargs": config,
        "use_listings_cache": False,
    }
