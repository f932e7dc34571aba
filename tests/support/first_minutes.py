"""The README's first ten minutes, walked with an installed command: no checkout on its path.

Produce, consume, see the archive, lose the disk, restore it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.support.broker import BrokerProcess, eventually

# A command takes seconds; more means that it went looking for something on the network.
SECONDS_MAX = 300

RECORD = "ann \u2192 2 apples"
TOPIC = ("orders", "--config", "remote.storage.enable=true", "--config", "segment.ms=1000")


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Standard output of a command that must succeed; nothing of this repository on its path."""
    inherited = {key: text for key, text in os.environ.items() if key != "PYTHONPATH"}
    result = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=inherited | environment,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def walk_first_minutes(command: Sequence[str], folder: Path) -> str:
    """Walks them with `command` for `strandline`; returns the URL of the archive that they made."""
    archive = f"file://{folder}/archive"
    broker = InstalledBroker(command, folder, archive)

    def ask(*words: str) -> str:
        return run(*command, *words, cwd=folder, STRANDLINE_BOOTSTRAP=broker.bootstrap)

    def check_record() -> None:
        assert RECORD in ask("consume", "orders", "--from", "start", "--until-end")

    def has_a_segment() -> bool:
        # The command refuses an archive that has nothing yet.
        with suppress(AssertionError):
            return "1 segment" in ask("archive", "ls", "--remote", archive)
        return False

    broker.start()
    try:
        ask("topic", "create", *TOPIC)
        (folder / "lines").write_text("ann:2 apples\n")
        ask("produce", "orders", "--key-separator", ":", "--file", str(folder / "lines"))
        check_record()
        eventually(has_a_segment)
    finally:
        assert broker.stop() == 0
    shutil.rmtree(broker.data)
    ask("restore", "--remote", archive, "--set", f"log.dirs={broker.data}")
    broker.start()
    try:
        check_record()
    finally:
        assert broker.stop() == 0
    return archive


class InstalledBroker(BrokerProcess):
    """A broker of an installed command, with nothing of this repository on its path."""

    def __init__(self, command: Sequence[str], folder: Path, archive: str) -> None:
        tiers = {
            "remote.log.storage.system.enable": "true",
            "strandline.remote.url": archive,
            "log.retention.check.interval.ms": "500",
            "log.initial.task.delay.ms": "500",
        }
        super().__init__(folder, settings=tiers, environment={"PYTHONPATH": ""})
        self.program = tuple(command)
