"""Upper limits of this machine: bytes through a loopback socket, and into a file.

    python -m bench.comparison.limits sink [FILE]    a process that receives, and appends what it
                                                     received
    python -m bench.comparison.limits source FILE    a process that sends a file with sendfile

Each serves one connection after another and prints its port first. No byte is looked at: a broker
that checks, indexes and acknowledges cannot cost less than this.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.measure import Measured, measuring
from strandline.broker.network.pacing import SystemChoice

BLOCK_BYTES = 1 << 20


def receive_forever(listener: socket.socket, path: Path | None) -> None:
    block = memoryview(bytearray(BLOCK_BYTES))
    while True:
        connection, _ = listener.accept()
        with connection, open(path or os.devnull, "wb", buffering=0) as file:
            while count := connection.recv_into(block):
                if path:
                    file.write(block[:count])
            connection.shutdown(socket.SHUT_WR)


def send_forever(listener: socket.socket, path: Path) -> None:
    while True:
        connection, _ = listener.accept()
        with connection, open(path, "rb") as file:
            connection.sendfile(file)


@contextmanager
def _process(*arguments: str) -> Iterator[tuple[int, int]]:
    """The port and the process id of one of this file's servers."""
    command = [sys.executable, "-m", "bench.comparison.limits", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline()), process.pid
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def measure_sink(total_bytes: int, path: Path | None) -> Measured:
    """One connection that sends blocks until the other side has all of them."""
    with _process("sink", *([str(path)] if path else [])) as (port, pid):
        block = os.urandom(BLOCK_BYTES)
        with socket.create_connection(("127.0.0.1", port)) as connection, measuring(pid) as found:
            for _ in range(total_bytes // BLOCK_BYTES):
                connection.sendall(block)
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(1) == b""
    return found


def measure_source(total_bytes: int, path: Path) -> Measured:
    """One connection that reads a file from the page cache."""
    measure_append(total_bytes, path)
    block = memoryview(bytearray(BLOCK_BYTES))
    with (
        _process("source", str(path)) as (port, pid),
        measuring(pid) as found,
        socket.create_connection(("127.0.0.1", port)) as connection,
    ):
        got = 0
        while count := connection.recv_into(block):
            got += count
    assert got == total_bytes // BLOCK_BYTES * BLOCK_BYTES, got
    return found


def measure_append(total_bytes: int, path: Path) -> Measured:
    """Blocks written to a file, as `dd` does; not synced, as no broker here syncs."""
    block = os.urandom(BLOCK_BYTES)
    found = Measured()
    cpu_before_s, started_s = time.process_time(), time.perf_counter()
    with open(path, "wb", buffering=0) as file:
        for _ in range(total_bytes // BLOCK_BYTES):
            file.write(block)
    found.wall_s = time.perf_counter() - started_s
    found.cpu_s = time.process_time() - cpu_before_s
    return found


def main() -> None:
    kind, *path = sys.argv[1:]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        # As the broker: BBR would pace what is sent, at twice the cost.
        SystemChoice(listener)
        sys.stdout.write(f"{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        if kind == "sink":
            receive_forever(listener, Path(path[0]) if path else None)
        else:
            send_forever(listener, Path(path[0]))


if __name__ == "__main__":
    main()
