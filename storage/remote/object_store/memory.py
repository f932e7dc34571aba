"""An object store in memory, with faults to order.

It keeps the contract of every other store (the same test suite runs over it), so what is tested
against it is tested against the contract. Faults stand for what is left of a failure after a real
store's own retries: the error that its caller finally sees, before or after the deed was done.

    store.add_fault(Fault(operation="put", key_pattern=r"manifest\\.json$",
                          error=TierUnavailable, moment=Moment.AFTER))      # a lost answer
    store.add_fault(Fault(operation="get", flip_bit_at=100))                # a damaged answer
    store.add_fault(Fault(operation="put", gate=event))                 # hangs until it is set
    store.add_fault(Fault(operation="put", error=TierUnavailable, moment=Moment.LATE))
    store.deliver_late()               # what the caller gave up long ago reaches the store now
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial

from strandline.storage.clock import Clock, SystemClock
from strandline.storage.errors import (
    ObjectCorrupt,
    ObjectNotFound,
    PreconditionFailed,
    TierError,
    TierUnavailable,
)
from strandline.storage.model import Buffer, TimestampMs
from strandline.storage.remote.object_store.interface import (
    FileBody,
    IfAbsent,
    IfMatches,
    ObjectInfo,
    PutBody,
    PutCondition,
    StoredObject,
    check_key,
    checksum,
)

# A hung operation ends by itself after this, so that a forgotten gate fails a test and not a run.
GATE_WAIT_S_MAX = 30.0


class Timing(Enum):
    """Whether a fault strikes before the store did what was asked, or after.

    LATE: the request is still on its way when its caller gives up; `deliver_late` lets it arrive.
    Writes only.
    """

    BEFORE = "before"
    AFTER = "after"
    LATE = "late"


@dataclass(slots=True, kw_only=True)
class Fault:
    """What goes wrong with matching operations; each `Fault` strikes `times` times (-1: always).

    `operation` is a method's name (`get` includes `get_object` and `get_into`), or `.*`.
    """

    operation: str = ".*"
    key_pattern: str = ""
    error: type[TierError] | None = None
    moment: Timing = Timing.BEFORE
    flip_bit_at: int | None = None
    gate: threading.Event | None = None
    skip: int = 0
    times: int = 1
    hit_count: int = 0

    def takes(self, operation: str, key: str) -> bool:
        """Whether this fault strikes now; counts itself down."""
        if not re.fullmatch(self.operation, operation) or not re.search(self.key_pattern, key):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        if self.times == 0:
            return False
        self.times -= 1
        self.hit_count += 1
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRequest:
    """One call the store has seen; `end` is -1 where a call has no range."""

    operation: str
    key: str
    start: int = 0
    end: int = -1


@dataclass(frozen=True, slots=True)
class _Object:
    content: bytes
    etag: str
    crc32c: int | None
    modified_ms: TimestampMs
    noted_crc32c: int | None = None


class MemoryStore:
    """See the top of this file. `requests` is what has been asked so far."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._objects: dict[str, _Object] = {}
        self._faults: list[Fault] = []
        self._late: list[Callable[[], object]] = []
        self.requests: list[StoreRequest] = []

    # --- for tests ---------------------------------------------------------------------------

    def add_fault(self, fault: Fault) -> Fault:
        """Adds a fault; the first one that takes an operation strikes."""
        with self._lock:
            self._faults.append(fault)
        return fault

    def clear_faults(self) -> None:
        with self._lock:
            self._faults.clear()

    def count_requests(self, operation: str = ".*", key_pattern: str = "") -> int:
        """How many calls so far have this operation (a full match) and key (a search)."""
        with self._lock:
            return sum(
                1
                for request in self.requests
                if re.fullmatch(operation, request.operation)
                and re.search(key_pattern, request.key)
            )

    def deliver_late(self) -> int:
        """Does now what faults of Moment.LATE have held up; how much of it had an effect."""
        done_count = 0
        while self._late:
            write = self._late.pop(0)
            try:
                write()
            except PreconditionFailed:
                continue
            done_count += 1
        return done_count

    def keys(self) -> list[str]:
        """All keys, sorted."""
        with self._lock:
            return sorted(self._objects, key=str.encode)

    def damage(self, key: str, change: Callable[[bytes], bytes]) -> None:
        """Replaces an object's content behind everybody's back; etag and checksum stay."""
        with self._lock:
            old = self._objects[key]
            self._objects[key] = replace(old, content=change(old.content))

    def forget_checksum(self, key: str) -> None:
        """Keeps no checksum of the object, as some servers do; what its writer noted stays."""
        with self._lock:
            old = self._objects[key]
            self._objects[key] = replace(old, crc32c=None, noted_crc32c=old.crc32c)

    # --- the contract ------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return "memory://test"

    def check(self) -> None:
        self._begin("check", "")

    def clock_ms(self) -> TimestampMs:
        self._begin("clock", "")
        return self._clock.now_ms()

    def put(self, key: str, body: PutBody, *, condition: PutCondition | None = None) -> ObjectInfo:
        fault = self._begin("put", check_key(key))
        content = _content_of(key, body)

        def write() -> _Object:
            with self._lock:
                self._check_condition(key, condition)
                stored = self._objects[key] = _Object(
                    content,
                    # Of the content alone, as S3's: it comes back when the content does.
                    f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"',
                    checksum(content),
                    self._clock.now_ms(),
                )
            return stored

        self._hold_up(fault, write, "put", key)
        stored = write()
        _end(fault, "put", key)
        return _info(key, stored)

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        fault = self._begin("get", check_key(key), start, -1 if end is None else end)
        content = self._find(key, "get").content
        _check_range(key, content, start, end)
        _end(fault, "get", key)
        return _damaged(content[start:end], fault)

    def get_object(self, key: str) -> StoredObject:
        fault = self._begin("get", check_key(key))
        found = self._find(key, "get")
        _end(fault, "get", key)
        return StoredObject(info=_info(key, found), body=_damaged(found.content, fault))

    def get_into(self, key: str, target: memoryview, *, start: int) -> None:
        end = start + len(target)
        fault = self._begin("get", check_key(key), start, end)
        content = self._find(key, "get").content
        _check_range(key, content, start, end)
        _end(fault, "get", key)
        target[:] = _damaged(content[start:end], fault)

    def head(self, key: str) -> ObjectInfo:
        fault = self._begin("head", check_key(key))
        found = self._find(key, "head")
        _end(fault, "head", key)
        return _info(key, found)

    def list(
        self, prefix: str, *, start_after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        fault = self._begin("list", prefix)
        with self._lock:
            matching = [
                (key, stored)
                for key, stored in self._objects.items()
                if key.startswith(prefix) and key.encode() > start_after.encode()
            ]
        _end(fault, "list", prefix)
        matching.sort(key=lambda pair: pair[0].encode())
        return iter([_info(key, stored) for key, stored in matching[:limit]])

    def list_folders(self, prefix: str) -> Iterator[str]:
        assert prefix == "" or prefix.endswith("/"), prefix
        fault = self._begin("list", prefix)
        with self._lock:
            names = {
                key[len(prefix) :].partition("/")[0]
                for key in self._objects
                if key.startswith(prefix) and "/" in key[len(prefix) :]
            }
        _end(fault, "list", prefix)
        return iter(sorted(names, key=str.encode))

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            fault = self._begin("delete", check_key(key))
            remove = partial(self._remove, key)
            self._hold_up(fault, remove, "delete", key)
            remove()
            _end(fault, "delete", key)

    def abort_uploads(self, prefix: str, *, older_than_ms: int) -> int:
        """Nothing is ever left behind in memory."""
        self._begin("abort_uploads", prefix)
        del older_than_ms
        return 0

    def close(self) -> None:
        """Keeps its objects: a store of the same object can go on."""

    def __repr__(self) -> str:
        return f"<MemoryStore objects={len(self._objects)}>"

    # --- inside ------------------------------------------------------------------------------

    def _begin(self, operation: str, key: str, start: int = 0, end: int = -1) -> Fault | None:
        with self._lock:
            self.requests.append(StoreRequest(operation=operation, key=key, start=start, end=end))
            fault = next((f for f in self._faults if f.takes(operation, key)), None)
        if fault is None:
            return None
        if fault.gate is not None and not fault.gate.wait(GATE_WAIT_S_MAX):
            raise TierUnavailable(key, operation, "hung until the end of patience")
        if fault.error is not None and fault.moment is Timing.BEFORE:
            raise fault.error(key, operation, "injected")
        return fault

    def _hold_up(
        self, fault: Fault | None, write: Callable[[], object], operation: str, key: str
    ) -> None:
        if fault is not None and fault.error is not None and fault.moment is Timing.LATE:
            self._late.append(write)
            raise fault.error(key, operation, "injected, and the request goes on")

    def _remove(self, key: str) -> None:
        with self._lock:
            self._objects.pop(key, None)

    def _find(self, key: str, operation: str) -> _Object:
        with self._lock:
            found = self._objects.get(key)
        if found is None:
            raise ObjectNotFound(key, operation)
        return found

    def _check_condition(self, key: str, condition: PutCondition | None) -> None:
        found = self._objects.get(key)
        match condition:
            case IfAbsent() if found is not None:
                raise PreconditionFailed(key, "put", "the object exists")
            case IfMatches(etag=etag) if found is None or found.etag != etag:
                raise PreconditionFailed(key, "put", f"the object is no longer {etag}")
            case _:
                return


def _end(fault: Fault | None, operation: str, key: str) -> None:
    if fault is not None and fault.error is not None and fault.moment is Timing.AFTER:
        raise fault.error(key, operation, "injected after it was done")


def _content_of(key: str, body: PutBody) -> bytes:
    if not isinstance(body, FileBody):
        return bytes(body)
    with body.open() as file:
        content = body.read(file, body.size_bytes, 0)
    if len(content) != body.size_bytes or checksum(content) != body.crc32c:
        raise ObjectCorrupt(key, "put", f"{body.path} is not what it was said to be")
    return content


def _info(key: str, stored: _Object) -> ObjectInfo:
    return ObjectInfo(
        key=key,
        size_bytes=len(stored.content),
        etag=stored.etag,
        crc32c=stored.crc32c,
        noted_crc32c=stored.noted_crc32c,
        modified_ms=stored.modified_ms,
    )


def _check_range(key: str, content: Buffer, start: int, end: int | None) -> None:
    if start > len(content) or (end is not None and end > len(content)):
        raise ObjectCorrupt(
            key, "get", f"has {len(content)} bytes, [{start}, {end}) were asked for"
        )


def _damaged(content: bytes, fault: Fault | None) -> bytes:
    if fault is None or fault.flip_bit_at is None or fault.flip_bit_at >= len(content):
        return content
    changed = bytearray(content)
    changed[fault.flip_bit_at] ^= 1
    return bytes(changed)
