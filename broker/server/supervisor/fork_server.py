"""The process that forks those of a supervisor: what they load is loaded once, and shared.

    supervisor  --- name and words; two streams --->  fork server  --- fork --->  process
                <-- its process id ----------------
                --- a process id ----------------->
                <-- its exit code, or null --------

Loading takes most of a start, and most of the memory of a broker that has little to do. The fork
server is forked itself, before the supervisor has an event loop, a thread or a file, and has none
but its socket: no lock and no file goes along with a fork. It asks the system for the end of a
process only when it is asked for it, so an id stays that of one process until then. It ends with
its socket, and so with the supervisor.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import signal
import socket
import sys
import threading
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from strandline.broker.server.supervised import SUPERVISED

# What a request of a start says, and its answer, are some hundred bytes.
MESSAGE_BYTES_MAX: Final = 64 * 1024
# A machine without memory forks slowly.
ANSWER_S_MAX: Final = 60.0
_STREAMS: Final = 2
# How often it is asked whether a process that closed its output has ended.
_LOOK_S: Final = 0.05
# Those that end a process, and are for the supervisor alone: it ends the others in their order.
_ENDING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class ForkServerEnded(OSError):
    """Nobody forks any more: it was killed, or does not answer."""


class ForkedProcess:
    """A process of the fork server; as much of asyncio's as a supervisor needs."""

    def __init__(
        self, pid: int, stdout: StreamReader, printing: StreamWriter, server: ForkServer
    ) -> None:
        self.pid = pid
        self.stdout = stdout
        self._printing = printing
        self.returncode: int | None = None
        self._server = server

    async def wait(self) -> int:
        """Waits for its end; returns its exit code, -n for signal n. Raises ForkServerEnded."""
        while self.returncode is None:
            self.returncode = await self._server.exit_code(self.pid)
            if self.returncode is None:
                await asyncio.sleep(_LOOK_S)
        self._printing.close()
        return self.returncode

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


class ForkServer:
    """The supervisor's end; used on one event loop, by tasks that nobody cancels."""

    def __init__(self, requests: socket.socket) -> None:
        requests.setblocking(False)
        self._requests = requests
        self._turn = asyncio.Lock()

    async def start(self, name: str, words: Sequence[str], stdin: socket.socket) -> ForkedProcess:
        """Starts `strandline` with these words, as the process of this name.

        Raises ForkServerEnded, and OSError if there is no process or descriptor left.
        """
        # A stream as good as a pipe, and one that asyncio knows.
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                streams = [stdin.fileno(), theirs.fileno()]
                answer = await self._ask({"name": name, "words": list(words)}, streams)
                if "errno" in answer:
                    raise OSError(answer["errno"], os.strerror(answer["errno"]))
            except BaseException:
                ours.close()
                raise
        return ForkedProcess(answer["pid"], *await asyncio.open_connection(sock=ours), self)

    async def exit_code(self, pid: int) -> int | None:
        """Returns the exit code of a process that has ended, once. Raises ForkServerEnded."""
        code: int | None = (await self._ask({"pid": pid}, []))["code"]
        return code

    async def _ask(self, request: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        async with self._turn:
            try:
                async with asyncio.timeout(ANSWER_S_MAX):
                    socket.send_fds(self._requests, [json.dumps(request).encode()], descriptors)
                    message = await loop.sock_recv(self._requests, MESSAGE_BYTES_MAX)
            except OSError:
                message = b""
            if not message:
                # A late answer would be taken for that of the next request.
                self._requests.close()
                raise ForkServerEnded(
                    "the process that forks the others has ended, or stands still"
                )
        answer: dict[str, Any] = json.loads(message)
        return answer


def serve_forks(
    requests: socket.socket, modules: Sequence[str], become: Callable[[Sequence[str]], int]
) -> int:
    """Forks until nobody asks any more; blocks. `modules` are loaded before.

    In the fork server it returns 0, and in each process what `become` returns for its words.
    """
    # Ctrl-C is for the supervisor, and so is what ends a whole group.
    os.setsid()
    # Blocked and not ignored: one that is meant for a process may come before it has handlers.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    for name in modules:
        importlib.import_module(name)
    # A lock that another thread held would stay locked in a process.
    assert threading.active_count() == 1, threading.enumerate()
    # A collection in a process would write to all that it shares with the others.
    gc.freeze()
    while True:
        message, streams, _, _ = socket.recv_fds(requests, MESSAGE_BYTES_MAX, _STREAMS)
        if not message:
            return 0
        request = json.loads(message)
        if "pid" in request:
            answer = _ended(request["pid"])
        else:
            try:
                pid = os.fork()
            except OSError as error:
                answer = {"errno": error.errno}
            else:
                if pid == 0:
                    requests.close()
                    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
                    _take_place(request["name"], streams)
                    return become(request["words"])
                answer = {"pid": pid}
        for stream in streams:
            os.close(stream)
        requests.send(json.dumps(answer).encode())


def _ended(pid: int) -> dict[str, int | None]:
    ended, status = os.waitpid(pid, os.WNOHANG)
    return {"code": os.waitstatus_to_exitcode(status) if ended else None}


def _take_place(name: str, streams: Sequence[int]) -> None:
    """Makes this process the one of that name, with streams of its own."""
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    os.environ[SUPERVISED] = name
    # The service manager hears of the whole, and not of each process.
    os.environ.pop("NOTIFY_SOCKET", None)
    # `ps` and `top` show it; the words are those of the supervisor.
    with suppress(OSError):
        Path("/proc/self/comm").write_text(name.replace(" ", "-"))
