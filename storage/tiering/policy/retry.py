"""Retries with backoff, and logs the reason of a failure once.

    attempt fails   wait   0.5 s, 1 s, 2 s ... 30 s, each a little off so that partitions spread
    reason changes  one WARNING with the reason, how long it has been so, and when it is tried again
    success         one INFO if there had been a reason

A reason is the class of the error and the operation, not the text: texts contain keys and times
that differ at each attempt, and a log that repeats itself hides the next reason. A store that is
away is one reason, whichever request met it first.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.storage.backoff import Backoff
from strandline.storage.clock import Clock
from strandline.storage.config.definition import DOUBLE, LONG, key
from strandline.storage.errors import (
    ObjectArchived,
    ObjectCorrupt,
    ObjectNotFound,
    StrandlineError,
    TierError,
    TierUnavailable,
)

if TYPE_CHECKING:
    from strandline.storage.remote.manifest.entries import SegmentEntry

log = logging.getLogger(__name__)

# A segment that could not be read so many times is taken for damaged: fewer may be bytes that were
# damaged on their way, or a 404 that is none.
UNREADABLE_TIMES = 3
# Errors that mean that an object cannot be read as it is.
OBJECT_UNREADABLE = (ObjectArchived, ObjectCorrupt, ObjectNotFound)


def named_in(error: TierError, entries: Iterable[SegmentEntry]) -> list[SegmentEntry]:
    """Returns the entries with the error's object; it may also be an object merged from them."""
    return [entry for entry in entries if error.key in (entry.log_key, entry.meta_key)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Backoff of the remote tier's work after a failure."""

    backoff_ms: int = key(
        "remote.log.manager.task.retry.backoff.ms",
        LONG,
        500,
        "Ms before the first retry of a copy or a deletion that failed; each further wait is twice"
        " as long.",
        minimum=1,
    )
    backoff_ms_max: int = key(
        "remote.log.manager.task.retry.backoff.max.ms",
        LONG,
        30_000,
        "Longest wait before a retry, in ms.",
        minimum=1,
    )
    jitter: float = key(
        "remote.log.manager.task.retry.jitter",
        DOUBLE,
        0.2,
        "Random part of the wait before a retry, so that partitions do not retry together.",
        minimum=0,
        maximum=0.5,
    )

    @property
    def backoff(self) -> Backoff:
        return Backoff(self.backoff_ms / 1000, self.backoff_ms_max / 1000, self.jitter)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureInfo:
    """Why an activity fails at present; `kind` is the class of the error.

    `since_s` is monotonic: an alert for what fails too long is not put off by a clock put back.
    """

    reason: str
    kind: str
    attempts: int
    since_s: float

    @classmethod
    def after(cls, before: FailureInfo | None, error: StrandlineError, now_s: float) -> FailureInfo:
        """Returns the next failure of an activity that failed as `before`, if at all."""
        return cls(
            reason=str(error),
            kind=type(error).__name__,
            attempts=1 if before is None else before.attempts + 1,
            since_s=now_s if before is None else before.since_s,
        )


class RetryState:
    """The recent history of one activity of one partition (or topic)."""

    def __init__(self, activity: str, subject: str, *, policy: RetryPolicy, clock: Clock) -> None:
        """`activity` is a constant such as `copy`; `subject` names its partition or topic."""
        self.activity = activity
        self.subject = subject
        self._policy = policy
        self._clock = clock
        self._retry_s = 0.0
        self._reason_class = ""
        self.failure: FailureInfo | None = None

    @property
    def failing(self) -> tuple[RetryState, ...]:
        """This activity if it fails now."""
        return () if self.failure is None else (self,)

    @property
    def may_try(self) -> bool:
        """Whether the wait after the last failure is over."""
        return self.failure is None or self._clock.monotonic_s() >= self._retry_s

    def failed(self, error: StrandlineError) -> None:
        """Records a failure; logs it if its reason is new."""
        now_s = self._clock.monotonic_s()
        failure = self.failure = FailureInfo.after(self.failure, error, now_s)
        self._retry_s = now_s + self._policy.backoff.wait_s(failure.attempts)
        reason_class = _reason_class(error)
        fields = {
            "activity": self.activity,
            "subject": self.subject,
            "reason": failure.reason,
            "kind": failure.kind,
            "attempts": failure.attempts,
            "for_s": round(now_s - failure.since_s, 3),
        }
        level = logging.DEBUG if reason_class == self._reason_class else logging.WARNING
        self._reason_class = reason_class
        log.log(level, "tiering does not succeed, will be tried again", extra={"fields": fields})

    def succeeded(self) -> None:
        """Clears the failures; logs the recovery if there were any."""
        if self.failure is None:
            return
        fields = {
            "activity": self.activity,
            "subject": self.subject,
            "attempts": self.failure.attempts,
            "failed_for_s": round(self._clock.monotonic_s() - self.failure.since_s, 3),
        }
        self.failure = None
        self._reason_class = ""
        log.info("tiering succeeds again", extra={"fields": fields})

    def __repr__(self) -> str:
        return f"<RetryState {self.activity} {self.subject} failure={self.failure}>"


def _reason_class(error: StrandlineError) -> str:
    if isinstance(error, TierError) and not isinstance(error, TierUnavailable):
        return f"{type(error).__name__} {error.operation}"
    return type(error).__name__
