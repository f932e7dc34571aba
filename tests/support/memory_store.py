"""An object store in memory that injects faults, for tests.

It passes the contract suite of every other store. A fault is the error that a caller sees after a
real store's own retries, raised before or after the operation took effect.

    store.add_fault(Fault(operation="put", key_pattern=r"manifest\\.json$",
                          error=TierUnavailable, moment=Timing.AFTER))      # a lost response
    store.add_fault(Fault(operation="get", flip_bit_at=100))                # a damaged response
    store.add_fault(Fault(operation="put", gate=event))                 # hangs until it is set
    store.add_fault(Fault(operation="put", error=TierUnavailable, moment=Timing.LATE))
    store.deliver_late()                    # the abandoned requests reach the store now
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
from strandline.storage.model import TimestampMs
from strandline.storage.remote.object_store.interface import (
    FileBody,
    IfAbsent,
    IfMatches,
    Lack,
    ObjectInfo,
    PutBody,
    PutCondition,
    StoredObject,
    check_key,
    checksum,
)

# A hung operation ends after this time, so that a forgotten gate fails one test, not the run.
GATE_WAIT_S_MAX = 30.0


class Timing(Enum):
    """Whether a fault strikes before the operation takes effect, or after.

    LATE, for writes: the request is still in flight when its caller gives up; `deliver_late` lets
    it arrive.
    """

    BEFORE = "before"
    AFTER = "after"
    LATE = "late"


@dataclass(slots=True, kw_only=True)
class Fault:
    """A failure of matching operations, injected `times` times (-1: always).

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
        """Whether this fault strikes now; counts down `skip` and `times`."""
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
    """One call of the store; `end` is -1 if the call has no range."""

    operation: str
    key: str
    start: int = 0
    end: int = -1


class MemoryStore:
    """An object store in memory. `requests` lists all calls so far."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._objects: dict[str, StoredObject] = {}
        self._faults: list[Fault] = []
        self._late: list[Callable[[], object]] = []
        self.requests: list[StoreRequest] = []
        # As most servers today.
        self.lacks = frozenset({Lack.CONDITIONAL_DELETE})

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
        """The number of calls with this operation (a full match) and key (a search)."""
        with self._lock:
            return sum(
                1
                for request in self.requests
                if re.fullmatch(operation, request.operation)
                and re.search(key_pattern, request.key)
            )

    def deliver_late(self) -> int:
        """Delivers the writes that faults of Timing.LATE hold; returns how many took effect."""
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
        """Replaces an object's content; etag and checksum stay."""
        with self._lock:
            old = self._objects[key]
            body = change(old.body)
            self._objects[key] = StoredObject(
                info=replace(old.info, size_bytes=len(body)), body=body
            )

    def forget_checksum(self, key: str) -> None:
        """Drops the store's checksum of the object, as some servers do; the writer's stays."""
        with self._lock:
            old = self._objects[key]
            info = replace(old.info, crc32c=None, noted_crc32c=old.info.crc32c)
            self._objects[key] = replace(old, info=info)

    # --- the contract ------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return "memory://test"

    def check(self) -> None:
        with self._operation("check", ""):
            return

    def clock_ms(self) -> TimestampMs:
        with self._operation("clock", ""):
            return self._clock.now_ms()

    def put(self, key: str, body: PutBody, *, condition: PutCondition | None = None) -> ObjectInfo:
        with self._operation("put", check_key(key)) as fault:
            content = b"".join(body.blocks(key)) if isinstance(body, FileBody) else bytes(body)
            write = partial(self._write, key, content, condition)
            self._hold_up(fault, write, "put", key)
            return write()

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        return self._get(key, start, end).body

    def get_object(self, key: str) -> StoredObject:
        return self._get(key, 0, None)

    def get_into(self, key: str, target: memoryview, *, start: int) -> None:
        target[:] = self._get(key, start, start + len(target)).body

    def head(self, key: str) -> ObjectInfo:
        with self._operation("head", check_key(key)):
            return self._find(key, "head").info

    def list(
        self, prefix: str, *, start_after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        with self._operation("list", prefix), self._lock:
            matching = [
                stored.info
                for key, stored in self._objects.items()
                if key.startswith(prefix) and key.encode() > start_after.encode()
            ]
        return iter(sorted(matching, key=lambda info: info.key.encode())[:limit])

    def list_folders(self, prefix: str) -> Iterator[str]:
        assert prefix == "" or prefix.endswith("/"), prefix
        with self._operation("list", prefix), self._lock:
            names = {
                key[len(prefix) :].partition("/")[0]
                for key in self._objects
                if key.startswith(prefix) and "/" in key[len(prefix) :]
            }
        return iter(sorted(names, key=str.encode))

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            with self._operation("delete", check_key(key)) as fault:
                remove = partial(self._remove, key)
                self._hold_up(fault, remove, "delete", key)
                remove()

    def delete_matching(self, key: str, etag: str) -> None:
        with self._operation("delete", check_key(key)) as fault:
            remove = partial(self._remove_matching, key, etag)
            self._hold_up(fault, remove, "delete", key)
            remove()

    def try_out(self, key: str) -> None:
        """A dictionary lacks nothing."""

    def abort_uploads(self, prefix: str, *, older_than_ms: int) -> int:
        """Uploads in memory leave no remains."""
        del older_than_ms
        with self._operation("abort_uploads", prefix):
            return 0

    def close(self) -> None:
        """Keeps its objects, so that a test can open the same store again."""

    def __repr__(self) -> str:
        return f"<MemoryStore objects={len(self._objects)}>"

    # --- inside ------------------------------------------------------------------------------

    @contextmanager
    def _operation(
        self, operation: str, key: str, start: int = 0, end: int = -1
    ) -> Iterator[Fault | None]:
        with self._lock:
            self.requests.append(StoreRequest(operation=operation, key=key, start=start, end=end))
            fault = next((f for f in self._faults if f.takes(operation, key)), None)
        if fault is None:
            yield None
            return
        if fault.gate is not None and not fault.gate.wait(GATE_WAIT_S_MAX):
            raise TierUnavailable(key, operation, "hung until the end of patience")
        if fault.error is not None and fault.moment is Timing.BEFORE:
            raise fault.error(key, operation, "injected")
        yield fault
        if fault.error is not None and fault.moment is Timing.AFTER:
            raise fault.error(key, operation, "injected after it was done")

    def _hold_up(
        self, fault: Fault | None, write: Callable[[], object], operation: str, key: str
    ) -> None:
        if fault is not None and fault.error is not None and fault.moment is Timing.LATE:
            self._late.append(write)
            raise fault.error(key, operation, "injected, and the request goes on")

    def _write(self, key: str, content: bytes, condition: PutCondition | None) -> ObjectInfo:
        info = ObjectInfo(
            key=key,
            size_bytes=len(content),
            # As in S3, a hash of the content: the same content has the same etag again.
            etag=f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"',
            crc32c=checksum(content),
            modified_ms=self._clock.now_ms(),
        )
        with self._lock:
            self._check_condition(key, condition)
            self._objects[key] = StoredObject(info=info, body=content)
        return info

    def _remove_matching(self, key: str, etag: str) -> None:
        with self._lock:
            if key in self._objects and Lack.CONDITIONAL_DELETE not in self.lacks:
                self._check_condition(key, IfMatches(etag))
            self._objects.pop(key, None)

    def _remove(self, key: str) -> None:
        with self._lock:
            self._objects.pop(key, None)

    def _get(self, key: str, start: int, end: int | None) -> StoredObject:
        last = -1 if end is None else end
        with self._operation("get", check_key(key), start, last) as fault:
            found = self._find(key, "get")
            size_bytes = len(found.body)
            if max(start, last) > size_bytes:
                raise ObjectCorrupt(
                    key, "get", f"has {size_bytes} bytes, [{start}, {end}) were asked for"
                )
            return replace(found, body=_damaged(found.body[start:end], fault))

    def _find(self, key: str, operation: str) -> StoredObject:
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
            case IfMatches(etag=etag) if found is None or found.info.etag != etag:
                raise PreconditionFailed(key, "put", f"the object is no longer {etag}")
            case _:
                return


def _damaged(content: bytes, fault: Fault | None) -> bytes:
    if fault is None or fault.flip_bit_at is None or fault.flip_bit_at >= len(content):
        return content
    changed = bytearray(content)
    changed[fault.flip_bit_at] ^= 1
    return bytes(changed)
