"""How soon a thread gets a core when others want it too: its slice of Linux's scheduler (EEVDF).

With a short slice a thread is let in soon after it wakes up, also where another is running, and is
interrupted sooner itself; with a long one it lets others go first and works on undisturbed. The
share of the processor stays what it was; only its pieces change. A slice may be asked for without
privilege since Linux 6.12. Older kernels take the request and do nothing.
"""

from __future__ import annotations

import ctypes
import os

# The least that the kernel gives, and more than most turns of a loop take. The system's own is
# 0.7 ms with one core, 1.4 with two, up to 2.8 with eight and more.
SHORT_SLICE_NS = 100_000

# (sched_setattr, sched_getattr); glibc has functions for them only since 2.41.
_CALLS = {"x86_64": (314, 315), "aarch64": (274, 275)}
_SCHED_OTHER, _SCHED_BATCH = 0, 3
_RESET_ON_FORK = 1
# The size of the structure in the kernel that introduced it, which all later ones take.
_SIZE_BYTES = 48


class _Attributes(ctypes.Structure):
    """`struct sched_attr`, sched_setattr(2)."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime_ns", ctypes.c_uint64),
        ("deadline_ns", ctypes.c_uint64),
        ("period_ns", ctypes.c_uint64),
    )


def ask_for_slice(slice_ns: int) -> bool:
    """Sets the slice of the calling thread, and of no other: what it starts has the system's own.

    False where the system does not let us, or where somebody chose a policy for this thread.
    """
    attributes = _attributes_of(0)
    if attributes is None or attributes.policy not in (_SCHED_OTHER, _SCHED_BATCH):
        return False
    attributes.runtime_ns = slice_ns
    if attributes.nice >= 0:
        # Beside the slice it takes negative niceness from what is started, which is not ours to do.
        attributes.flags |= _RESET_ON_FORK
    set_call, _ = _CALLS[os.uname().machine]
    library = ctypes.CDLL(None)
    return bool(library.syscall(set_call, 0, ctypes.byref(attributes), 0) == 0)


def slice_ns_of(thread_id: int) -> int:
    """The slice of a thread; 0 where the system does not tell."""
    attributes = _attributes_of(thread_id)
    return 0 if attributes is None else int(attributes.runtime_ns)


def _attributes_of(thread_id: int) -> _Attributes | None:
    """What the scheduler knows of a thread (0: the calling one); None where it cannot be asked."""
    calls = _CALLS.get(os.uname().machine)
    if calls is None:
        return None
    attributes = _Attributes()
    library = ctypes.CDLL(None)
    if library.syscall(calls[1], thread_id, ctypes.byref(attributes), _SIZE_BYTES, 0):
        return None
    attributes.size = _SIZE_BYTES
    return attributes
