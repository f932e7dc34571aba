"""What the runbook of several brokers says of the loss of the bucket, and of the controller's
folder: what clients see, what is safe, and what to do.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ElectionType, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from strandline.broker.protocol.schema.errors import ErrorCode
from tests.support.broker import eventually
from tests.support.own_process import run_here
from tests.support.wire import WireClient
from tests.system.calls import fetch
from tests.system.cluster.test_archive import Archived, commit, read_at
from tests.system.cluster.test_several_brokers import WAIT_S, fill, read
from tests.system.cluster.test_what_goes_wrong import standing_still

pytestmark = [pytest.mark.slow, pytest.mark.crash]

EVERYBODY = (1, 2, 3)
FREED_AT_ONCE, KEPT = "500", "3600000"
NOT_FREED = "retention does not succeed, will be tried again"


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def keep_locally(archived: Archived, topic: str, retention_ms: str) -> None:
    admin = AdminClient({"bootstrap.servers": archived.brokers.bootstrap})
    entry = ConfigEntry(
        "local.retention.ms", retention_ms, incremental_operation=AlterConfigOpType.SET
    )
    altered = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([altered])[altered].result(WAIT_S)


def empty(archived: Archived) -> None:
    """Deletes all objects, and leaves the bucket itself: the store answers."""
    for path in archived.bucket.iterdir():
        if path.is_file():
            path.unlink()
        elif not path.name.startswith("%"):
            shutil.rmtree(path)


def committed(archived: Archived) -> int:
    servers = {"bootstrap.servers": archived.brokers.bootstrap}
    consumer = Consumer({**servers, "group.id": "readers"})
    (found,) = consumer.committed([TopicPartition("kept", 0)], timeout=WAIT_S)
    consumer.close()
    return found.offset


def test_what_the_disks_have_survives_the_loss_of_the_bucket_and_is_archived_in_another_one(
    tmp_path: Path,
) -> None:
    lost = Archived(tmp_path)
    with lost.brokers as brokers:
        config = {"min.insync.replicas": "2", "local.retention.ms": FREED_AT_ONCE}
        lost.create("kept", partitions=1, replicas=3, config=config)
        fill(brokers, "kept", numbers(0, 300))
        for one in EVERYBODY:
            eventually(lambda one=one: lost.local_start("kept", one) == 300, interval_s=0.2)
        keep_locally(lost, "kept", KEPT)
        fill(brokers, "kept", numbers(300, 600))
        eventually(lambda: lost.archived("kept") == 600, interval_s=0.2)
        commit(brokers, "kept", 417)
        empty(lost)
        # Producers, and consumers of what is on the disks, notice nothing.
        fill(brokers, "kept", numbers(600, 700))
        (leader,) = lost.led_by("kept")
        with WireClient(brokers.port + leader - 1) as client:
            assert fetch(client, "kept", 300).error_code == 0

            def is_refused() -> bool:
                return fetch(client, "kept", 0).error_code == ErrorCode.KAFKA_STORAGE_ERROR

            eventually(is_refused)
        # What had been archived is on the disks alone now, and nobody frees it.
        keep_locally(lost, "kept", FREED_AT_ONCE)
        for one in EVERYBODY:
            said = re.compile(rf"\[broker {one}\].*{NOT_FREED}.* partition=kept-0 ")
            eventually(lambda said=said: said.search(brokers.log_text()))
        assert [lost.local_start("kept", one) for one in EVERYBODY] == [300, 300, 300]
        assert brokers.stop() == 0
    new = Archived(tmp_path, bucket="another")
    with new.brokers as brokers:
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
        fill(brokers, "kept", numbers(700, 800))
        eventually(lambda: "copying has stopped" in brokers.log_text())
        given_up = admin.delete_records([TopicPartition("kept", 0, 300)])
        assert [one.result(WAIT_S).low_watermark for one in given_up.values()] == [300]
        for one in EVERYBODY:
            eventually(lambda one=one: new.local_start("kept", one) == 800, interval_s=0.2)
        assert new.archived("kept") == 800
        assert read(brokers, "kept", 500) == numbers(300, 800)
        assert committed(new) == 417
        assert "whole" in new.run("archive", "verify", "--topic", "kept")
        eventually(lambda: "kept" in new.mirrored())


@pytest.mark.heavy
def test_what_is_archived_stays_after_an_unclean_election(tmp_path: Path) -> None:
    """Who is elected lacks it, and cannot ask the bucket for a while."""
    archived = Archived(tmp_path)
    with archived.brokers as brokers:
        config = {"unclean.leader.election.enable": "true"}
        archived.create("kept", partitions=1, replicas=3, config=config)
        fill(brokers, "kept", numbers(0, 100))
        eventually(lambda: archived.in_sync("kept", asked=1) == [*EVERYBODY])
        (first,) = archived.led_by("kept")
        others = [one for one in EVERYBODY if one != first]
        asked = f"127.0.0.1:{brokers.port + others[0] - 1}"
        with ExitStack() as awake:
            stopped = standing_still(archived.pid_of(first))
            with ExitStack() as others_awake:
                for one in others:
                    others_awake.enter_context(standing_still(archived.pid_of(one)))
                eventually(lambda: archived.in_sync("kept", asked=first) == [first])
                fill(brokers, "kept", numbers(100, 300))
                eventually(lambda: archived.archived("kept") == 300)
                awake.enter_context(stopped)
                away = archived.bucket.rename(archived.bucket.with_name("away"))
            admin = AdminClient({"bootstrap.servers": asked})
            producer = Producer({"bootstrap.servers": asked})
            for value in numbers(300, 400):
                producer.produce("kept", value)

            def is_elected() -> bool:
                if archived.led_by("kept", asked=others[0]) == {-1}:
                    elected = [TopicPartition("kept", 0)]
                    admin.elect_leaders(ElectionType.UNCLEAN, elected).result(WAIT_S)
                return archived.led_by("kept", asked=others[0]) <= {*others}

            eventually(is_elected)
            eventually(lambda: "archive not known yet" in brokers.log_text())
            assert len(producer) == 100
            away.rename(archived.bucket)
            assert producer.flush(WAIT_S) == 0
        eventually(lambda: archived.in_sync("kept", asked=1) == [*EVERYBODY])
        eventually(lambda: archived.archived("kept") == 400)
        for one in EVERYBODY:
            assert read_at(brokers.port + one - 1, "kept", 400) == numbers(0, 400)
        assert "whole" in archived.run("archive", "verify", "--topic", "kept")


@pytest.fixture(scope="module")
def without_controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Archived]:
    """A cluster that has stopped, whose controller's folder is gone."""
    archived = Archived(tmp_path_factory.mktemp("controller"))
    with archived.brokers as brokers:
        config = {"strandline.remote.active.segment.upload.ms": "300", "segment.ms": KEPT}
        archived.create("kept", partitions=1, replicas=3, config=config)
        fill(brokers, "kept", numbers(0, 300))
        commit(brokers, "kept", 17)
        eventually(lambda: archived.uploaded("kept", 0) == 300)
        eventually(lambda: [*archived.bucket.glob("groups/*.log")])
        shutil.rmtree(brokers.data / "controller")
        brokers.kill("controller")
        eventually(lambda: "has lost its metadata" in brokers.log_text())
        # The brokers serve without their controller, and stop without it.
        fill(brokers, "kept", numbers(300, 400))
        eventually(lambda: archived.uploaded("kept", 0) == 400)
        brokers.stop()
        brokers.await_ends()
    return archived


def test_a_start_without_the_controllers_folder_is_refused_and_names_the_way_out(
    without_controller: Archived,
) -> None:
    brokers = without_controller.brokers
    before = {path for path in brokers.data.rglob("*") if path.name != ".lock"}
    assert brokers.fails_to_start() != 0
    said = brokers.log_text().splitlines()[-1]
    assert "controller has lost its metadata" in said
    assert "strandline docs runbooks/several-brokers#the-controllers-folder-is-gone" in said
    assert {path for path in brokers.data.rglob("*") if path.name != ".lock"} == before


def test_without_the_controllers_folder_the_cluster_goes_on_from_its_bucket(
    without_controller: Archived,
) -> None:
    archived, brokers = without_controller, without_controller.brokers
    brokers.data.rename(brokers.data.with_suffix(".old"))
    settings = {**archived.settings, "log.dirs": str(brokers.data)}
    words = (word for name, value in settings.items() for word in ("--set", f"{name}={value}"))
    restored = run_here(["restore", *words], environment=dict(os.environ), folder=archived.folder)
    assert restored.code == 0, restored.text
    with brokers:
        assert read(brokers, "kept", 400) == numbers(0, 400)
        assert committed(archived) == 17
        fill(brokers, "kept", numbers(400, 500))
        assert read(brokers, "kept", 500) == numbers(0, 500)
        eventually(lambda: archived.uploaded("kept", 0) == 500)
        assert brokers.stop() == 0
    assert "whole" in archived.run("archive", "verify", "--topic", "kept")
