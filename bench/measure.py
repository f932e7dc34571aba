"""CPU seconds and memory of a process and its children."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_CPUCLOCK_SCHED = 2

# A tenth of a core: a JVM does not become much quieter.
QUIET_SHARE = 0.1
# Longer than a broker's background tasks are apart in the benchmarks.
QUIET_WINDOW_S = 1.5
QUIET_WAIT_S_MAX = 60.0
SCRATCH_BLOCK_BYTES = 1 << 20


def cpu_seconds(pid: int) -> float:
    """User and system time of `pid`, of its live children, and of those it has reaped."""
    total = _reaped_seconds(pid)
    for process in (pid, *_children(pid)):
        try:
            # The clock of all threads of the process, in nanoseconds: clock_getcpuclockid(3).
            # The ticks in /proc are 10 ms, a tenth of what some rows take.
            total += time.clock_gettime((~process << 3) | _CPUCLOCK_SCHED)
        except OSError:
            continue
    return total


def _reaped_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(int(field) for field in fields[13:15]) / _TICKS


def resident_mib(pid: int) -> float:
    """Resident memory of the process and its children now."""
    return sum(_status_mib(process, "VmRSS:") for process in (pid, *_children(pid)))


def proportional_mib(pid: int) -> float:
    """As `resident_mib`, with pages that processes share counted once among them."""
    return sum(_pss_mib(process) for process in (pid, *_children(pid)))


def _pss_mib(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))


def peak_mib(pid: int) -> float:
    """The most that the process was ever resident with, and its live children each."""
    return sum(_status_mib(process, "VmHWM:") for process in (pid, *_children(pid)))


def _status_mib(pid: int, name: str) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            found += [int(child) for child in (task / "children").read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue
    return [descendant for child in found for descendant in (child, *_children(child))]


def await_quiet(pid: int) -> None:
    """Returns when `pid` and its children have nothing left to do in the background.

    A broker merges and copies after its log was archived, and loads its libraries after its start.
    That work is not what is measured next, and on a machine of few cores it would be.
    """
    give_up_s = time.monotonic() + QUIET_WAIT_S_MAX
    before_s = cpu_seconds(pid)
    while time.monotonic() < give_up_s:
        time.sleep(QUIET_WINDOW_S)
        now_s = cpu_seconds(pid)
        if now_s - before_s < QUIET_SHARE * QUIET_WINDOW_S:
            return
        before_s = now_s


def warm_page_cache(folder: Path, byte_count: int) -> None:
    """Leaves the system so much free memory that it has written to lately.

    A virtual machine may hand free memory back, and pays for each page when it is first written to
    again: then whoever appends next takes ten times as long, and it is not its own time.
    """
    scratch = folder / "scratch"
    block = bytes(SCRATCH_BLOCK_BYTES)
    with scratch.open("wb", buffering=0) as file:
        for _ in range(-(-byte_count // len(block))):
            file.write(block)
        # Nothing of it goes to the disk later, in the middle of what is measured.
        file.truncate(0)
    scratch.unlink()


@dataclass(slots=True)
class Measured:
    """One timed stretch of work, or the sum of several."""

    wall_s: float = 0.0
    cpu_s: float = 0.0

    def __add__(self, other: Measured) -> Measured:
        return Measured(wall_s=self.wall_s + other.wall_s, cpu_s=self.cpu_s + other.cpu_s)

    def mb_per_s(self, byte_count: int) -> float:
        return byte_count / 1e6 / self.wall_s

    def cpu_s_per_gb(self, byte_count: int) -> float:
        return self.cpu_s / (byte_count / 1e9)


@contextmanager
def measuring(pid: int) -> Iterator[Measured]:
    """Times the block, and the CPU that process `pid` spent in it."""
    measured = Measured()
    cpu_before_s = cpu_seconds(pid)
    started_s = time.perf_counter()
    yield measured
    measured.wall_s = time.perf_counter() - started_s
    measured.cpu_s = cpu_seconds(pid) - cpu_before_s
