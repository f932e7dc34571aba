"""A lone broker becomes one of several by `--brokers N` alone, and several become one again."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from strandline.storage.crash_points import (
    CRASH_POINTS,
    ENVIRONMENT_VARIABLE,
    EXIT_STATUS_KILLED,
    SEVERAL_AFTER_ENTRY,
)
from tests.support.broker import BrokerProcess, eventually
from tests.support.forked import STRANDLINE, run_process
from tests.support.heavy import HEAVY
from tests.support.several_brokers import SeveralBrokers

WAIT_S = 60
SETTINGS = {"offsets.topic.num.partitions": "3", "transaction.state.log.num.partitions": "3"}
BEFORE = [b"%d" % number for number in range(200)]
AFTER = [b"%d" % number for number in range(200, 400)]
TO_SEVERAL = [one for one in CRASH_POINTS if one.startswith("several.")]
TO_ONE = [one for one in CRASH_POINTS if one.startswith("one.")]


def several(folder: Path, brokers: int = 3) -> SeveralBrokers:
    """Several on the folder of a lone broker, which is `folder / "data"` too."""
    settings = [f"{name}={value}" for name, value in SETTINGS.items()]
    return SeveralBrokers(folder, *settings, brokers=brokers)


def create(admin: AdminClient, name: str, partitions: int) -> None:
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(WAIT_S)


def write_in_transaction(bootstrap: str, topic: str, values: list[bytes], group: str) -> None:
    """Records and the group's offset, both or none, under one transactional id."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "moves"})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, key=value)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    producer.send_offsets_to_transaction(
        [TopicPartition("source", 0, len(values))], consumer.consumer_group_metadata(), WAIT_S
    )
    producer.commit_transaction(WAIT_S)
    consumer.close()


def read_all(bootstrap: str, topic: str, partitions: int) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    places = [TopicPartition(topic, number, 0) for number in range(partitions)]
    consumer.assign(places)
    found: list[bytes] = []

    def is_read() -> bool:
        found.extend(one.value() for one in consumer.consume(500, 0.2) if one.error() is None)
        ends = [consumer.get_watermark_offsets(one, timeout=WAIT_S)[1] for one in places]
        positions = {one.partition: one.offset for one in consumer.position(places)}
        return all(positions[one.partition] >= end for one, end in zip(places, ends, strict=True))

    eventually(is_read)
    consumer.close()
    return sorted(found, key=int)


def committed(bootstrap: str, group: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    (found,) = consumer.committed([TopicPartition("source", 0)], timeout=WAIT_S)
    consumer.close()
    return int(found.offset)


def furnish(bootstrap: str) -> None:
    """Something of each kind that a broker has."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    create(admin, "source", 1)
    create(admin, "kept", 4)
    write_in_transaction(bootstrap, "kept", BEFORE, "group")
    entry = ConfigEntry("retention.ms", "86400001", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, "kept", incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(WAIT_S)
    user = UserScramCredentialUpsertion(
        "alice", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), b"secret"
    )
    admin.alter_user_scram_credentials([user])["alice"].result(WAIT_S)


def check_furniture(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    assert committed(bootstrap, "group") == len(BEFORE)
    resource = ConfigResource(ResourceType.TOPIC, "kept")
    configs = admin.describe_configs([resource])[resource].result(WAIT_S)
    assert configs["retention.ms"].value == "86400001"
    users = admin.describe_user_scram_credentials(["alice"])["alice"].result(WAIT_S)
    assert [one.iterations for one in users.scram_credential_infos] == [4096]


def id_of(bootstrap: str) -> str:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    return str(admin.describe_cluster().result(WAIT_S).cluster_id)


def starts(folder: Path, *words: str, crash_at: str = "") -> tuple[int, str]:
    """Exit code and errors of a start on the folder that is expected to end."""
    settings = [f"log.dirs={folder / 'data'}", "listeners=PLAINTEXT://127.0.0.1:29092"]
    done = run_process(
        [*STRANDLINE, "serve", *words, *(word for one in settings for word in ("--set", one))],
        folder=folder,
        timeout_s=WAIT_S,
        environment={ENVIRONMENT_VARIABLE: crash_at},
    )
    return done.returncode, done.stderr


def test_nothing_is_lost_on_the_way_to_several_and_back(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, settings=SETTINGS) as lone:
        furnish(lone.bootstrap)
        cluster_id = id_of(lone.bootstrap)
        assert lone.stop() == 0
    with several(tmp_path) as cluster:
        assert id_of(cluster.bootstrap) == cluster_id
        eventually(lambda: read_all(cluster.bootstrap, "kept", 4) == BEFORE)
        check_furniture(cluster.bootstrap)
        # The transactional id goes on where it was, and topics spread.
        write_in_transaction(cluster.bootstrap, "kept", AFTER, "second")
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        create(admin, "spread", 3)
        leaders = admin.list_topics("spread", timeout=WAIT_S).topics["spread"].partitions
        assert {one.leader for one in leaders.values()} <= {-1, 1, 2, 3}
        assert cluster.stop() == 0
        cluster.await_ends()
    code, said = starts(tmp_path)
    assert code == 2
    assert "2 partitions would be without a broker: spread-" in said
    with several(tmp_path) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.delete_topics(["spread"])["spread"].result(WAIT_S)
        assert cluster.stop() == 0
        cluster.await_ends()
    with BrokerProcess(tmp_path, settings=SETTINGS) as lone:
        assert id_of(lone.bootstrap) == cluster_id
        assert read_all(lone.bootstrap, "kept", 4) == BEFORE + AFTER
        check_furniture(lone.bootstrap)
        assert committed(lone.bootstrap, "second") == len(AFTER)
        write_in_transaction(lone.bootstrap, "kept", [b"400"], "third")
        assert lone.stop() == 0


@pytest.mark.crash
@pytest.mark.parametrize(
    ("there", "back"),
    [
        pytest.param(there, back, marks=() if there == SEVERAL_AFTER_ENTRY else HEAVY)
        for there, back in zip(TO_SEVERAL, TO_ONE, strict=True)
    ],
)
def test_nothing_is_lost_if_it_dies_on_the_way(tmp_path: Path, there: str, back: str) -> None:
    with BrokerProcess(tmp_path, settings=SETTINGS) as lone:
        furnish(lone.bootstrap)
        lone.kill()
    assert starts(tmp_path, "--brokers", "2", crash_at=there)[0] == EXIT_STATUS_KILLED
    code, said = starts(tmp_path)
    assert (code, "becoming several brokers was interrupted" in said) == (2, True)
    with several(tmp_path, brokers=2) as cluster:
        eventually(lambda: read_all(cluster.bootstrap, "kept", 4) == BEFORE)
        assert cluster.stop(signal.SIGKILL) != 0
        cluster.await_ends()
    assert starts(tmp_path, crash_at=back)[0] == EXIT_STATUS_KILLED
    code, said = starts(tmp_path, "--brokers", "2")
    assert (code, "becoming one broker again was interrupted" in said) == (2, True)
    with BrokerProcess(tmp_path, settings=SETTINGS) as lone:
        assert read_all(lone.bootstrap, "kept", 4) == BEFORE
        check_furniture(lone.bootstrap)
        assert lone.stop() == 0


def test_two_supervisors_do_not_share_a_folder(tmp_path: Path) -> None:
    with several(tmp_path, brokers=2):
        for words in (("--brokers", "2"), ()):
            code, said = starts(tmp_path, *words)
            assert code == 1
            assert f"log folder {tmp_path / 'data'} is in use by another process" in said
