"""CPU seconds per process when Spark reads: the cost of a record in each of them.

    JVM       Spark's driver and executors, one process in local mode
    Python    its Python workers
    S3        the null S3 of the benchmark
    broker    ours, and Apache Kafka where it takes part: only Spark's Kafka source asks them

On a machine that others use these say more than a rate.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

WHO = ("JVM", "Python", "S3", "broker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Payers:
    """The processes, by their ids."""

    jvm: int
    brokers: tuple[int, ...]

    def spent_s(self) -> Mapping[str, float]:
        """User and system seconds of each of WHO so far."""
        parents: dict[int, int] = {}
        alone: dict[int, int] = {}
        with_children: dict[int, int] = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            pid = int(folder.name)
            parents[pid] = int(fields[1])
            alone[pid] = sum(map(int, fields[11:13]))
            with_children[pid] = sum(map(int, fields[11:15]))

        def is_worker(pid: int) -> bool:
            above = parents.get(pid, 0)
            while above not in (0, self.jvm):
                above = parents.get(above, 0)
            return above == self.jvm

        ticks = {
            "JVM": alone[self.jvm],
            # With those that have ended.
            "Python": sum(spent for pid, spent in with_children.items() if is_worker(pid)),
            "S3": sum(
                spent
                for pid, spent in alone.items()
                if parents[pid] == os.getpid() and _runs(pid, b"null_s3.py")
            ),
            "broker": sum(alone[pid] for pid in self.brokers),
        }
        return {who: spent / os.sysconf("SC_CLK_TCK") for who, spent in ticks.items()}


def _runs(pid: int, name: bytes) -> bool:
    try:
        return name in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
