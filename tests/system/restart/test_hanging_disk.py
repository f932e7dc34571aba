"""A disk that hangs holds up the partitions of its folder, and nobody else."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.broker import REPOSITORY, BrokerProcess, eventually
from tests.support.wire import WireClient
from tests.system.calls import append, batch, create_topic, delete_topic, produce

pytestmark = pytest.mark.slow

# More than one folder has threads for.
PARTITIONS = 24
SYNCED = {"flush.messages": "1"}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """The file that makes folder `b` hang."""
    flag = tmp_path / "b.hangs"
    yield flag
    flag.unlink(missing_ok=True)


@pytest.fixture
def broker(tmp_path: Path, disk: Path) -> Iterator[BrokerProcess]:
    library = tmp_path / "hanging_disk.so"
    source = REPOSITORY / "tests" / "support" / "hanging_disk.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    loaded = [str(library), *os.environ.get("LD_PRELOAD", "").split()]
    with BrokerProcess(
        tmp_path,
        settings={"log.dirs": f"{tmp_path / 'a'},{tmp_path / 'b'}"},
        environment={"LD_PRELOAD": " ".join(loaded), "HANGING_FOLDER": str(tmp_path / "b")},
    ) as made:
        try:
            yield made
        finally:
            disk.unlink(missing_ok=True)
        assert "Traceback" not in made.log_text(), made.log_text()[-4000:]


def partitions_in(folder: Path, topic: str) -> list[int]:
    found = (path.name.rpartition("-")[2] for path in folder.glob(f"{topic}-*"))
    # Not what waits for its deletion.
    return sorted(int(index) for index in found if index.isdigit())


def test_flushes_and_new_topics_of_another_folder_do_not_wait_for_a_disk_that_hangs(
    broker: BrokerProcess, disk: Path
) -> None:
    a, b = (broker.folder / name for name in "ab")
    with WireClient(broker.port) as client, ThreadPoolExecutor(PARTITIONS) as threads:
        create_topic(client, "t", PARTITIONS, SYNCED)
        create_topic(client, "gone", 2)
        here, there = partitions_in(a, "t"), partitions_in(b, "t")
        assert len(here) == len(there) == PARTITIONS // 2

        def write(topic: str, partition: int) -> int:
            with WireClient(broker.port) as own:
                return produce(own, topic, batch(1), partition=partition).error_code

        def create(topic: str) -> None:
            with WireClient(broker.port) as own:
                create_topic(own, topic, 2, SYNCED)

        disk.touch()
        waiting = [threads.submit(write, "t", partition) for partition in there]
        for partition in here:
            append(client, "t", batch(1), partition=partition)
        late = threads.submit(create, "late")
        # Unless a checkpoint has found out before: then both partitions go to the other folder.
        eventually(lambda: partitions_in(b, "late") or late.done())
        # The metadata are not locked, and what is new goes to the other folder.
        create_topic(client, "new", 2, SYNCED)
        for partition in range(2):
            append(client, "new", batch(1), partition=partition)
        assert partitions_in(b, "new") == []
        assert not any(one.done() for one in waiting)
        deleting = threads.submit(_delete, broker.port, "gone")
        eventually(lambda: not partitions_in(a, "gone"))

        disk.unlink()
        late.result()
        deleting.result()
        assert [one.result() for one in waiting] == [0] * len(waiting)
        # It may have been answered before its second partition was there.
        for partition in range(2):
            eventually(lambda index=partition: write("late", index) == 0)  # type: ignore[misc]  # a default
        assert not partitions_in(b, "gone")


def _delete(port: int, topic: str) -> None:
    with WireClient(port) as client:
        delete_topic(client, topic)
