"""Says on stderr that an object store does not answer, while a command waits for it.

A request may take its store's time, half a minute with all attempts, before the command ends with
the error; in a folder whose server is away it may take for ever.
"""

from __future__ import annotations

import sys
import threading

from strandline.storage.remote.silence import silent_places

TOLD_AFTER_S = 2.0
LOOK_S = 0.25


def tell_of_silence() -> None:
    """Starts a thread that says once per silence which store does not answer."""
    threading.Thread(target=_watch, name="silence", daemon=True).start()


def _watch() -> None:
    told: set[str] = set()
    never = threading.Event()
    while not never.wait(LOOK_S):
        silent = silent_places(TOLD_AFTER_S)
        for place in sorted(silent - told):
            print(
                f"{place} has not answered for {TOLD_AFTER_S:.0f} s, still waiting",
                file=sys.stderr,
                flush=True,
            )
        told = silent
