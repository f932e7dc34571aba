"""Retries a request until it succeeds, fails permanently, or reaches its deadline.

    attempt ─ok─► response
       └─fails─► classify ─► not worth repeating ──────────────────────► raise
                     └─► worth it ─► attempts and time left? ─no───────► raise
                                        └─yes─► pause (doubled, jittered) ─► attempt

The number of attempts, each attempt's socket timeouts and their total time are bounded, so a
caller's thread always returns.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from strandline.storage.backoff import Backoff
from strandline.storage.clock import Clock
from strandline.storage.errors import TierError, TierUnavailable
from strandline.storage.remote.object_store.interface import Deadlines
from strandline.storage.remote.silence import SLOW_BYTES_PER_S, Silence

log = logging.getLogger(__name__)

T = TypeVar("T")

PAUSES = Backoff(0.075, 3.75, jitter=1 / 3)


class DeadlineError(Exception):
    """The deadline of a request has passed; its caller gets TierUnavailable."""


class AgainError(Exception):
    """An attempt failed with a retriable error; `error` is raised if the retries fail too."""

    def __init__(self, error: TierError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True, slots=True)
class Failure:
    """The classified error of one attempt, and whether a retry may succeed."""

    error: TierError
    is_worth_repeating: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStatistics:
    """Attempts per operation: S3 bills each request, so retries are counted too."""

    requests: Mapping[str, int]
    failed_attempt_count: int


class Attempts:
    """Runs requests with retries; thread-safe. `classify` re-raises programming errors."""

    def __init__(
        self,
        *,
        deadlines: Deadlines,
        clock: Clock,
        silence: Silence,
        classify: Callable[[Exception, str, str], Failure],
    ) -> None:
        self._deadlines = deadlines
        self._clock = clock
        self._classify = classify
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._requests: Counter[str] = Counter()
        self._failed_attempt_count = 0
        self.silence = silence

    def statistics(self) -> AttemptStatistics:
        with self._lock:
            return AttemptStatistics(
                requests=dict(self._requests), failed_attempt_count=self._failed_attempt_count
            )

    def close(self) -> None:
        """Ends all pauses; running requests fail at their next attempt, new ones immediately."""
        self._closing.set()

    def run(
        self,
        key: str,
        operation: str,
        attempt: Callable[[float], T],
        *,
        size_bytes: int = 0,
        give_up_s: float | None = None,
        attempts_max: int | None = None,
    ) -> T:
        """Calls `attempt(deadline_s)`; the deadline is in the clock's monotonic time.

        A transfer of `size_bytes` extends the deadline, at most to `give_up_s`;
        `attempts_max` overrides the store's limit for requests that deserve fewer retries.
        Raises the TierError of the last failure.
        """
        if self._closing.is_set():
            # This includes the HEAD after a PUT of unknown outcome: a broker that stops while the
            # store hangs waits for one timeout, not for two.
            raise TierUnavailable(key, operation, "the store is closed")
        with self.silence:
            return self._run(key, operation, attempt, size_bytes, give_up_s, attempts_max)

    def _run(
        self,
        key: str,
        operation: str,
        attempt: Callable[[float], T],
        size_bytes: int,
        give_up_s: float | None,
        attempts_max: int | None,
    ) -> T:
        time_s = self._deadlines.request_s + size_bytes / SLOW_BYTES_PER_S
        deadline_s = self._clock.monotonic_s() + time_s
        if give_up_s is not None:
            deadline_s = min(deadline_s, give_up_s)
        last_number = attempts_max or self._deadlines.attempts_max
        number = 1
        while True:
            with self._lock:
                self._requests[operation] += 1
            try:
                return attempt(deadline_s)
            except TierError:
                raise
            except Exception as error:
                failure = self._classify(error, key, operation)
                with self._lock:
                    self._failed_attempt_count += 1
                is_last = number >= last_number or not failure.is_worth_repeating
                log.debug(
                    "attempt failed",
                    extra={
                        "fields": {
                            "operation": operation,
                            "key": key,
                            "attempt": number,
                            "error": failure.error.detail,
                        }
                    },
                )
                if is_last or not self._pause(number, deadline_s):
                    raise failure.error from error
                number += 1

    def _pause(self, attempt_number: int, deadline_s: float) -> bool:
        """Waits before the next attempt; False if the deadline leaves no time for one."""
        pause_s = PAUSES.wait_s(attempt_number)
        if self._clock.monotonic_s() + pause_s >= deadline_s:
            return False
        return not self._closing.wait(pause_s)
