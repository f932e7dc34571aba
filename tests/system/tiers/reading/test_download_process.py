"""A broker whose download process is killed goes on, and so do its consumers."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.conftest import S3Bucket, make_bucket
from tests.support.broker import children_of, eventually
from tests.support.ministack import ServerProcess
from tests.system.tiers.log_client import LogClient, make_batches
from tests.system.tiers.tiered_broker import ARCHIVE_ALL, SEGMENT_BYTES, TIERED, TieredBroker

pytestmark = [pytest.mark.slow, pytest.mark.s3]


def download_process(broker_pid: int) -> int | None:
    """The child that downloads; None while there is none."""
    for pid, command in children_of(broker_pid):
        if "download.child" in command:
            return pid
    return None


def test_a_killed_download_process_costs_no_record(
    ministack: ServerProcess, tmp_path: Path
) -> None:
    bucket: S3Bucket = make_bucket(ministack.endpoint_url)
    # Room for three segments: whoever reads them all downloads each again.
    settings = {"strandline.remote.cache.memory.bytes": str(4 * SEGMENT_BYTES)}
    with (
        TieredBroker(tmp_path, bucket, settings=settings) as broker,
        broker.client("killed") as client,
    ):
        client.create_topic({**TIERED, **ARCHIVE_ALL})
        sent = client.produce(make_batches(size_bytes=8 * SEGMENT_BYTES))
        end = broker.wait_until_all_cold(client)
        first = read_until_there_is_a_process(broker, client, sent, end)
        os.kill(first, signal.SIGKILL)
        # On a busy machine it takes its time to die, and looks alive.
        eventually(lambda: download_process(broker.pid) != first)
        second = read_until_there_is_a_process(broker, client, sent, end)
        assert second != first
        pid = second
    eventually(lambda: is_dead(pid))


def is_dead(pid: int) -> bool:
    """A dead process that nobody waited for has no command line any more."""
    try:
        return not Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return True


def read_until_there_is_a_process(
    broker: TieredBroker, client: LogClient, sent: list[bytes], end: int
) -> int:
    def read() -> int | None:
        received = client.read(0, end)
        assert received == sent[: len(received)]
        return download_process(broker.pid)

    found = eventually(read, timeout_s=60)
    assert found is not None
    return found
