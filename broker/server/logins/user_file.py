"""Users of PLAIN in a file of name=password, which is looked at while the broker runs.

Kubernetes swaps a mounted secret by a link, and editors replace a file: another file by the same
name counts as a change, as does another time or size. A file that cannot be read, or is malformed,
is told, and the last good users stay. Nothing of the file comes into a log or an error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from concurrent.futures import Executor
from pathlib import Path
from types import MappingProxyType

from strandline.storage.clock import Clock
from strandline.storage.config.properties import PROPERTIES_BYTES_MAX, parse_properties
from strandline.storage.errors import InvalidConfig
from strandline.storage.files import read_named
from strandline.storage.quiet_log import QuietLog

log = logging.getLogger(__name__)

LOOK_S = 10.0


class UserFile:
    """The users of one file, by name; `run` keeps them up to date."""

    def __init__(
        self, path: Path, worker: Executor, clock: Clock, *, beside: Mapping[str, str]
    ) -> None:
        """Reads the file; `beside` are users whom it need not name. Raises InvalidConfig."""
        self._path = path
        self._worker = worker
        self._beside = beside
        self._quiet_log = QuietLog(log, clock)
        # Before its content: a change in between is seen by the next look.
        self._seen = _stamp(path)
        self.passwords: Mapping[str, str] = {**beside, **read_users(path)}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Takes over a changed file."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._worker, self._read_if_changed)
        except InvalidConfig as error:
            self._quiet_log.say(
                logging.ERROR,
                "users of PLAIN not read, the last good ones stay",
                self._path,
                {"file": self._path, "reason": str(error), "users": len(self.passwords)},
            )
            return
        if found is not None:
            self.passwords = {**self._beside, **found}
            log.info(
                "users of PLAIN read",
                extra={"fields": {"file": self._path, "users": len(found)}},
            )

    def _read_if_changed(self) -> Mapping[str, str] | None:
        stamp = _stamp(self._path)
        if stamp == self._seen:
            return None
        found = read_users(self._path)
        self._seen = stamp
        return found


def _stamp(path: Path) -> tuple[int, ...]:
    """Raises InvalidConfig."""
    try:
        found = path.stat()
    except OSError as error:
        raise InvalidConfig(f"the users of PLAIN in {path}: {error.strerror}") from error
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def read_users(path: Path) -> Mapping[str, str]:
    """Returns the passwords by user. Raises InvalidConfig, which quotes nothing of the file."""
    where = f"the users of PLAIN in {path}"
    try:
        text = read_named(path, PROPERTIES_BYTES_MAX).decode("utf-8-sig")
    except OSError as error:
        raise InvalidConfig(f"{where}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise InvalidConfig(f"{where}: no UTF-8") from None
    try:
        entries = parse_properties(text, name="")
    except InvalidConfig:
        raise InvalidConfig(f"{where}: expected lines of name=password") from None
    users = {entry.key: entry.value for entry in entries}
    if len(users) != len(entries):
        raise InvalidConfig(f"{where}: a name is there twice")
    if not all(users.values()):
        raise InvalidConfig(f"{where}: a name has no password")
    return MappingProxyType(users)
