"""The outside of a broker: all in which two runs of it may differ, and what it shares with others.

The process has one (`process.py`); where several brokers run in one process, as in tests, each has
its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.network.sockets import Network, SystemNetwork
from strandline.broker.server.workers import Workers
from strandline.storage.clock import Clock, SystemClock
from strandline.storage.concurrency.resizable_pool import ResizablePool
from strandline.storage.remote.object_store.interface import ObjectStore
from strandline.storage.remote.open_store import open_store
from strandline.storage.system.boot import boot_of
from strandline.storage.system.child_process import ChildProcess


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What a broker is given; its event loop is the running one."""

    clock: Clock
    workers: Workers
    # Opens the store at an URL, without a request.
    open_store: Callable[[BrokerConfig, Clock], ObjectStore]
    network: Network
    # Starts a program of ours as a child.
    start_child: Callable[[str], ChildProcess]
    # Returns the boot of the machine that keeps what was written to a folder; None if unknown.
    boot_of: Callable[[Path], str | None]
    # A supervisor runs it beside others, and serves what they have in common.
    is_supervised: bool = False


def process_environment(config: BrokerConfig, *, is_supervised: bool = False) -> Environment:
    """Makes that of a process: its clock, threads, sockets, and the store of the configuration."""
    return Environment(
        clock=SystemClock(),
        workers=Workers.make(config, ResizablePool),
        open_store=open_archive,
        network=SystemNetwork(),
        start_child=ChildProcess,
        boot_of=boot_of,
        is_supervised=is_supervised,
    )


def open_archive(config: BrokerConfig, clock: Clock) -> ObjectStore:
    """Opens the store of the remote tier. Raises InvalidConfig."""
    assert config.archive.url is not None
    return open_store(
        config.archive.url,
        endpoint_url=config.archive.endpoint_url,
        region=config.archive.region,
        ca_file=config.archive.ca_file,
        clock=clock,
    )
