"""Ticks of a kernel timer, and how late each one was read.

    expiry k is due at start + k * period        read ─► how late the oldest unread one is

The event loop's own timers are rounded up to milliseconds by `epoll_wait`, and recomputed whenever
something else wakes it. A timer of the kernel (timerfd) is exact to some ten microseconds, so what
a tick is late by is what the loop made it wait: for a core, or for others in the same turn. That
is also what a request waited that came at the same moment.
"""

from __future__ import annotations

import ctypes
import os

_CLOCK_MONOTONIC = 1
_TFD_NONBLOCK = os.O_NONBLOCK
_TFD_CLOEXEC = os.O_CLOEXEC
_TFD_TIMER_ABSTIME = 1
_NS_PER_S = 1_000_000_000


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    """The C structure `itimerspec` of timerfd_create(2)."""

    _fields_ = (("interval", _TimeSpec), ("first", _TimeSpec))


class Ticks:
    """A timer of the kernel; readable when a tick is due. It is disarmed until `start`."""

    def __init__(self) -> None:
        """Raises OSError if the system has no such timer."""
        try:
            self._library = ctypes.CDLL(None, use_errno=True)
            self._set_time = self._library.timerfd_settime
            create = self._library.timerfd_create
        except AttributeError as error:
            raise OSError(f"no timerfd here: {error}") from error
        self._descriptor: int = create(_CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._due_ns = 0
        self._period_ns = 0

    def fileno(self) -> int:
        """For `add_reader`."""
        return self._descriptor

    def start(self, period_s: float, now_s: float) -> None:
        """Arms the timer: the first tick is due in `period_s`."""
        self._period_ns = int(period_s * _NS_PER_S)
        self._due_ns = int(now_s * _NS_PER_S) + self._period_ns
        self._set(self._due_ns, self._period_ns)

    def stop(self) -> None:
        self._set(0, 0)

    def _set(self, first_ns: int, interval_ns: int) -> None:
        spec = _TimerSpec(
            _TimeSpec(*divmod(interval_ns, _NS_PER_S)), _TimeSpec(*divmod(first_ns, _NS_PER_S))
        )
        self._set_time(self._descriptor, _TFD_TIMER_ABSTIME, ctypes.byref(spec), None)

    def read_lateness_s(self, now_s: float) -> float | None:
        """Returns how late the oldest unread tick is; None if none is due."""
        try:
            count = int.from_bytes(os.read(self._descriptor, 8), "little")
        except BlockingIOError:
            return None
        due_ns = self._due_ns
        self._due_ns += count * self._period_ns
        return max(now_s - due_ns / _NS_PER_S, 0.0)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
