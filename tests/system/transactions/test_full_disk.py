"""A disk that is full, or a log folder that is away, while a transaction ends.

The outcome is decided, and waits: for the producer, for readers and for the archive it is open.
Once there is room the broker ends it by itself.
"""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.records.batch.any_batch import walk
from tests.support.broker import BrokerProcess, eventually
from tests.support.metrics import METRICS_ON, metric
from tests.support.wire import WireClient
from tests.system.calls import KEEP_EVERYTHING, batch, create_topic, produce
from tests.system.group_calls import committed
from tests.system.transactions.admin_calls import describe
from tests.system.transactions.committed import committed_values, is_stable
from tests.system.transactions.wire_producer import WireProducer

pytestmark = pytest.mark.slow

NONE = ErrorCode.NONE
KAFKA_STORAGE_ERROR = 56
SEGMENT_BYTES = 1024 * 1024
# Above it a file does not grow on the full disk; the coordinators' files are far smaller.
BIG = b"v" * 400_000
GROUP = "g"
PREFIX = "kafka_coordinator_transaction_transactionmarkerchannelmanager_"
WAITING_MARKERS = f"{PREFIX}unknowndestinationqueuesize"
WAITING_ENDS = f"{PREFIX}logappendretryqueuesize"


@pytest.fixture
def two_folders(tmp_path: Path) -> Iterator[BrokerProcess]:
    settings = {
        **KEEP_EVERYTHING,
        **METRICS_ON,
        "log.dirs": f"{tmp_path / 'a'},{tmp_path / 'b'}",
        "log.segment.bytes": str(SEGMENT_BYTES),
        # The records of tests are old, and a marker is new: it would begin another file.
        "log.roll.ms": str(10**12),
        "transaction.state.log.num.partitions": "1",
        "offsets.topic.num.partitions": "1",
    }
    with BrokerProcess(tmp_path, settings=settings) as broker:
        yield broker
        assert "Traceback" not in broker.log_text(), broker.log_text()[-4000:]


@contextmanager
def full_at(broker: BrokerProcess, file_bytes: int) -> Iterator[None]:
    """The kernel's own limit on files stands for the disk: the same errors at the same places."""
    limits = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (file_bytes, limits[1]))
    yield
    if broker.running:
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, limits)


def log_file(broker: BrokerProcess, partition: str) -> Path:
    (found,) = broker.folder.glob(f"?/{partition}/*0.log")
    return found


def state_of(client: WireClient, producer: WireProducer) -> str:
    return describe(client, producer.transactional_id).transaction_state


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("is_killed", [True, False])
def test_markers_wait_for_room_on_a_full_disk_and_the_transaction_then_ends(
    two_folders: BrokerProcess, version: int, is_commit: bool, is_killed: bool
) -> None:
    with WireClient(two_folders.port) as client:
        create_topic(client, "t", 2)
        producer = WireProducer(client, "tx", version=version)
        producer.begin()
        producer.send("t", BIG, partition=0)
        producer.send("t", b"small", partition=1)
        assert producer.send_offset(GROUP, "t", 5) is NONE
        with full_at(two_folders, len(BIG)):
            before = producer.producer_id, producer.epoch
            assert producer.end(is_commit=is_commit) is NONE
            eventually(lambda: metric(two_folders, WAITING_MARKERS) == 1)
            assert state_of(client, producer).startswith("Prepare")
            # What has room has its marker; the big one waits, and says so.
            assert eventually(lambda: is_stable(client, "t", partition=1))
            assert not is_stable(client, "t")
            assert committed_values(client, "t", partition=0) == []
            assert "transaction marker not written" in two_folders.log_text()
            late = WireProducer(client, "tx", version=version)
            assert late.init() is ErrorCode.CONCURRENT_TRANSACTIONS
            if is_killed:
                two_folders.kill()
        if is_killed:
            two_folders.start()
    with WireClient(two_folders.port) as client:
        assert eventually(lambda: is_stable(client, "t"))
        kept = [[BIG], [b"small"]] if is_commit else [[], []]
        assert [committed_values(client, "t", partition=index) for index in (0, 1)] == kept
        assert eventually(lambda: committed(client, GROUP, "t") == (5 if is_commit else -1))
        assert eventually(lambda: state_of(client, producer).startswith("Complete"))
        assert metric(two_folders, WAITING_MARKERS) == 0
        successor = WireProducer(client, "tx", version=version)
        successor.begin()
        assert (successor.producer_id, successor.epoch) > before
        successor.send("t", b"again")
        assert successor.commit() is NONE


def test_an_end_that_finds_no_room_changes_nothing_and_may_be_asked_for_again(
    two_folders: BrokerProcess,
) -> None:
    with WireClient(two_folders.port) as client:
        create_topic(client, "t", 1)
        producer = WireProducer(client, "tx", version=2)
        producer.begin()
        producer.send("t", b"v")
        with full_at(two_folders, 0):
            assert producer.commit() is ErrorCode.NOT_COORDINATOR
            assert state_of(client, producer) == "Ongoing"
            assert not is_stable(client, "t")
        assert producer.commit() is NONE
        assert committed_values(client, "t") == [b"v"]


def test_an_end_whose_last_record_finds_no_room_is_completed_later(
    two_folders: BrokerProcess,
) -> None:
    """PREPARE is the last record that the file of the coordinator takes."""
    with WireClient(two_folders.port) as client:
        create_topic(client, "t", 1)
        # Hundreds of ids make the file of the coordinator longer than the data's.
        for number in range(50):
            WireProducer(client, f"other-{number}", version=1).begin()
        producer = WireProducer(client, "tx", version=1)
        producer.begin()
        producer.send("t", b"first")
        assert producer.commit() is NONE
        path = log_file(two_folders, "__transaction_state-0")
        prepare, _complete = [one.header for one in walk(path.read_bytes())][-2:]
        producer.send("t", b"second")
        with full_at(two_folders, path.stat().st_size + prepare.size_bytes):
            assert producer.commit() is NONE
            eventually(lambda: metric(two_folders, WAITING_ENDS) == 1)
            assert state_of(client, producer) == "PrepareCommit"
            assert committed_values(client, "t") == [b"first", b"second"]
            assert producer.add("t", 0) is ErrorCode.CONCURRENT_TRANSACTIONS
        eventually(lambda: state_of(client, producer) == "CompleteCommit")
        assert metric(two_folders, WAITING_ENDS) == 0
        producer.send("t", b"third")
        assert producer.commit() is NONE


@pytest.mark.parametrize("version", [1, 2])
def test_markers_wait_for_a_folder_that_is_away_and_the_transaction_then_ends(
    two_folders: BrokerProcess, version: int
) -> None:
    folder = two_folders.folder
    with WireClient(two_folders.port) as client:
        create_topic(client, "t", 2)
        producer = WireProducer(client, "tx", version=version)
        producer.begin()
        for partition in (0, 1):
            producer.send("t", b"v", partition=partition)
        coordinators = log_file(two_folders, "__transaction_state-0").parents[1]
        (away,) = {folder / "a", folder / "b"} - {coordinators}
        (lost,) = [int(path.name[-1]) for path in away.glob("t-*")]
        away.rename(folder / "gone")
        large = batch(1, value=b"v" * (SEGMENT_BYTES // 2))
        codes = [produce(client, "t", large, partition=lost).error_code for _ in range(4)]
        assert KAFKA_STORAGE_ERROR in codes
        assert producer.commit() is NONE
        eventually(lambda: metric(two_folders, WAITING_MARKERS) == 1)
        assert committed_values(client, "t", partition=1 - lost) == [b"v"]
        (folder / "gone").rename(away)
        eventually(lambda: state_of(client, producer) == "CompleteCommit")
        assert is_stable(client, "t", partition=lost)
        assert committed_values(client, "t", partition=lost)[:1] == [b"v"]


def test_a_transaction_gets_its_lost_end_although_a_clean_stop_came_before_it(
    two_folders: BrokerProcess,
) -> None:
    """While the coordinator's folder is away, no start can tell how the transaction ended."""
    gone = two_folders.folder / "gone"
    with WireClient(two_folders.port) as client:
        create_topic(client, "t", 1)
        producer = WireProducer(client, "tx", version=2)
        producer.begin()
        producer.send("t", b"v")
        assert producer.commit() is NONE
    two_folders.kill()
    path, coordinators = log_file(two_folders, "t-0"), two_folders.folder / "b"
    assert (coordinators / "__transaction_state-0").exists()
    # The power took the marker.
    *_, marker = walk(path.read_bytes())
    os.truncate(path, marker.position)
    coordinators.rename(gone)
    coordinators.write_text("not a folder")
    two_folders.start()
    assert two_folders.stop() == 0
    coordinators.unlink()
    gone.rename(coordinators)
    two_folders.start()
    with WireClient(two_folders.port) as client:
        eventually(lambda: is_stable(client, "t"))
        assert committed_values(client, "t") == [b"v"]


def test_a_transaction_aborts_whose_coordinator_was_lost_with_its_folder(
    two_folders: BrokerProcess,
) -> None:
    with WireClient(two_folders.port) as client:
        create_topic(client, "t", 1)
        producer = WireProducer(client, "tx", version=2)
        producer.begin()
        producer.send("t", b"v")
    assert two_folders.stop() == 0
    shutil.rmtree(log_file(two_folders, "__transaction_state-0").parents[1])
    two_folders.start()
    with WireClient(two_folders.port) as client:
        eventually(lambda: is_stable(client, "t"))
        assert committed_values(client, "t") == []
