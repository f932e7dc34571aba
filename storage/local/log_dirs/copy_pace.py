"""Bounds the bytes a second of copies between log folders, as an operator sets it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from strandline.storage.clock import Clock
from strandline.storage.config.log_config import LONG_MAX
from strandline.storage.rates import TokenBucket

# A copy reads this much at once, and looks whether it was cancelled in between.
PIECE_BYTES_MAX: Final = 8 * 1024 * 1024
_PIECE_BYTES_MIN: Final = 64 * 1024
# Another rate holds from the next look on.
PAUSE_S_MAX: Final = 0.5


class CopyPace:
    """The pace of all copies together; used by one thread at a time."""

    def __init__(self, bytes_max: Callable[[], int], clock: Clock) -> None:
        """`bytes_max` is the rate, bytes a second, which may be altered; LONG_MAX: any."""
        self._bytes_max = bytes_max
        self._clock = clock
        self._bucket = TokenBucket()

    def piece_bytes(self) -> int:
        """Returns how much to copy before the next `copied`: a second's worth at most."""
        return min(PIECE_BYTES_MAX, max(self._bytes_max(), _PIECE_BYTES_MIN))

    def copied(self, size_bytes: int) -> None:
        if (rate := self._bytes_max()) < LONG_MAX:
            self._fill(rate)
            self._bucket.take(size_bytes)

    def pause_s(self) -> float:
        """Returns how long to wait before the next piece, PAUSE_S_MAX at most: then ask again."""
        rate = self._bytes_max()
        if rate == LONG_MAX:
            return 0.0
        return min(self._bucket.debt_ms(self._fill(rate)) / 1000, PAUSE_S_MAX)

    def _fill(self, rate: int) -> int:
        """Brings the bucket up to now; returns the rate that it has.

        With a rate of 0 the copy stands still, for any practical purpose.
        """
        rate = max(rate, 1)
        self._bucket.tokens(self._clock.monotonic_s(), per_s=rate, burst=rate)
        return rate


def unbounded(clock: Clock) -> CopyPace:
    """Returns a pace that holds nothing back."""
    return CopyPace(lambda: LONG_MAX, clock)
