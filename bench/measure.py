"""What a benchmark reads off the system: CPU seconds and memory of a process and its children."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time of `pid`, of its live children, and of those it has reaped."""
    total = 0.0
    for process in (pid, *_children(pid)):
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
        except FileNotFoundError:
            continue
        # utime, stime, and for the broker itself cutime, cstime of reaped children.
        total += sum(int(field) for field in fields[11 : 15 if process == pid else 13]) / _TICKS
    return total


def resident_mib(pid: int) -> float:
    """VmRSS of the process alone."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            found += [int(child) for child in (task / "children").read_text().split()]
        except FileNotFoundError:
            continue
    return [descendant for child in found for descendant in (child, *_children(child))]


@dataclass(slots=True)
class Measured:
    """One timed stretch of work."""

    wall_s: float = 0.0
    cpu_s: float = 0.0

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
