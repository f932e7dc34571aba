"""Says on stderr that the object store does not answer, while a command waits for it.

A request may take its store's time, half a minute with all attempts, before the command ends with
the error. A large transfer that goes on is no silence.
"""

from __future__ import annotations

import sys
import threading
import weakref
from typing import Protocol

from strandline.storage.remote.object_store.interface import ObjectStore

TOLD_AFTER_S = 2.0
LOOK_S = 0.25


class CanBeSilent(Protocol):
    """The part of a store over the network that is watched."""

    @property
    def url(self) -> str: ...

    @property
    def silent_s(self) -> float: ...


def watched(store: ObjectStore) -> ObjectStore:
    """Returns the store of a command; a thread says once per silence that it does not answer."""
    if store.url.startswith("s3"):
        from strandline.storage.remote.s3.store import S3Store

        if isinstance(store, S3Store):
            watch: CanBeSilent = store
            args = (weakref.ref(watch),)
            threading.Thread(target=_watch, args=args, name="silence", daemon=True).start()
    return store


def _watch(watch: weakref.ref[CanBeSilent]) -> None:
    is_told, never = False, threading.Event()
    while (store := watch()) is not None:
        is_silent = store.silent_s >= TOLD_AFTER_S
        if is_silent and not is_told:
            print(
                f"{store.url} has not answered for {TOLD_AFTER_S:.0f} s, still waiting",
                file=sys.stderr,
                flush=True,
            )
        is_told = is_silent
        del store
        never.wait(LOOK_S)
