"""A process of the cluster in a world that the run has in its hand: `strandline`, and around it

links    a connection to another node goes through a relay, which may cut it (`links.py`)
clock    the wall clock is as many milliseconds wrong as the run says
disk     how much of each file was synced is written down, for when the power fails;
         writes fail as on a full disk, or syncs as on one that breaks, while the run says so
fault    planted into the product, for the test that the checks find it (`planted.py`)

python -m tests.system.cluster_faults.node serve ...         the world is in $NODE_WORLD
"""

from __future__ import annotations

import asyncio
import errno
import json
import mmap
import os
import stat
import struct
import time
from collections.abc import Iterator, MutableMapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from strandline.broker.cli import main as strandline
from strandline.storage.clock import SystemClock
from tests.sim.disk import Disk

VARIABLE = "PYTEST_NODE_WORLD"
# Of the file that the run writes and the process has mapped: milliseconds, and bits.
_STATE = struct.Struct("<qB")
FULL, BREAKS = 1, 2
_SYNC = struct.Struct("<Qq")
_FORGOTTEN = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWorld:
    """What the process is given, and what it writes down."""

    state: str
    syncs: str
    # Of each port of another node, that of the relay to it.
    routes: dict[int, int] = field(default_factory=dict)
    fault: str = ""

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> NodeWorld:
        found = json.loads(text)
        routes = {int(port): relay for port, relay in found.pop("routes").items()}
        return cls(routes=routes, **found)

    def set_state(self, *, wrong_ms: int = 0, disk: int = 0) -> None:
        with open(self.state, "r+b" if Path(self.state).exists() else "w+b") as file:
            file.write(_STATE.pack(wrong_ms, disk))


class SyncedSizes(MutableMapping[int, int]):
    """By inode, the size of a file at its last sync: kept in a file."""

    def __init__(self, path: Path) -> None:
        self._sizes: dict[int, int] = {}
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        content = path.read_bytes()
        whole = len(content) - len(content) % _SYNC.size
        for inode, size in _SYNC.iter_unpack(content[:whole]):
            self._sizes[inode] = size

    def __getitem__(self, inode: int) -> int:
        found = self._sizes[inode]
        if found == _FORGOTTEN:
            raise KeyError(inode)
        return found

    def __setitem__(self, inode: int, size: int) -> None:
        self._sizes[inode] = size
        _write(self._file, _SYNC.pack(inode, size))

    def __delitem__(self, inode: int) -> None:
        self[inode] = _FORGOTTEN

    def __iter__(self) -> Iterator[int]:
        return (inode for inode, size in self._sizes.items() if size != _FORGOTTEN)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def close(self) -> None:
        os.close(self._file)


_write = os.write


def _route(routes: dict[int, int]) -> None:
    connect = asyncio.BaseEventLoop.create_connection

    async def through_relay(
        loop: Any, protocol: Any, host: Any = None, port: Any = None, **more: Any
    ) -> Any:
        return await connect(loop, protocol, host, routes.get(port, port), **more)

    asyncio.BaseEventLoop.create_connection = through_relay  # type: ignore[method-assign]


def _live_in(world: NodeWorld) -> None:
    with open(world.state, "r+b") as file:
        state = mmap.mmap(file.fileno(), _STATE.size)

    def now_ms(_: SystemClock) -> int:
        return time.time_ns() // 1_000_000 + int(_STATE.unpack_from(state)[0])

    def write(descriptor: int, data: Any) -> int:
        disk = state[_STATE.size - 1]
        if disk & FULL and stat.S_ISREG(os.fstat(descriptor).st_mode) and descriptor > 2:
            # As a full disk does: some of it, and then nothing.
            half = memoryview(data)[: len(data) // 2]
            if len(half):
                _write(descriptor, half)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return _write(descriptor, data)

    SystemClock.now_ms = now_ms  # type: ignore[method-assign]
    os.write = write
    seen = os.fsync

    def fsync(descriptor: int) -> None:
        if state[_STATE.size - 1] & BREAKS and stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        seen(descriptor)

    os.fsync = fsync


def main() -> int | str | None:
    world = NodeWorld.of(os.environ[VARIABLE])
    _route(world.routes)
    if world.fault:
        # It loads the simulation, which no other process needs.
        from tests.system.cluster_faults import planted

        planted.plant(world.fault)
    with Disk(Random(0), SyncedSizes(Path(world.syncs))).watched():
        _live_in(world)
        return strandline()
