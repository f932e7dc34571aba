"""The faults of a run are what they are called: power, links, disks, and a plan from its seed."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from random import Random

import pytest

from tests.sim.disk import Disk
from tests.system.cluster_faults.links import Links
from tests.system.cluster_faults.node import SyncedSizes
from tests.system.cluster_faults.plan import KINDS, draw
from tests.system.cluster_faults.troubles import Troubles

PATIENCE_S = 60.0


def test_another_process_knows_what_was_synced_when_the_power_fails(tmp_path: Path) -> None:
    folder, syncs = tmp_path / "data", tmp_path / "syncs"
    folder.mkdir()
    kept, removed = folder / "kept", folder / "removed"
    with Disk(Random(0), SyncedSizes(syncs)).watched():
        for path in (kept, removed):
            with open(path, "wb") as file:
                file.write(b"synced")
                file.flush()
                os.fsync(file.fileno())
                file.write(b" and not synced")
        removed.unlink()
        # It may have the inode of the one that was removed.
        (folder / "never").write_bytes(b"x" * 100)
    sizes = [
        (path.stat().st_size, never.stat().st_size)
        for seed in range(20)
        for path, never in [_after(seed, folder, syncs, tmp_path / str(seed))]
    ]
    assert all(len(b"synced") <= size <= len(b"synced and not synced") for size, _ in sizes)
    assert any(size == len(b"synced") for size, _ in sizes)
    assert any(size == 0 for _, size in sizes)


def _after(seed: int, folder: Path, syncs: Path, copy: Path) -> tuple[Path, Path]:
    """The files after a loss of power: hard links have the inodes, so sizes are put back."""
    copy.mkdir()
    names = ("kept", "never")
    contents = {name: (folder / name).read_bytes() for name in names}
    Disk(Random(seed), SyncedSizes(syncs)).lose_power(folder)
    for name in names:
        (copy / name).write_bytes((folder / name).read_bytes())
        with open(folder / name, "r+b") as file:
            file.write(contents[name])
    return copy / "kept", copy / "never"


def test_a_cut_holds_one_way_until_it_is_healed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        links = Links({"b": server.getsockname()[1]}, ["a"])
        with (
            links,
            socket.create_connection(("127.0.0.1", links.ports["a", "b"])) as there,
        ):
            here, _ = server.accept()
            here.settimeout(PATIENCE_S)
            there.settimeout(PATIENCE_S)
            links.cut("a", "b")
            there.sendall(b"request")
            here.sendall(b"answer")
            assert there.recv(100) == b"answer"
            here.settimeout(0.2)
            with pytest.raises(TimeoutError):
                here.recv(100)
            here.settimeout(PATIENCE_S)
            links.heal("a", "b")
            assert here.recv(100) == b"request"


def test_a_connection_that_is_made_during_a_cut_waits_and_one_to_nobody_is_reset() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        links = Links({"b": port}, ["a"])
        with links:
            links.cut("b", "a")
            accepted: list[socket.socket] = []
            taker = threading.Thread(target=lambda: accepted.append(server.accept()[0]))
            taker.start()
            with socket.create_connection(("127.0.0.1", links.ports["a", "b"])):
                taker.join(0.2)
                assert accepted == []
                links.heal("b", "a")
                taker.join(PATIENCE_S)
                assert len(accepted) == 1
            accepted[0].close()
            server.close()
            with socket.create_connection(("127.0.0.1", links.ports["a", "b"])) as there:
                there.settimeout(PATIENCE_S)
                with pytest.raises(ConnectionResetError):
                    there.recv(1)


def test_a_seed_draws_the_same_plan_and_every_kind_is_carried_out_by_something() -> None:
    plan = draw(7, brokers=5, seconds=600)
    assert plan == draw(7, brokers=5, seconds=600)
    assert plan != draw(8, brokers=5, seconds=600)
    assert {one.kind for one in plan} == set(KINDS)
    assert all(sorted(one.brokers) == [1, 2, 3, 4, 5] for one in plan)
    for kind in KINDS:
        assert hasattr(Troubles, "_" + kind.replace(" ", "_"))
