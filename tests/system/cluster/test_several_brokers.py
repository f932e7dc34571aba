"""`strandline serve --brokers N` is one cluster, whatever becomes of one of its processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest
from confluent_kafka import Consumer, ElectionType, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from strandline.storage.local.log_dirs.log_dir import lock_directory
from tests.support.broker import eventually
from tests.support.forked import STRANDLINE, run_process
from tests.support.several_brokers import SeveralBrokers

WAIT_S = 60


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeveralBrokers]:
    with SeveralBrokers(tmp_path_factory.mktemp("brokers")) as running:
        yield running


def create(cluster: SeveralBrokers, *topics: str, partitions: int = 6) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    made = admin.create_topics([NewTopic(topic, partitions, 1) for topic in topics])
    for future in made.values():
        future.result(WAIT_S)
    for topic in topics:
        eventually(lambda topic=topic: -1 not in leaders(admin, topic) and leaders(admin, topic))
    return admin


def leaders(admin: AdminClient, topic: str) -> list[int]:
    found = admin.list_topics(topic, timeout=WAIT_S).topics[topic].partitions
    return [one.leader for one in found.values()]


class Served(Protocol):
    """What clients can connect to."""

    @property
    def bootstrap(self) -> str: ...


def fill(cluster: Served, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 1})
    failed: list[object] = []
    for value in values:
        producer.produce(
            topic, value, key=value, on_delivery=lambda error, _: error and failed.append(error)
        )
    assert producer.flush(WAIT_S) == 0
    assert failed == []


def read(cluster: Served, topic: str, count: int) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": f"reads-{topic}-{time.monotonic_ns()}",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([topic])
    found: list[bytes] = []
    deadline_s = time.monotonic() + WAIT_S
    while len(found) < count and time.monotonic() < deadline_s:
        found += [one.value() for one in consumer.consume(500, 1.0) if one.error() is None]
    consumer.close()
    return found


def test_each_broker_has_a_line_and_a_folder_and_leads_its_share(cluster: SeveralBrokers) -> None:
    assert sorted(cluster.pids) == ["broker 1", "broker 2", "broker 3", "controller"]
    # So `ps` shows them too.
    assert cluster.present_pids() == cluster.pids
    assert cluster.lines[-1] == f"strandline ready: 3 brokers at {cluster.bootstrap}"
    admin = create(cluster, "share")
    assert sorted(leaders(admin, "share")) == [1, 1, 2, 2, 3, 3]
    values = [b"%d" % number for number in range(600)]
    fill(cluster, "share", values)
    assert sorted(read(cluster, "share", 600)) == sorted(values)


def test_cluster_status_shows_each_broker_and_the_controller(cluster: SeveralBrokers) -> None:
    create(cluster, "shown", partitions=30)
    view = json.loads(told(cluster, "cluster", "status", "--json"))
    assert [one["node_id"] for one in view["members"]] == [1, 2, 3]
    assert [one["address"] for one in view["members"]] == cluster.bootstrap.split(",")
    # Topics of the coordinators have a replica on each.
    assert all(one["replicas"] >= one["leads"] >= 10 for one in view["members"])
    assert {one["state"] for one in view["members"]} == {"online"}
    assert all(one["since_ms"] for one in view["members"])
    assert all(one["metadata_lag"] < 1000 for one in view["members"])
    assert view["controller"]["node_id"] == 3000
    assert view["controller"]["address"] == f"127.0.0.1:{cluster.port - 1}"
    assert view["controller"]["metadata_end_offset"] > 30
    assert "3 brokers" in told(cluster, "cluster", "status")


def test_one_page_has_the_metrics_of_all_processes(cluster: SeveralBrokers) -> None:
    samples = [one for family in families(cluster) for one in family.samples]
    assert all(one.labels.get("broker") for one in samples)
    assert {one.labels["broker"] for one in samples} == {
        *("controller", "1", "2", "3", "supervisor")
    }
    found = {(one.name, one.labels["broker"]): one.value for one in samples}
    prefix = "kafka_controller_kafkacontroller_"
    assert found[f"{prefix}activebrokercount", "controller"] == 3
    assert found[f"{prefix}brokerregistrationstate", "2"] == 30
    # Only who decides says so.
    assert [key for key in found if key[0] == f"{prefix}activecontrollercount"] == [
        (f"{prefix}activecontrollercount", "controller")
    ]
    assert found["kafka_server_broker_metadata_metrics_last_applied_record_offset", "3"] > 0


def test_a_broker_that_hangs_is_named_and_the_others_are_told_of(cluster: SeveralBrokers) -> None:
    os.kill(cluster.pids["broker 2"], signal.SIGSTOP)
    try:
        up = {
            one.labels["broker"]: one.value
            for family in families(cluster)
            if family.name == "strandline_supervised_up"
            for one in family.samples
        }
        assert up == {"controller": 1, "1": 1, "2": 0, "3": 1}
        status = told(cluster, "status", "--metrics", cluster.metrics, code=3)
        assert "broker 2: no metrics" in status
        assert "broker 3: strandline" in status
    finally:
        os.kill(cluster.pids["broker 2"], signal.SIGCONT)
    eventually(lambda: "fenced" not in told(cluster, "cluster", "status", code=None))


def first_replicas_lead(admin: AdminClient) -> bool:
    admin.elect_leaders(ElectionType.PREFERRED).result(WAIT_S)
    topics = admin.list_topics(timeout=WAIT_S).topics.values()
    return all(one.leader == one.replicas[0] for each in topics for one in each.partitions.values())


def test_a_plan_gives_brokers_their_share_and_is_carried_out_if_wanted(
    cluster: SeveralBrokers,
) -> None:
    # What is on broker 1 alone, as after a second broker was added.
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    lopsided = NewTopic("lopsided", 12, replica_assignment=[[1]] * 12)
    admin.create_topics([lopsided])["lopsided"].result(WAIT_S)
    values = [b"%d" % number for number in range(120)]
    fill(cluster, "lopsided", values)
    # What hung before may have been fenced.
    eventually(lambda: first_replicas_lead(admin))
    assert "add --yes to do it" in told(cluster, "cluster", "balance")
    assert leaders(admin, "lopsided") == [1] * 12
    assert "partitions done" in told(cluster, "cluster", "balance", "--yes")
    view = json.loads(told(cluster, "cluster", "status", "--json"))
    counts = [one["leads"] for one in view["members"]]
    assert max(counts) - min(counts) <= 2
    assert len(set(leaders(admin, "lopsided"))) > 1
    assert sorted(read(cluster, "lopsided", 120)) == sorted(values)
    assert "nothing is to be moved" in told(cluster, "cluster", "balance")


def families(cluster: SeveralBrokers) -> list[Metric]:
    with urllib.request.urlopen(f"{cluster.metrics}/metrics", timeout=WAIT_S) as answer:
        page = answer.read().decode()
    return list(text_string_to_metric_families(page))


def told(cluster: SeveralBrokers, *words: str, code: int | None = 0) -> str:
    """What a command prints; it ends with this exit code, None for any."""
    reach = () if "--metrics" in words else ("--bootstrap-server", f"127.0.0.1:{cluster.port}")
    command = [*STRANDLINE, *words, *reach]
    done = run_process(command, folder=cluster.folder, timeout_s=WAIT_S)
    assert code is None or done.returncode == code, done
    return done.stdout


def test_nobody_on_the_machine_may_read_the_secret_of_its_inner_listeners(
    cluster: SeveralBrokers,
) -> None:
    secret = (cluster.data / "cluster-secret").read_text()
    holders = [path for path in cluster.data.rglob("*") if path.is_file() and path.suffix != ".log"]
    holders = [path for path in holders if secret.encode() in path.read_bytes()]
    assert len(holders) == 5
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in holders)
    assert secret not in cluster.log_text()
    for pid in cluster.pids.values():
        assert secret.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_transactions_count_once_over_brokers_that_are_killed(cluster: SeveralBrokers) -> None:
    """Coordinators, offsets and partitions lie on all of them."""
    create(cluster, "in", "out")
    values = [b"%d" % number for number in range(1000)]
    fill(cluster, "in", values)
    moved, killed = 0, iter(["broker 2", "broker 3", "controller"])
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "moves",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe(["in"])
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "moves"})
    producer.init_transactions(WAIT_S)
    deadline_s = time.monotonic() + 2 * WAIT_S
    while moved < len(values):
        assert time.monotonic() < deadline_s, moved
        found = [one for one in consumer.consume(100, 1.0) if one.error() is None]
        if not found:
            continue
        producer.begin_transaction()
        for one in found:
            producer.produce("out", one.value(), key=one.key())
        if victim := next(killed, None):
            cluster.kill(victim)
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), WAIT_S
        )
        producer.commit_transaction(WAIT_S)
        moved += len(found)
    consumer.close()
    assert sorted(read(cluster, "out", len(values))) == sorted(values)
    assert cluster.log_text().count("process ended, is started again") == 3


def test_a_stop_ends_all_and_a_start_has_all_of_it_again(tmp_path: Path) -> None:
    values = [b"%d" % number for number in range(300)]
    cluster = SeveralBrokers(tmp_path / "kept", brokers=2)
    with cluster:
        create(cluster, "kept")
        fill(cluster, "kept", values)
        assert cluster.stop() == 0
        cluster.await_ends()
        assert "Traceback" not in cluster.log_text()
    with cluster:
        assert sorted(read(cluster, "kept", 300)) == sorted(values)
        assert cluster.stop(signal.SIGKILL) != 0
        # Nobody is left that would serve behind its back.
        cluster.await_ends()


def test_a_start_waits_for_what_a_killed_supervisor_left(tmp_path: Path) -> None:
    cluster = SeveralBrokers(tmp_path, brokers=2)
    with cluster:
        create(cluster, "kept")
        fill(cluster, "kept", [b"%d" % number for number in range(30)])
        cluster.stop(signal.SIGKILL)
        cluster.await_ends()
    # As the second broker holds it while it stops; longer than three refused starts take.
    former = lock_directory(cluster.data / "broker-2")
    threading.Timer(8.0, former.unlock).start()
    with cluster:
        assert len(read(cluster, "kept", 30)) == 30
        assert "the former process still stops" in cluster.log_text()
        assert cluster.stop() == 0


def test_all_stop_when_one_ends_and_nobody_can_start_it_again(tmp_path: Path) -> None:
    """The process that forks the others was killed: a service manager starts all of them anew."""
    cluster = SeveralBrokers(tmp_path, brokers=2)
    with cluster:
        os.kill(cluster.fork_server(), signal.SIGKILL)
        create(cluster, "kept")
        fill(cluster, "kept", [b"%d" % number for number in range(30)])
        cluster.kill("broker 2")
        assert cluster.wait() == os.EX_OSERR
        cluster.await_ends()
        assert "all processes stop: none can be started any more" in cluster.log_text()
    with cluster:
        assert len(read(cluster, "kept", 30)) == 30
        assert cluster.stop() == 0


def test_a_port_that_is_taken_ends_all_and_is_told(tmp_path: Path) -> None:
    cluster = SeveralBrokers(tmp_path, brokers=2)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", cluster.port + 1))
        taken.listen()
        assert cluster.fails_to_start() != 0
    assert f"cannot listen at PLAINTEXT://127.0.0.1:{cluster.port + 1}" in cluster.log_text()
    cluster.await_ends()


def test_the_service_manager_hears_of_the_whole_once(tmp_path: Path) -> None:
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(path))
        manager.settimeout(WAIT_S)
        cluster = SeveralBrokers(
            tmp_path / "b", brokers=2, environment={"NOTIFY_SOCKET": str(path)}
        )
        with cluster:
            assert manager.recv(100) == b"READY=1"
            assert cluster.stop() == 0
        assert manager.recv(100) == b"STOPPING=1"
        manager.setblocking(False)
        with pytest.raises(BlockingIOError):
            manager.recv(100)
