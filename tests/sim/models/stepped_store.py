"""Blocking code, run request by request: each of its requests to the store is a step of a world.

The code runs again from its beginning with the answers that it has had so far, and is left at the
first request without one. So its state is a value, the answers, and the real code stands still
wherever a test wants it to.

    outcome = store.run(call, answers=(a, b))       the third request, or how the call ended
    objects, answer = answered(objects, outcome)    what it does to the store, and its answer
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

from strandline.storage.errors import ObjectNotFound, PreconditionFailed, TierError
from strandline.storage.remote.object_store.interface import (
    IfAbsent,
    IfMatches,
    ObjectInfo,
    PutCondition,
    checksum,
)

# All objects of a store, in the order of their keys.
Objects: TypeAlias = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request that waits for its answer."""

    operation: str
    key: str
    body: bytes = b""
    condition: PutCondition | None = None
    start_after: str = ""
    limit: int | None = None

    @property
    def is_write(self) -> bool:
        return self.operation in ("put", "delete")

    def __str__(self) -> str:
        return f"{self.operation} {self.key}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An answer that is an error."""

    error: type[TierError]
    key: str
    operation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The call returned, or raised `error`."""

    error: Exception | None = None


Answer: TypeAlias = bytes | ObjectInfo | tuple[ObjectInfo, ...] | Failure | None


class _Unanswered(BaseException):
    """No error that the code under test could handle."""

    def __init__(self, request: Request) -> None:
        super().__init__(str(request))
        self.request = request


def _refuse(request: Request) -> Answer:
    raise _Unanswered(request)


class SteppedStore:
    """The part of a store that the metadata log uses."""

    url = "memory://stepped"

    def __init__(self) -> None:
        self._answer: Callable[[Request], Answer] = _refuse

    def run(self, call: Callable[[], object], answers: Sequence[Answer]) -> Request | Ended:
        """Runs `call` with these answers; returns its next request, or how it ended."""
        left = deque(answers)
        return self._run(call, lambda request: left.popleft() if left else _refuse(request))

    def run_alone(self, call: Callable[[], object], objects: Objects) -> tuple[Objects, Ended]:
        """Runs `call` to its end, with nothing in between."""

        def carry_out(request: Request) -> Answer:
            nonlocal objects
            objects, answer = answered(objects, request)
            return answer

        ended = self._run(call, carry_out)
        assert isinstance(ended, Ended), ended
        return objects, ended

    def _run(
        self, call: Callable[[], object], answer: Callable[[Request], Answer]
    ) -> Request | Ended:
        self._answer = answer
        try:
            call()
        except _Unanswered as unanswered:
            return unanswered.request
        except Exception as error:
            return Ended(error=error)
        return Ended()

    def _ask(self, request: Request) -> Answer:
        answer = self._answer(request)
        if isinstance(answer, Failure):
            raise answer.error(answer.key, answer.operation)
        return answer

    def put(self, key: str, body: bytes, *, condition: PutCondition | None = None) -> ObjectInfo:
        request = Request(operation="put", key=key, body=bytes(body), condition=condition)
        return cast(ObjectInfo, self._ask(request))

    def get(self, key: str) -> bytes:
        return cast(bytes, self._ask(Request(operation="get", key=key)))

    def head(self, key: str) -> ObjectInfo:
        return cast(ObjectInfo, self._ask(Request(operation="head", key=key)))

    def list(
        self, prefix: str, *, start_after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        request = Request(operation="list", key=prefix, start_after=start_after, limit=limit)
        return iter(cast("tuple[ObjectInfo, ...]", self._ask(request)))

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._ask(Request(operation="delete", key=key))


def answered(objects: Objects, request: Request) -> tuple[Objects, Answer]:
    """Carries a request out; returns the objects after it, and the answer.

    As an S3 client that repeats a request and finds its own bytes, a put does not lose to itself.
    """
    key = request.key
    found = dict(objects).get(key)
    match request.operation:
        case "list":
            return objects, _listed(objects, request)
        case "delete":
            return tuple(item for item in objects if item[0] != key), None
        case "put" if found != request.body and _is_refused(request.condition, key, found):
            return objects, Failure(error=PreconditionFailed, key=key, operation="put")
        case "put":
            changed = {**dict(objects), key: request.body}
            return tuple(sorted(changed.items())), _info(key, request.body)
        case operation if found is None:
            return objects, Failure(error=ObjectNotFound, key=key, operation=operation)
        case "get":
            return objects, found
        case _:
            return objects, _info(key, found)


def _is_refused(condition: PutCondition | None, key: str, found: bytes | None) -> bool:
    match condition:
        case IfAbsent():
            return found is not None
        case IfMatches(etag=etag):
            return found is None or _info(key, found).etag != etag
        case _:
            return False


def _listed(objects: Objects, request: Request) -> tuple[ObjectInfo, ...]:
    after = objects[bisect_right(objects, request.start_after, key=lambda item: item[0]) :]
    found = [_info(key, body) for key, body in after if key.startswith(request.key)]
    return tuple(found[: request.limit])


def _info(key: str, body: bytes) -> ObjectInfo:
    return ObjectInfo(key=key, size_bytes=len(body), etag=f'"{checksum(body):08x}"')
