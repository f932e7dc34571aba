"""Members of a group in processes of their own, and what they tell (see `group_worker`)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from types import TracebackType
from typing import Any

from tests.support.broker import REPOSITORY, eventually
from tests.system.cluster.bounced import BouncedCluster

WORKER = "tests.system.cluster.group_worker"
END_S = 60


class Member:
    """One process; it may be ended and started again."""

    def __init__(self, members: GroupMembers, command: list[str]) -> None:
        self._members = members
        self._command = command
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self.assignment: set[int] = set()
        self.assigned_count = 0
        self.failure = ""

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        self.assignment, self.assigned_count, self.failure = set(), 0, ""
        self._process = subprocess.Popen(
            self._command,
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / '.namespace'}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()

    def end(self, *, is_clean: bool) -> None:
        """Leaves the group, or is killed: then its session has to end."""
        assert self._process is not None
        assert self._reader is not None
        self._process.send_signal(signal.SIGTERM if is_clean else signal.SIGKILL)
        self._process.wait(END_S)
        self._reader.join(END_S)
        self.assignment = set()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._note(json.loads(line))

    def _note(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "assigned":
                self.assignment |= set(event["partitions"])
                self.assigned_count += 1
            case "revoked":
                self.assignment -= set(event["partitions"])
            case "failed":
                self.failure = event["reason"]
            case _:
                self._members.note(event)


class GroupMembers:
    """The members of one group, and what they read and committed together."""

    def __init__(
        self,
        cluster: BouncedCluster,
        topic: str,
        *,
        count: int = 3,
        protocol: str = "classic",
        are_static: bool = False,
        group: str = "",
    ) -> None:
        self.partitions = 0
        self.consumed: Counter[int] = Counter()
        self.committed: dict[int, int] = {}
        self._lock = threading.Lock()
        command = [sys.executable, "-m", WORKER, cluster.bootstrap, group or f"of-{topic}", topic]
        self.all = [
            Member(self, [*command, protocol, *([f"instance-{number}"] if are_static else [])])
            for number in range(count)
        ]

    def __enter__(self) -> GroupMembers:
        for member in self.all:
            member.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for member in self.all:
            if member.is_running:
                member.end(is_clean=False)

    def note(self, event: dict[str, Any]) -> None:
        with self._lock:
            if event["event"] == "consumed":
                self.consumed[event["partition"]] += event["count"]
                span = event["last"] - event["first"] + 1
                assert span == event["count"], event
            elif event["event"] == "committed":
                self.committed[event["partition"]] = event["offset"]

    @property
    def rebalance_count(self) -> int:
        return sum(member.assigned_count for member in self.all)

    def await_shared(self, partitions: int) -> None:
        """Returns when the running members share all partitions, as evenly as possible."""
        eventually(lambda: self._is_shared(partitions))

    def _is_shared(self, partitions: int) -> bool:
        shares = [set(one.assignment) for one in self.all if one.is_running]
        held = [number for share in shares for number in share]
        # The first member has all of them for a moment.
        is_fair = sum(map(bool, shares)) == min(partitions, len(shares))
        return is_fair and sorted(held) == list(range(partitions))

    def await_consumed(self, count: int) -> None:
        """Returns when so many records were read since this call."""
        before = self.consumed.total()
        eventually(lambda: self.consumed.total() >= before + count)

    def stop(self) -> None:
        for member in self.all:
            if member.is_running:
                member.end(is_clean=True)
