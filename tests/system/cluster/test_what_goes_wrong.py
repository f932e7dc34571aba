"""What goes wrong around several brokers is told, and costs no record that was acknowledged."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from strandline.broker.cli import main
from tests.support.broker import eventually
from tests.support.forked import STRANDLINE, run_process
from tests.support.several_brokers import SeveralBrokers

WAIT_S = 60
PARTITIONS = 4
BROKERS = 2
SETTINGS = (
    "offsets.topic.num.partitions=2",
    "transaction.state.log.num.partitions=2",
    # A broker that stands still is missed soon.
    "broker.session.timeout.ms=2000",
    "broker.heartbeat.interval.ms=300",
)


def brokers(folder: Path) -> SeveralBrokers:
    return SeveralBrokers(folder, *SETTINGS, brokers=BROKERS)


def admin_of(cluster: SeveralBrokers) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap})


def create(cluster: SeveralBrokers, *topics: str) -> None:
    admin = admin_of(cluster)
    for future in admin.create_topics([NewTopic(one, PARTITIONS, 1) for one in topics]).values():
        future.result(WAIT_S)
    eventually(lambda: all(-1 not in leaders(cluster, one) for one in topics))


def leaders(cluster: SeveralBrokers, topic: str) -> list[int]:
    """By partition, -1 for one without, as broker 1 knows them."""
    # A new client knows no other broker yet.
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{cluster.port}"})
    found = admin.list_topics(topic, timeout=WAIT_S).topics[topic].partitions
    return [found[number].leader for number in sorted(found)] or [-1]


@contextmanager
def standing_still(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def written(
    cluster: SeveralBrokers, topic: str, partition: int, values: range
) -> list[BaseException]:
    """The errors of these records, which have so long."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 1})
    failed: list[BaseException] = []
    for value in values:
        producer.produce(
            topic,
            b"%d" % value,
            partition=partition,
            on_delivery=lambda error, _: error and failed.append(KafkaException(error)),
        )
    assert producer.flush(WAIT_S) == 0
    return failed


def values_in(cluster: SeveralBrokers, topic: str) -> list[int]:
    """All committed records, in the order of their values."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": f"reads-{time.monotonic_ns()}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    places = [TopicPartition(topic, number, 0) for number in range(PARTITIONS)]
    consumer.assign(places)
    found: list[int] = []

    def is_read() -> bool:
        found.extend(int(one.value()) for one in consumer.consume(500, 0.2) if not one.error())
        ends = [consumer.get_watermark_offsets(one, timeout=WAIT_S)[1] for one in places]
        at = {one.partition: max(one.offset, 0) for one in consumer.position(places)}
        return all(at[one.partition] >= end for one, end in zip(places, ends, strict=True))

    eventually(is_read)
    consumer.close()
    return sorted(found)


def status(cluster: SeveralBrokers) -> str:
    words = ("cluster", "status", "--bootstrap-server", f"127.0.0.1:{cluster.port}")
    command = [*STRANDLINE, *words]
    return run_process(command, folder=cluster.folder, timeout_s=WAIT_S).stdout


def test_while_the_controller_stands_still_leaders_serve_and_the_rest_waits_and_says_so(
    tmp_path: Path,
) -> None:
    with brokers(tmp_path) as cluster:
        create(cluster, "served")
        admin = admin_of(cluster)
        with standing_still(cluster.pids["controller"]):
            for partition in range(PARTITIONS):
                assert written(cluster, "served", partition, range(10)) == []
            late = admin.create_topics(
                [NewTopic("late", 1, 1)], operation_timeout=1, request_timeout=5
            )["late"]
            error = late.exception(WAIT_S)
            assert isinstance(error, KafkaException)
            assert "TIMED_OUT" in error.args[0].name()
            eventually(lambda: "no metadata from the controller" in cluster.log_text())
        eventually(lambda: "late2" in _created(admin, "late2"))
        # It fenced nobody for the time in which it did not listen.
        assert "broker fenced: its session expired" not in cluster.log_text()
        assert values_in(cluster, "served") == sorted([*range(10)] * PARTITIONS)


def _created(admin: AdminClient, topic: str) -> dict[str, object]:
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].exception(WAIT_S)
    return dict(admin.list_topics(timeout=WAIT_S).topics)


def test_a_broker_that_stands_still_is_fenced_and_comes_back_with_all_it_had(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with brokers(tmp_path) as cluster:
        create(cluster, "kept")
        mine = leaders(cluster, "kept").index(2)
        assert written(cluster, "kept", mine, range(50)) == []
        with standing_still(cluster.pids["broker 2"]):
            eventually(lambda: leaders(cluster, "kept")[mine] == -1)
            said = status(cluster)
            assert "broker 2 is fenced" in said
            assert f"kept-{mine}" in said
            line = tmp_path / "line"
            line.write_text("51\n")
            words = ("produce", "kept", "--partition", str(mine), "--file", str(line))
            limit = ("-X", "message.timeout.ms=4000")
            assert main([*words, *limit, "--bootstrap-server", f"127.0.0.1:{cluster.port}"]) == 1
            told, failed = capsys.readouterr().err.splitlines()[:2]
            assert "kept has taken nothing for 2 s, still waiting" in told
            assert f"kept-{mine} has no leader" in told
            assert "could not write 1 of 1 record to kept" in failed
        eventually(lambda: leaders(cluster, "kept")[mine] == 2)
        assert written(cluster, "kept", mine, range(50, 100)) == []
        assert values_in(cluster, "kept") == [*range(100)]
        # It went on, and was not started again.
        assert "process ended, is started again" not in cluster.log_text()


def test_transactions_count_once_if_the_supervisor_is_killed_in_the_middle(
    tmp_path: Path,
) -> None:
    """Each acknowledged transaction is there, once, and of the others all or nothing."""
    committed: list[int] = []
    cluster = brokers(tmp_path)
    with cluster:
        create(cluster, "out")
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "t"})
        producer.init_transactions(WAIT_S)
        for number in range(20):
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                producer.produce("out", b"%d" % (number * 10 + partition), partition=partition)
            if number == 12:
                producer.flush(WAIT_S)
                cluster.stop(signal.SIGKILL)
                break
            producer.commit_transaction(WAIT_S)
            committed += [number * 10 + partition for partition in range(PARTITIONS)]
        cluster.await_ends()
    with cluster:
        again = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "t"})
        again.init_transactions(WAIT_S)
        again.begin_transaction()
        for partition in range(PARTITIONS):
            again.produce("out", b"%d" % (1000 + partition), partition=partition)
        again.commit_transaction(WAIT_S)
        committed += [1000 + partition for partition in range(PARTITIONS)]
        assert values_in(cluster, "out") == committed
        assert cluster.stop() == 0
        assert "Traceback" not in cluster.log_text()


def test_a_broker_whose_folder_is_gone_serves_the_others_and_the_log_tells(tmp_path: Path) -> None:
    cluster = brokers(tmp_path)
    with cluster:
        create(cluster, "kept")
        for partition in range(PARTITIONS):
            assert written(cluster, "kept", partition, range(10)) == []
        lost = leaders(cluster, "kept").count(2)
        assert cluster.stop() == 0
        cluster.await_ends()
    shutil.rmtree(cluster.data / "broker-2")
    with cluster:
        eventually(lambda: leaders(cluster, "kept").count(1) == PARTITIONS - lost)
        # Its partitions stay with the folder that had them: nobody takes empty ones for them.
        assert leaders(cluster, "kept").count(-1) == lost
        assert f"{lost} partitions without a leader" in status(cluster)
        assert (
            f"broker lacks log folders that have its partitions broker=2 partitions={lost}"
            in cluster.log_text()
        )
        # Nor later, when the controller looks at them because another broker comes back.
        cluster.kill_present("broker 1")
        eventually(lambda: leaders(cluster, "kept").count(1) == PARTITIONS - lost)
        assert leaders(cluster, "kept").count(-1) == lost


@pytest.mark.heavy
def test_while_the_controllers_folder_is_gone_records_go_on_and_it_may_come_back(
    tmp_path: Path,
) -> None:
    with brokers(tmp_path) as cluster:
        create(cluster, "kept")
        folder, saved = cluster.data / "controller", tmp_path / "saved"
        shutil.copytree(folder, saved)
        shutil.rmtree(folder)
        cluster.kill("controller")
        eventually(lambda: "has lost its metadata" in cluster.log_text())
        for partition in range(PARTITIONS):
            assert written(cluster, "kept", partition, range(10)) == []
        shutil.rmtree(folder, ignore_errors=True)
        saved.rename(folder)
        eventually(lambda: "late" in _created(admin_of(cluster), "late"))
        assert values_in(cluster, "kept") == sorted([*range(10)] * PARTITIONS)
        assert "is one of another cluster" not in cluster.log_text()


@pytest.mark.heavy
def test_brokers_tell_of_a_copy_of_the_controllers_folder_that_is_too_old_and_serve_on(
    tmp_path: Path,
) -> None:
    with brokers(tmp_path) as cluster:
        create(cluster, "kept")
        folder, old, good = cluster.data / "controller", tmp_path / "old", tmp_path / "good"
        shutil.copytree(folder, old)
        create(cluster, "later")
        shutil.copytree(folder, good)
        shutil.rmtree(folder)
        cluster.kill("controller")
        eventually(lambda: "has lost its metadata" in cluster.log_text())
        put_back(old, folder)
        eventually(lambda: "the controllers have other metadata" in cluster.log_text())
        for partition in range(PARTITIONS):
            assert written(cluster, "later", partition, range(10)) == []
        pid = cluster.present_pids()["controller"]
        with standing_still(pid):
            put_back(good, folder)
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: "latest" in _created(admin_of(cluster), "latest"))
        assert values_in(cluster, "later") == sorted([*range(10)] * PARTITIONS)


def put_back(copy: Path, folder: Path) -> None:
    """As the controller's; a start in between may have left something there."""
    shutil.rmtree(folder, ignore_errors=True)
    copy.rename(folder)
