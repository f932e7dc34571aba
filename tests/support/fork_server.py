"""A process that has `strandline` loaded and forks a child for each start: `forked.py` asks it.

Loading is most of what a start costs, and this process does it once. A child is a process of its
own: its words, environment, folder, limits and standard streams are those of the request; it runs
the `main` of `strandline`, and ends as Python ends.

    request   a message: JSON with words, environment, folder and limits; with it four descriptors:
              a socket for the status, and the three streams
    status    two messages: the child's process id, its exit code

The server has one thread and opens nothing but sockets, so a fork takes no lock and no file along.
It ends with the socket of its requests, and ends its children then.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import boto3.session
import botocore.session

from strandline.storage import crash_points

# In an environment: the module whose `main` runs, instead of that of `strandline`.
MAIN = "PYTEST_MAIN"
REQUEST_BYTES_MAX = 1 << 20
STREAMS = 3
DESCRIPTORS_MAX = 1 << 20
# With what these import themselves, it is all that brokers and commands over S3 load.
LOADED = (
    "strandline.broker.cli",
    "strandline.broker.commands.offline_commands",
    "strandline.broker.commands.restore_command",
    "strandline.broker.config.loading",
    "strandline.broker.server.local",
    "strandline.broker.server.logs",
    "strandline.broker.server.process",
    "strandline.broker.server.roles",
    "strandline.broker.server.tiered",
    "strandline.storage.remote.s3.store",
)


class ForkServer:
    """Forks until there are no more requests."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._poll = select.poll()
        self._poll.register(requests, select.POLLIN)
        # Of each child, by the descriptor that tells its end: its process id, and who asks.
        self._children: dict[int, tuple[int, socket.socket]] = {}

    def serve(self) -> list[str] | None:
        """In a child: the words of its command. In the server: None, in the end."""
        while True:
            for ready, _ in self._poll.poll():
                if ready in self._children:
                    self._tell_end(ready)
                    continue
                message, descriptors, _, _ = socket.recv_fds(
                    self._requests, REQUEST_BYTES_MAX, 1 + STREAMS
                )
                if not message:
                    self._kill_all()
                    return None
                child = os.fork()
                if child == 0:
                    return become(json.loads(message), descriptors[1:])
                self._watch(child, descriptors)

    def _kill_all(self) -> None:
        """Nobody else ends what tests leave that were killed themselves."""
        for child, _ in self._children.values():
            os.kill(child, signal.SIGKILL)

    def _watch(self, child: int, descriptors: list[int]) -> None:
        asking = socket.socket(fileno=descriptors[0])
        for stream in descriptors[1:]:
            os.close(stream)
        ended = os.pidfd_open(child)
        self._children[ended] = child, asking
        self._poll.register(ended, select.POLLIN)
        _tell(asking, child)

    def _tell_end(self, ended: int) -> None:
        self._poll.unregister(ended)
        os.close(ended)
        child, asking = self._children.pop(ended)
        _, status = os.waitpid(child, 0)
        _tell(asking, os.waitstatus_to_exitcode(status))
        asking.close()


def _tell(asking: socket.socket, number: int) -> None:
    with suppress(OSError):  # nobody asks any more
        asking.send(str(number).encode())


def become(request: dict[str, Any], streams: list[int]) -> list[str]:
    """Makes this process the one of the request; the words of its command."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(STREAMS, DESCRIPTORS_MAX)
    # The server's remember what kind of file they had.
    coded = sys.stdout.encoding
    sys.stdin = open(0, encoding=coded, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding=coded, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, encoding=coded, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    importlib.reload(crash_points)  # which read their environment when they are loaded
    for number, limits in request["limits"]:
        resource.setrlimit(number, limits)
    words: list[str] = request["words"]
    return words


def main(descriptor: int) -> int:
    for name in LOADED:
        importlib.import_module(name)
    # Each session reads the description of S3 anew, which is most of what a client costs.
    botocore.session.create_loader = functools.cache(botocore.session.create_loader)
    boto3.session.Session().client("s3", region_name="us-east-1")
    # A child's collections would otherwise write to all that it shares with the others.
    gc.collect()
    gc.freeze()
    # A lock that another thread held would stay locked in a child.
    assert len([*Path("/proc/self/task").iterdir()]) == 1
    # That of a terminal is for the tests, which end this process by its socket.
    of_terminal = signal.signal(signal.SIGINT, signal.SIG_IGN)
    words = ForkServer(socket.socket(fileno=descriptor)).serve()
    if words is None:
        return 0
    signal.signal(signal.SIGINT, of_terminal)
    strandline = sys.modules["strandline"].__file__
    assert strandline is not None
    sys.argv = [str(Path(strandline).with_name("__main__.py")), *words]
    module = os.environ.get(MAIN)
    if module is not None:
        sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    code: int = importlib.import_module(module or "strandline.broker.cli").main()
    return code


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
