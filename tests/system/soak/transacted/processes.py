"""Writers of transactions as processes: kept running, killed, and turned into zombies.

    kill       kill -9 in the middle of whatever it does; another one takes the id
    zombie     SIGSTOP; another one takes the id and aborts what is open; SIGCONT: it must be fenced

What a process says is read in one thread, in order: what it says last before its end decides what
may have become of its transaction.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.support.broker import REPOSITORY
from tests.system.soak.clients import _Thread
from tests.system.soak.model import Violations
from tests.system.soak.transacted.model import Fate, TransactionModel, code_of, key_of, told

LIFE_S = (2.0, 10.0)
# A process may wait for a broker that is down, and for a time-out of what was open.
PATIENCE_S = 150.0
PUMP_S = 0.1


class WriterProcess:
    """One process, and what it said."""

    def __init__(
        self, bootstrap: str, transactional_id: str, number: int, model: TransactionModel, log: Path
    ) -> None:
        self.is_ready = False
        self.has_ended = False
        self._model = model
        self._number = number
        self._open_key: int | None = None
        self._zombie = False
        self._buffer = b""
        topic, partitions = model.partitions[0].topic, len(model.partitions)
        with open(log, "ab") as errors:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.system.soak.transacted.writer"),
                    *(bootstrap, transactional_id, str(number), topic, str(partitions)),
                ],
                cwd=REPOSITORY,
                env={**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / '.namespace'}"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )

    def pump(self, timeout_s: float = PUMP_S) -> bool:
        """Takes what it says; whether there was something."""
        assert self._process.stdout is not None
        if self.has_ended or not select.select([self._process.stdout], [], [], timeout_s)[0]:
            return False
        read = os.read(self._process.stdout.fileno(), 1 << 16)
        if not read:
            self._end()
            return False
        *lines, self._buffer = (self._buffer + read).split(b"\n")
        for line in lines:
            self._take(line.decode())
        return True

    def _take(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == "ready":
            self.is_ready = True
        if word in ("ready", "fenced"):
            return
        number, _, rest = rest.partition(" ")
        key = key_of(code_of(self._number, int(number), 0))
        self._open_key = None if word in ("committed", "aborted") else key
        if word == "committed":
            self._model.become(key, Fate.COMMITTED, json.loads(rest))
        elif word == "aborted" or (word == "begin" and self._zombie):
            self._model.become(key, Fate.ABORTED)
        elif rest == "commit" and not self._zombie:
            self._model.become(key, Fate.EITHER)

    def suspend(self) -> None:
        """SIGSTOP; what it said before is taken."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        while self.pump(0):
            continue

    def resume(self) -> None:
        """SIGCONT of one whose id another one has: nothing that was open may be committed."""
        self._zombie = True
        self._give_up()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        while not self.has_ended:
            self.pump()

    def ask_to_stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _end(self) -> None:
        """Its output is at its end."""
        self.has_ended = True
        self._process.wait()
        self._give_up()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()

    def _give_up(self) -> None:
        """What is open and was not asked to commit never will be."""
        if self._open_key is not None and self._model.fate(self._open_key) is Fate.OPEN:
            self._model.become(self._open_key, Fate.ABORTED)

    def __str__(self) -> str:
        last = "nothing" if self._open_key is None else told(self._open_key)
        return f"writer {self._number}, with {last} under way"


class TransactionalWriter(_Thread):
    """Keeps one transactional id busy: a process after the other, each with a number of its own."""

    def __init__(
        self,
        number: int,
        bootstrap: str,
        model: TransactionModel,
        violations: Violations,
        log: Path,
        *,
        first_process: int,
    ) -> None:
        """`first_process` is one that no other writer has: their processes are numbered by it."""
        super().__init__(f"transactional writer {number}", violations)
        self.kill_count = self.zombie_count = 0
        self._bootstrap = bootstrap
        self._model = model
        self._id = f"soak-{number}"
        self._next_number = first_process * 1000
        self._log = log
        self._chance = random.Random(first_process)

    def _run(self) -> None:
        process = self._start()
        while not self._stopping.is_set():
            self._watch(process, self._chance.uniform(*LIFE_S))
            if process.has_ended:
                process = self._start()
            elif not self._stopping.is_set():
                process = self._replace(process)
        process.ask_to_stop()
        self._watch_until_ended(process)

    def _start(self) -> WriterProcess:
        self._next_number += 1
        return WriterProcess(self._bootstrap, self._id, self._next_number, self._model, self._log)

    def _replace(self, process: WriterProcess) -> WriterProcess:
        process.suspend()
        # One that is not ready yet may take the id back from a newer one: it is no zombie.
        if not process.is_ready or self._chance.random() < 0.5:
            process.kill()
            self.kill_count += 1
            return self._start()
        newer = self._start()
        give_up_s = time.monotonic() + PATIENCE_S
        while not newer.is_ready and not newer.has_ended and time.monotonic() < give_up_s:
            newer.pump()
        if newer.is_ready:
            self.zombie_count += 1
            process.resume()
            self._watch_until_ended(process)
        else:
            process.kill()
        return newer

    def _watch(self, process: WriterProcess, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s and not self._stopping.is_set() and not process.has_ended:
            process.pump()

    def _watch_until_ended(self, process: WriterProcess) -> None:
        give_up_s = time.monotonic() + PATIENCE_S
        while not process.has_ended:
            process.pump()
            if time.monotonic() > give_up_s:
                self._violations.add(f"{self.name}: {process} does not come to an end")
                process.kill()

    def stop(self, timeout_s: float = 3 * PATIENCE_S) -> None:
        super().stop(timeout_s)
