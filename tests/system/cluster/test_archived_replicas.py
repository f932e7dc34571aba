"""An archive in S3 of partitions with three replicas, whose leaders die meanwhile."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer

from strandline.storage.crash_points import COPY_BEFORE_COMMIT, ENVIRONMENT_VARIABLE
from tests.conftest import S3Bucket, make_bucket
from tests.support.broker import eventually
from tests.support.ministack import ServerProcess
from tests.system.cluster.test_archive import Archived
from tests.system.cluster.test_several_brokers import WAIT_S, fill, read

pytestmark = [pytest.mark.slow, pytest.mark.s3, pytest.mark.crash, pytest.mark.heavy]

FREED = {"local.retention.ms": "500"}
EVERYBODY = [1, 2, 3]


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, ministack: ServerProcess
) -> Iterator[Archived]:
    bucket = make_bucket(ministack.endpoint_url)
    archived = Archived(tmp_path_factory.mktemp("replicas"), bucket)
    with archived.brokers as brokers:
        yield archived
        assert "Traceback" not in brokers.log_text(), brokers.log_text()[-4000:]


def test_transactions_are_whole_in_both_tiers_while_leaders_die(cluster: Archived) -> None:
    """Each leader dies once, in the middle of copies."""
    cluster.create("whole", partitions=1, replicas=3, config={**FREED, "min.insync.replicas": "2"})
    producer = Producer(
        {
            "bootstrap.servers": cluster.brokers.bootstrap,
            "transactional.id": "whole",
            "transaction.timeout.ms": 60_000,
        }
    )
    producer.init_transactions(WAIT_S)
    committed: list[bytes] = []
    for number in range(36):
        values = [b"%d-%d" % (number, one) for one in range(20)]
        producer.begin_transaction()
        for value in values:
            producer.produce("whole", value, partition=0)
        if number % 12 == 6:
            eventually(lambda: cluster.in_sync("whole", asked=1) == EVERYBODY)
            (leader,) = cluster.led_by("whole", asked=1)
            os.kill(cluster.pid_of(leader), signal.SIGKILL)
        try:
            if number % 3 == 2:
                # What has not left would not be sent at all.
                producer.flush(WAIT_S)
                producer.abort_transaction(WAIT_S)
                continue
            producer.commit_transaction(WAIT_S)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            producer.abort_transaction(WAIT_S)
            continue
        committed += values
    eventually(lambda: cluster.in_sync("whole", asked=1) == EVERYBODY)
    # Followers free too what the leader archived.
    for one in EVERYBODY:
        eventually(lambda one=one: cluster.local_start("whole", one) > len(committed) * 5 // 4)
    assert read(cluster.brokers, "whole", len(committed)) == committed
    assert "whole" in cluster.run("archive", "verify", "--topic", "whole")


def test_leaders_that_die_between_copy_and_commit_leave_an_archive_that_goes_on(
    tmp_path: Path, s3_bucket: S3Bucket
) -> None:
    """Each one that copies dies before it commits, until all are started again without that."""
    sent = [b"%d" % number for number in range(600)]
    dying = Archived(tmp_path, s3_bucket, {ENVIRONMENT_VARIABLE: COPY_BEFORE_COMMIT})
    with dying.brokers as brokers:
        dying.create("kept", partitions=1, replicas=3, config={"min.insync.replicas": "2"})
        fill(brokers, "kept", sent[:300])
        eventually(lambda: brokers.log_text().count("process ended") >= len(EVERYBODY))
        fill(brokers, "kept", sent[300:])
        assert dying.archived("kept") == 0
        brokers.stop()
    archived = Archived(tmp_path, s3_bucket)
    with archived.brokers as brokers:
        eventually(lambda: archived.archived("kept") == 600)
        assert read(brokers, "kept", 600) == sent
        # What was copied and not committed is nobody's.
        assert "whole" in archived.run("archive", "verify", "--topic", "kept")
