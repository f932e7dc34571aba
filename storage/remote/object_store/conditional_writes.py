"""Whether a server keeps conditions on writes: what two brokers on one archive depend on.

    1 create an object                 is done         4 replace it once more, as it was at 1
    2 create it once more              is refused                         is refused
    3 replace it, as it is (If-Match)  is done         5 eight create one object at once, then
                                                         eight replace it: one of them is done

Each answer but those of 5 is the same every time, and a server that gives another one is refused.
A server that looks first and writes afterwards keeps 1 to 4, and of 5 not always: more than one
done proves it, a single one proves nothing. One broker alone never writes a manifest twice at once,
so it is safe there, and 5 only warns.

The requests of a race run side by side, so that all of this takes nine of them in turn. The objects
lie under `probe/` and are deleted again; if that fails the answer is the same, and the search for
orphans deletes them.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from enum import Enum, auto

from strandline.storage.errors import InvalidConfig, PreconditionFailed, TierError
from strandline.storage.remote.keys import PROBE_PREFIX, new_unique
from strandline.storage.remote.object_store.interface import (
    IfAbsent,
    IfMatches,
    ObjectInfo,
    ObjectStore,
    PutCondition,
)

log = logging.getLogger(__name__)

# So many connections are open at once; two brokers that begin together are fewer.
RACERS = 8
# They start together, or after this long each for itself.
START_WAIT_S_MAX = 10.0


class Conditions(Enum):
    """How far a server keeps conditions; one that ignores them is refused."""

    # As far as a race tells.
    AT_ONCE = auto()
    # Of several writes at once more than one was done.
    ONE_AT_A_TIME = auto()


def check_conditional_writes(store: ObjectStore) -> Conditions:
    """How far the store keeps conditions; see the top of this file.

    Raises InvalidConfig if it writes although a condition does not hold, or refuses a write whose
    condition holds; TierError if it cannot be asked.
    """
    key, raced_key = (f"{PROBE_PREFIX}{new_unique()}" for _ in range(2))
    created = store.put(key, b"first", condition=IfAbsent())  # 1
    try:
        _check_one_at_a_time(store, created)
        return _race_both(store, raced_key)
    finally:
        try:
            store.delete([key, raced_key])
        except TierError as error:
            log.info(
                "the objects that tried the store out are deleted later",
                extra={"fields": {"keys": f"{key} {raced_key}", "reason": str(error)}},
            )


def _check_one_at_a_time(store: ObjectStore, created: ObjectInfo) -> None:
    key, as_created = created.key, IfMatches(created.etag)
    _check_refused(store, key, b"second", IfAbsent(), "If-None-Match")  # 2
    try:
        store.put(key, b"third", condition=as_created)  # 3
    except PreconditionFailed as error:
        what = f"refuses If-Match with the ETag that it gave itself ({error})"
        raise _unsafe(store, what) from error
    except TierError as error:
        if type(error) is not TierError:
            raise
        # No more is known of this answer: neither that it may pass, nor that it is about rights.
        raise _unsafe(store, f"does not know If-Match ({error})") from error
    _check_refused(store, key, b"fourth", as_created, "If-Match")  # 4


def _check_refused(
    store: ObjectStore, key: str, body: bytes, condition: PutCondition, header: str
) -> None:
    try:
        store.put(key, body, condition=condition)
    except PreconditionFailed:
        return
    raise _unsafe(store, f"ignores {header}: it overwrote an object that it had to leave alone")


def _unsafe(store: ObjectStore, what: str) -> InvalidConfig:
    return InvalidConfig(
        f"the server behind {store.url} {what}. Manifests would not be safe there; use a server"
        " with conditional writes (docs/operations.md, servers for the archive)"
    )


def _race_both(store: ObjectStore, key: str) -> Conditions:  # 5
    etags = _winners(store, key, b"created", IfAbsent())
    if len(etags) == 1:
        etags = _winners(store, key, b"replaced", IfMatches(etags[0]))
    if len(etags) < 2:
        return Conditions.AT_ONCE
    log.warning(
        "the server keeps conditions on writes only one request at a time: the archive is safe with"
        " this broker alone, and not if a second one is ever started on it",
        extra={"fields": {"url": store.url, "done": len(etags), "tried": RACERS}},
    )
    return Conditions.ONE_AT_A_TIME


def _winners(store: ObjectStore, key: str, body: bytes, condition: PutCondition) -> list[str]:
    """The ETags of those that were done; one that failed otherwise says nothing.

    No two write the same bytes, or their ETags were one.
    """
    together = threading.Barrier(RACERS)

    def race(number: int) -> str | None:
        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait(START_WAIT_S_MAX)
        try:
            return store.put(key, b"%s by %d" % (body, number), condition=condition).etag
        except TierError:
            return None

    with ThreadPoolExecutor(RACERS, "probe") as executor:
        return [etag for etag in executor.map(race, range(RACERS)) if etag is not None]
