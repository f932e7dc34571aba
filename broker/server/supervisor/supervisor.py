"""Runs the processes of `strandline serve --brokers N`: one controller, and N brokers.

    start   the controller, then all brokers at once; a line for each, then `ready`
    run     a process that ends is started again: at once, and with a pause if it dies at its start;
            one that never was ready, after a few attempts, ends all
    stop    the brokers, which hand over to each other, and then the controller

Each is forked from a process that has loaded what they run (`fork_server.py`). It ends when its
standard input does, so none outlives a supervisor that was killed. By that stream it is also asked
for its metrics (`pages.py`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.server.process import notify_manager, print_or_log
from strandline.broker.server.supervisor.folders import (
    PROPERTIES_FILE,
    become_several,
    locked,
    lost_controller,
)
from strandline.broker.server.supervisor.fork_server import (
    ForkedProcess,
    ForkServer,
    ForkServerEnded,
    serve_forks,
)
from strandline.broker.server.supervisor.metrics import Loop, SupervisorMetrics
from strandline.broker.server.supervisor.pages import MeasuredProcess
from strandline.broker.server.supervisor.plan import NodePlan, plan, secret_of
from strandline.storage.backoff import Backoff
from strandline.storage.crash_points import check_environment
from strandline.storage.errors import LogDirLocked, StorageError
from strandline.storage.files import private_files
from strandline.storage.local.log_dirs.log_dir import lock_directory

log = logging.getLogger(__name__)

# A broker closes its logs meanwhile; thousands take a few seconds on a slow disk.
STOP_S_MAX: Final = 120.0
RESTARTS: Final = Backoff(0.5, 10.0, jitter=0.2)
# How often it is looked whether a former process has ended.
LOOK_S: Final = 0.1
# A process that lived longer is started again at once.
_LIVED_S: Final = 10.0
# Of a process that never was ready: a port that is taken does not become free by waiting.
FIRST_STARTS_MAX: Final = 3
_READY: Final = b"strandline ready:"
# With what these load themselves, it is all that controllers and brokers run.
_MODULES: Final = ("strandline.broker.server.controller", "strandline.broker.server.seat")
_MODULES_OF_ARCHIVE: Final = ("strandline.broker.server.parts.shared_archive",)
_MODULES_OF_S3: Final = ("strandline.storage.remote.s3.store", "boto3.session")


def run_brokers(
    config: BrokerConfig, *, log_level: str, become: Callable[[Sequence[str]], int]
) -> int:
    """Runs until SIGTERM, SIGINT or SIGHUP; returns the exit code.

    `become` runs `strandline` with its words: it is called in processes that are forked here, and
    what it returns is returned there. The folders may be those of a lone broker. Raises
    InvalidConfig, StorageError, OSError.
    """
    check_environment()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # Before anything is open, or locked.
    server = os.fork()
    if server == 0:
        ours.close()
        return serve_forks(theirs, _modules(config), become)
    theirs.close()
    try:
        with ours, private_files(), locked(config.logs.dirs):
            nodes = plan(config, secret_of(config.logs.dirs[0]))
            become_several(config)
            return asyncio.run(_run(config, Supervisor(nodes, log_level, ForkServer(ours))))
    finally:
        # It has nothing to finish, and may stand still.
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)


def _modules(config: BrokerConfig) -> Sequence[str]:
    if not config.archive.is_enabled or config.archive.url is None:
        return _MODULES
    of_store = _MODULES_OF_S3 if config.archive.url.startswith("s3:") else ()
    return *_MODULES, *_MODULES_OF_ARCHIVE, *of_store


async def _run(config: BrokerConfig, supervisor: Supervisor) -> int:
    metrics = SupervisorMetrics(config, supervisor.asked(), supervisor.why_not_ready)
    try:
        await metrics.listen()
        return await supervisor.run(metrics.loops)
    finally:
        metrics.close()


class Supervisor:
    """The processes of one cluster."""

    def __init__(self, nodes: Sequence[NodePlan], log_level: str, server: ForkServer) -> None:
        self._stopping = asyncio.Event()
        self._children = [Child(node, log_level, self._stopping, server) for node in nodes]

    def asked(self) -> Sequence[MeasuredProcess]:
        """Returns the processes as their metrics are asked for."""
        return [child.asked() for child in self._children]

    def why_not_ready(self) -> str:
        """Returns which processes cannot be reached by clients; empty if all can."""
        absent = [child.node.name for child in self._children if not child.is_serving]
        return f"{', '.join(absent)}: not ready" if absent else ""

    async def run(self, loops: Sequence[Loop] = ()) -> int:
        """Runs all until a signal, or the end of one that is hopeless; `loops` run beside it."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._begin_stop)
        controller, *brokers = self._children
        running = [asyncio.create_task(child.run()) for child in self._children]
        beside = [asyncio.create_task(one()) for one in loops]
        starting = asyncio.create_task(self._tell_ready())
        await asyncio.wait(
            [*running, asyncio.create_task(self._stopping.wait())],
            return_when=asyncio.FIRST_COMPLETED,
        )
        starting.cancel()
        # One ended for good, and the next start would find the same.
        self._begin_stop()
        await asyncio.gather(*(child.stop() for child in brokers))
        await controller.stop()
        for task in beside:
            task.cancel()
        return max(await asyncio.gather(*running))

    def _begin_stop(self) -> None:
        if not self._stopping.is_set():
            self._stopping.set()
            notify_manager("STOPPING=1")

    async def _tell_ready(self) -> None:
        for child in self._children:
            await child.ready.wait()
            print_or_log(
                f"{child.node.name} at {child.node.address}, folder"
                f" {', '.join(map(str, child.node.folders))}, process {child.pid}"
            )
        brokers = [child.node for child in self._children if not child.node.is_controller]
        addresses = ",".join(one.address for one in brokers)
        print_or_log(f"strandline ready: {len(brokers)} brokers at {addresses}")
        notify_manager("READY=1")


class Child:
    """One process, started again whenever it ends."""

    def __init__(
        self, node: NodePlan, log_level: str, stopping: asyncio.Event, server: ForkServer
    ) -> None:
        self.node = node
        self.ready = asyncio.Event()
        self._log_level = log_level
        self._stopping = stopping
        self._server = server
        self._process: ForkedProcess | None = None
        self._ended = asyncio.Event()
        # The other end of its standard input.
        self._channel: socket.socket | None = None
        self.is_serving = False
        self.restarts = 0

    def asked(self) -> MeasuredProcess:
        return MeasuredProcess(
            label=self.node.label,
            channel=lambda: self._channel,
            restarts=lambda: self.restarts,
        )

    @property
    def pid(self) -> int:
        return -1 if self._process is None else self._process.pid

    async def run(self) -> int:
        """Returns the exit code of a process that is not started again."""
        loop, failures = asyncio.get_running_loop(), 0
        await self._former_ended()
        while True:
            began_s = loop.time()
            try:
                code = await self._run_once()
            except ForkServerEnded as error:
                log.error(
                    "all processes stop: none can be started any more",
                    extra={"fields": {"node": self.node.name, "error": str(error)}},
                )
                self._ended.set()
                return os.EX_OSERR
            except OSError as error:
                # A full disk, or no process left; what runs goes on meanwhile.
                log.error(
                    "process cannot be started",
                    extra={"fields": {"node": self.node.name, "error": str(error)}},
                )
                code = os.EX_OSERR
            failures = 0 if loop.time() - began_s > _LIVED_S else failures + 1
            is_hopeless = code == os.EX_USAGE or failures >= FIRST_STARTS_MAX
            if self._stopping.is_set() or (is_hopeless and not self.ready.is_set()):
                self._ended.set()
                return code
            wait_s = RESTARTS.wait_s(failures - 1) if failures > 1 else 0.0
            log.warning(
                "process ended, is started again",
                extra={
                    "fields": {"node": self.node.name, "code": code, "pause_s": round(wait_s, 1)}
                },
            )
            try:
                await asyncio.wait_for(self._stopping.wait(), wait_s)
            except TimeoutError:
                self.restarts += 1
                continue

    async def _former_ended(self) -> None:
        """Returns when no process of a supervisor that was killed is left in the folders.

        Such a process ends by itself, and takes as long as any stop does.
        """
        loop, is_told = asyncio.get_running_loop(), False
        give_up_s = loop.time() + STOP_S_MAX
        while _in_use(self.node.folders) and loop.time() < give_up_s:
            if not is_told:
                is_told = True
                log.warning(
                    "the former process still stops", extra={"fields": {"node": self.node.name}}
                )
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), LOOK_S)
                return

    async def stop(self) -> None:
        """Ends the process, and waits for it."""
        if self._process is not None:
            self._process.terminate()
        try:
            await asyncio.wait_for(self._ended.wait(), STOP_S_MAX)
        except TimeoutError:
            # It may be another one than that of before: one that was just started.
            log.error("process killed", extra={"fields": {"node": self.node.name}})
            if self._process is not None:
                self._process.kill()
            await self._ended.wait()

    async def _run_once(self) -> int:
        if self.node.is_controller and (lost := lost_controller(self.node.folders[0])):
            raise OSError(lost)
        properties = self._write_properties()
        here, there = socket.socketpair()
        with here, there:
            process = await self._start(properties, there)
            there.close()
            here.setblocking(False)
            self._channel = here
            try:
                await self._follow(process)
                return await process.wait()
            finally:
                self._channel, self.is_serving = None, False

    async def _start(self, properties: Path, stdin: socket.socket) -> ForkedProcess:
        words = ["serve", "--config", str(properties), "--log-level", self._log_level]
        process = self._process = await self._server.start(self.node.name, words, stdin)
        if self._stopping.is_set():
            process.terminate()
        return process

    async def _follow(self, process: ForkedProcess) -> None:
        """Reads what a process prints, to its end."""
        while line := await process.stdout.readline():
            if line.startswith(_READY):
                self.is_serving = True
                self.ready.set()

    def _write_properties(self) -> Path:
        """A file, for everybody sees the words of a command, and the secret is among them.

        In the first folder that takes it: others may have failed. Raises OSError if none does.
        """
        text = "".join(f"{key}={_escaped(text)}\n" for key, text in self.node.properties.items())
        failed: OSError | None = None
        for folder in self.node.folders:
            path = folder / PROPERTIES_FILE
            try:
                folder.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            except OSError as error:
                failed = failed or error
            else:
                return path
        assert failed is not None, self.node
        raise failed


def _in_use(folders: Iterable[Path]) -> bool:
    """Whether another process has one of the folders."""
    try:
        for folder in folders:
            if folder.exists():
                lock_directory(folder).unlock()
    except LogDirLocked:
        return True
    except StorageError:
        # The process itself tells what is wrong with them.
        return False
    return False


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
