"""Tries a server out: conditional writes, on which manifests depend, and what copies need.

    1 create an object (If-None-Match)     succeeds
    2 create it again                      fails
    3 replace it (If-Match)                succeeds
    4 replace it with the etag of step 1   fails
    5 eight create an object concurrently, then eight replace it: one succeeds each time
    6 upload an object in parts, delete it with another etag     the store learns what it lacks
    7 delete all of them at once                                 likewise

A server that answers 1 to 4 otherwise is refused: these answers are deterministic. One that checks
first and writes afterwards passes them, and may let several writes of 5 succeed, which only logs a
warning: a single broker never writes a manifest twice at once. One success in 5 proves nothing.

What a server lacks of 6 and 7, and checksums, is done in another way (`Lack`). One that deletes
nothing still archives, which is logged.

The requests of a race are concurrent, so the check takes the time of some thirteen requests. Its
objects lie under `probe/`; what is left there, the search for orphans deletes.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum, auto

from strandline.storage.errors import (
    InvalidConfig,
    PreconditionFailed,
    TierError,
    TierUnavailable,
)
from strandline.storage.remote.keys import PROBE_PREFIX, new_unique
from strandline.storage.remote.object_store.interface import (
    IfAbsent,
    IfMatches,
    ObjectInfo,
    ObjectStore,
    PutCondition,
)

log = logging.getLogger(__name__)

# The concurrent connections of a race; two brokers that start together need fewer.
RACERS = 8
# Racers wait for each other at most this long.
START_WAIT_S_MAX = 10.0


class Conditions(Enum):
    """The result of the probe: does a server enforce conditions on concurrent writes?"""

    # No race showed otherwise.
    AT_ONCE = auto()
    # Several of the concurrent writes succeeded.
    ONE_AT_A_TIME = auto()


def check_conditional_writes(store: ObjectStore) -> Conditions:
    """Checks the store, in the steps of this module's docstring.

    Raises InvalidConfig if it writes although a condition does not hold, or refuses a write whose
    condition holds; TierError if a request fails.
    """
    keys = [f"{PROBE_PREFIX}{new_unique()}" for _ in range(3)]
    key, raced_key, tried_key = keys
    created = store.put(key, b"first", condition=IfAbsent())  # 1
    try:
        _check_one_at_a_time(store, created)
        conditions = _race_both(store, raced_key)
        store.try_out(tried_key)  # 6
        return conditions
    finally:
        _delete(store, keys)  # 7


def _delete(store: ObjectStore, keys: Sequence[str]) -> None:
    try:
        store.delete(keys)
    except TierError as error:
        fields = {"keys": " ".join(keys), "reason": str(error)}
        if isinstance(error, TierUnavailable):
            log.info(
                "the objects that tried the store out are deleted later", extra={"fields": fields}
            )
        else:
            log.warning(
                "the store refuses to delete: what expires stays in the bucket",
                extra={"fields": fields},
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
        # An error that is neither transient nor a matter of permissions.
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
        f"the server behind {store.url} {what}. Two brokers could overwrite each other's manifests"
        " there. Use a server with conditional writes: strandline docs"
        " how-to/bucket#servers-for-the-archive"
    )


def _race_both(store: ObjectStore, key: str) -> Conditions:  # 5
    etags = _winners(store, key, b"created", IfAbsent())
    if len(etags) == 1:
        etags = _winners(store, key, b"replaced", IfMatches(etags[0]))
    if len(etags) < 2:
        return Conditions.AT_ONCE
    log.warning(
        "the server honours conditional writes only one request at a time: the archive is safe"
        " with this broker alone, and not if a second one is ever started on it",
        extra={"fields": {"url": store.url, "done": len(etags), "tried": RACERS}},
    )
    return Conditions.ONE_AT_A_TIME


def _winners(store: ObjectStore, key: str, body: bytes, condition: PutCondition) -> list[str]:
    """The ETags of the writes that succeeded. Each writes other bytes, so that no two are equal."""
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
