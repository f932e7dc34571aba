"""Says on stderr that a store does not answer, while a command waits for it."""

from __future__ import annotations

import sys

from strandline.storage.remote.silence import TOLD_AFTER_S, SilenceWatch


def telling_of_silence() -> SilenceWatch:
    """Says, while it is entered, once per silence which store does not answer."""
    return SilenceWatch(_say)


def _say(place: str) -> None:
    print(
        f"{place} has not answered for {TOLD_AFTER_S:.0f} s, still waiting",
        file=sys.stderr,
        flush=True,
    )
