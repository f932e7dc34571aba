"""`strandline serve --brokers N` as a BrokerProcess: for what takes one broker, or several.

Its ports lie in a row: the controller's is the one before the first, and the brokers meet behind
the last.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from pathlib import Path

from tests.support.broker import START_TIMEOUT_S, BrokerProcess
from tests.support.several_brokers import free_ports

READY = re.compile(r"^strandline ready: \d+ brokers at ")
# Of a broker's own: PLAINTEXT and what `add_listener` adds.
LISTENERS_MAX = 3


class BrokersProcess(BrokerProcess):
    """A cluster of one machine; `bootstrap` is that of its first broker."""

    def __init__(
        self, folder: Path, *, brokers: int = 3, settings: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(folder, settings=settings)
        self.command = ("serve", "--brokers", str(brokers))
        self._brokers = brokers
        first = free_ports(brokers * (LISTENERS_MAX + 1) + 1)
        self.port = first + 1
        self._added = 0

    @property
    def bootstraps(self) -> list[str]:
        """The address of each broker, for clients without a login."""
        step = 1 + self._added
        return [f"127.0.0.1:{self.port + number * step}" for number in range(self._brokers)]

    def add_listener(self, name: str, protocol: str) -> str:
        """The ports of a broker lie beside each other; those of the next one follow."""
        self._added += 1
        assert self._added < LISTENERS_MAX
        address = f"127.0.0.1:{self.port + self._added}"
        plain = f"PLAINTEXT://{self.bootstrap}"
        known = "listener.security.protocol.map"
        for key, first, more in (
            ("listeners", plain, f"{name}://{address}"),
            ("advertised.listeners", plain, f"{name}://{address}"),
            (known, "PLAINTEXT:PLAINTEXT", f"{name}:{protocol}"),
        ):
            self.settings[key] = f"{self.settings.get(key, first)},{more}"
        return address

    def _await_ready(self) -> int:
        assert self._process is not None
        stdout, ready = self._process.stdout, threading.Event()
        assert stdout is not None

        def read_lines() -> None:
            for line in stdout:
                if READY.match(line):
                    ready.set()

        threading.Thread(target=read_lines, daemon=True).start()
        if not ready.wait(START_TIMEOUT_S):
            self.stop()
            raise AssertionError(f"the brokers did not become ready:\n{self.log_text()[-4000:]}")
        return self.port

    def __exit__(self, *_: object) -> None:
        # Its children end when it does, and are waited for.
        if self.running:
            self.stop()
