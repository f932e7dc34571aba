"""The child that downloads, as the broker has it: the process and the channels to it."""

from __future__ import annotations

import socket

from strandline.storage.remote.download.channel import Channel
from strandline.storage.system.child_process import ChildFailed, ChildProcess, program_of

CHILD_PROGRAM = program_of("strandline.storage.remote.download.child")
# Imports take 0.2 s; on a machine with much else to do, many times that.
START_S_MAX = 30.0


class StartedChild:
    """A process, its free channels, and the blocks that it has mapped."""

    def __init__(self, channel_count: int, now_s: float) -> None:
        """Raises ChildFailed."""
        self.started_s = now_s
        self.is_ready = False
        self.known: set[int] = set()
        self.free: list[Channel] = []
        self.channel_count = channel_count
        theirs: list[socket.socket] = []
        try:
            for _ in range(channel_count):
                ours, their = socket.socketpair()
                self.free.append(Channel(ours))
                theirs.append(their)
            self.process = ChildProcess(
                CHILD_PROGRAM, descriptors=[their.fileno() for their in theirs]
            )
        except (OSError, MemoryError) as error:
            raise ChildFailed(f"cannot set up a child process: {error}") from error
        finally:
            for their in theirs:
                their.close()

    @property
    def is_idle(self) -> bool:
        return len(self.free) == self.channel_count

    def became_ready(self, now_s: float) -> bool:
        """Whether it says so. Raises TimeoutError, EOFError or OSError if it never will."""
        if self.process.connection.poll(0):
            self.is_ready = bool(self.process.connection.recv_bytes())
        elif now_s - self.started_s > START_S_MAX:
            raise TimeoutError(f"not ready within {START_S_MAX:g} s")
        return self.is_ready

    def end(self) -> None:
        for channel in self.free:
            channel.close()
        self.process.end()
