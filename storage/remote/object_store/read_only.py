"""A read-only view of an object store, for read-only replicas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NoReturn

from strandline.storage.errors import AccessDenied
from strandline.storage.model import TimestampMs
from strandline.storage.remote.object_store.interface import (
    Lack,
    ObjectInfo,
    ObjectStore,
    PutBody,
    PutCondition,
    StoredObject,
)


class ReadOnlyStore:
    """Forwards reads to the store inside, and raises AccessDenied for every write."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    @property
    def url(self) -> str:
        return self._store.url

    def check(self) -> None:
        self._store.check()

    def clock_ms(self) -> TimestampMs:
        return self._store.clock_ms()

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        return self._store.get(key, start=start, end=end)

    def get_object(self, key: str) -> StoredObject:
        return self._store.get_object(key)

    def get_into(self, key: str, target: memoryview, *, start: int) -> None:
        self._store.get_into(key, target, start=start)

    def head(self, key: str) -> ObjectInfo:
        return self._store.head(key)

    def list(
        self, prefix: str, *, start_after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        return self._store.list(prefix, start_after=start_after, limit=limit)

    def list_folders(self, prefix: str) -> Iterator[str]:
        return self._store.list_folders(prefix)

    def put(self, key: str, body: PutBody, *, condition: PutCondition | None = None) -> ObjectInfo:
        self._refuse(key, "put")

    def delete(self, keys: Sequence[str]) -> None:
        self._refuse(keys[0] if keys else "", "delete")

    def delete_matching(self, key: str, etag: str) -> None:
        del etag
        self._refuse(key, "delete")

    @property
    def lacks(self) -> frozenset[Lack]:
        return self._store.lacks

    def try_out(self, key: str) -> None:
        self._refuse(key, "put")

    def abort_uploads(self, prefix: str, *, older_than_ms: int) -> int:
        self._refuse(prefix, "abort")

    def close(self) -> None:
        self._store.close()

    def _refuse(self, key: str, operation: str) -> NoReturn:
        raise AccessDenied(key, operation, "a read-only replica writes nothing")

    def __repr__(self) -> str:
        return f"<ReadOnlyStore {self._store!r}>"
