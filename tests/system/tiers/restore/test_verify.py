"""`strandline archive verify` that is killed, repeated, doubled, or beside a broker at work.

What it says is true whenever it is said, a repair is done once, and nothing is left behind.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import boto3.session
import pytest
from botocore.config import Config

from strandline.storage.clock import SystemClock
from strandline.storage.crash_points import (
    ENVIRONMENT_VARIABLE,
    EXIT_STATUS_KILLED,
    REPAIR_AFTER_COMMIT,
    REPAIR_AFTER_META,
)
from strandline.storage.model import TopicIdPartition
from strandline.storage.remote.keys import CHANGES_KEY, topic_key
from strandline.storage.tiering.audit.repair import repair_meta
from tests.conftest import S3Bucket, make_bucket
from tests.support.broker import REPOSITORY, eventually
from tests.support.fault_proxy import Action, FaultProxy, Rule
from tests.support.forked import (
    PYTHON_PATH,
    STRANDLINE,
    ForkedProcess,
    start_process,
)
from tests.support.heavy import heavy
from tests.support.ministack import ServerProcess
from tests.support.own_process import run_here
from tests.system.tiers.conftest import MakeBroker
from tests.system.tiers.log_client import end_of, make_batches
from tests.system.tiers.tiered_broker import (
    FREE_LOCALLY,
    REGION,
    SEGMENT_BYTES,
    TIERED,
    WAIT_S,
    Archive,
    TieredBroker,
)

pytestmark = [pytest.mark.slow, pytest.mark.s3, pytest.mark.crash]

TOPICS = ("apples", "pears", "plums")
TIMEOUT_S = 180.0
WHOLE, DAMAGED = 0, 3


@pytest.fixture(scope="module")
def original(ministack: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Archive:
    """Three topics of two partitions; four segments each."""
    bucket = make_bucket(ministack.endpoint_url)
    settings = {"strandline.remote.merge.target.bytes": "0"}
    with TieredBroker(tmp_path_factory.mktemp("verify"), bucket, settings=settings) as broker:
        batches = make_batches(size_bytes=9 * SEGMENT_BYTES // 2)
        for topic in TOPICS:
            with broker.client(topic) as client:
                client.create_topic({**TIERED, **FREE_LOCALLY}, partitions=2)
            for number in range(2):
                with broker.client(topic, number) as client:
                    client.produce(batches)
        for topic in TOPICS:
            for number in range(2):
                with broker.client(topic, number) as client:
                    broker.wait_until_archived(client)
        broker.stop()
    return Archive.open(bucket)


@pytest.fixture
def copy(original: Archive, archive: Archive) -> Archive:
    """A bucket that may be damaged."""
    for info in original.store.list(""):
        archive.store.put(info.key, original.store.get(info.key))
    return archive


@contextmanager
def verifying(
    bucket: S3Bucket,
    *arguments: str,
    endpoint_url: str = "",
    environment: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[str] | ForkedProcess]:
    """The command in a process of its own; dead afterwards."""
    options = ["--endpoint-url", endpoint_url or bucket.endpoint_url, "--region", REGION]
    process = start_process(
        [*STRANDLINE, "archive", "verify", "--remote", bucket.url, *options, *arguments],
        folder=REPOSITORY,
        environment={**os.environ, **PYTHON_PATH, "COLUMNS": "1000", **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def verify(
    bucket: S3Bucket, *arguments: str, environment: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Exit code, and all it said; what may die at a step does so in a process of its own."""
    if environment is None:
        words = ["archive", "verify", "--remote", bucket.url, "--endpoint-url", bucket.endpoint_url]
        words += ["--region", REGION, *arguments]
        done = run_here(words, environment={**os.environ, "COLUMNS": "1000"}, folder=REPOSITORY)
        return done.code, done.text
    with verifying(bucket, *arguments, environment=environment) as process:
        stdout, stderr = process.communicate(timeout=TIMEOUT_S)
        return process.returncode, stdout + stderr


def damage(copy: Archive) -> tuple[str, str]:
    """A `.meta` is gone, and a `.log` of another topic is another one."""
    meta_key = copy.segments("apples", 1)[1].meta_key
    log_key = copy.segments("pears")[2].log_key
    copy.store.delete([meta_key])
    copy.store.put(log_key, copy.store.get(copy.segments("pears")[1].log_key))
    return meta_key, log_key


# The listing of topics and the counting of segments take a few requests in each run.
MOMENTS = (0, 5, 12, 14, 17, 20)


@pytest.mark.parametrize(
    ("depth", "moments"),
    [
        heavy((), MOMENTS),
        heavy(("--quick",), MOMENTS),
        heavy(("--deep",), MOMENTS),
        (("--deep",), (5, 20)),
    ],
)
def test_a_verify_that_is_killed_again_and_again_finds_everything_and_leaves_nothing(
    copy: Archive,
    fault_proxy: FaultProxy,
    tmp_path: Path,
    depth: tuple[str, ...],
    moments: tuple[int, ...],
) -> None:
    keys = damage(copy)
    state, scratch = tmp_path / "state.json", tmp_path / "tmp"
    scratch.mkdir()
    known = 0
    for skip in moments:
        rule = fault_proxy.add(Rule(action=Action.HANG, skip=skip))
        with verifying(
            copy.bucket,
            *depth,
            "--state",
            str(state),
            endpoint_url=fault_proxy.endpoint_url,
            environment={"TMPDIR": str(scratch)},
        ) as process:
            eventually(
                lambda r=rule, p=process: r.hit_count or p.poll() is not None, timeout_s=WAIT_S
            )
            process.kill()
            process.wait()
        fault_proxy.clear()
        assert list(scratch.iterdir()) == []
        noted = len(json.loads(state.read_text())["done"]) if state.exists() else 0
        assert noted >= known, "what was done is not done any more"
        known = noted
    code, said = verify(copy.bucket, *depth, "--state", str(state))
    assert code == DAMAGED
    assert "Traceback" not in said
    if depth == ("--quick",):
        # Both logs have nearly one size.
        assert keys[0] in said
    else:
        assert all(key in said for key in keys)
    assert state.exists()


def test_a_verify_that_is_broken_off_tells_what_it_found(
    copy: Archive, fault_proxy: FaultProxy
) -> None:
    meta_key, _ = damage(copy)
    # Segments were counted by then.
    away = Rule(action=Action.STATUS, times=-1, path=r"plums.*/0/manifest\.json", skip=1)
    fault_proxy.add(away)
    with verifying(copy.bucket, endpoint_url=fault_proxy.endpoint_url) as process:
        stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 1, (stdout, stderr)
    assert meta_key in stdout


def test_what_could_not_be_read_is_looked_at_again_by_the_next_run(
    copy: Archive, fault_proxy: FaultProxy, tmp_path: Path
) -> None:
    key = copy.segments("apples")[0].log_key
    for method in ("GET", "HEAD"):
        refusal = Rule(action=Action.STATUS, status=403, code="AccessDenied", times=-1)
        refusal.method, refusal.path = method, Path(key).name
        fault_proxy.add(refusal)
    state = str(tmp_path / "state.json")
    for depth in ((), ("--deep",)):
        for _ in range(2):
            with verifying(
                copy.bucket, *depth, "--state", state, endpoint_url=fault_proxy.endpoint_url
            ) as process:
                stdout, stderr = process.communicate(timeout=TIMEOUT_S)
            assert process.returncode == DAMAGED, (stdout, stderr)
            assert "not looked at: " in stderr
            assert key in stderr
        assert verify(copy.bucket, *depth, "--state", state)[0] == WHOLE


def test_two_runs_with_one_state_file_do_each_other_no_harm(
    original: Archive, tmp_path: Path
) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    arguments = ("--state", str(folder / "state.json"))
    with (
        verifying(original.bucket, *arguments) as one,
        verifying(original.bucket, *arguments) as other,
    ):
        ended = [process.communicate(timeout=TIMEOUT_S) for process in (one, other)]
    assert [one.returncode, other.returncode] == [WHOLE, WHOLE], ended
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("point", [heavy(REPAIR_AFTER_META), REPAIR_AFTER_COMMIT])
def test_a_repair_that_dies_at_a_step_is_made_again_and_leaves_only_an_orphan(
    copy: Archive, tmp_path: Path, point: str
) -> None:
    entries = copy.segments("apples")
    damaged = [entries[0].meta_key, entries[2].meta_key]
    copy.store.delete(damaged)
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    environment = {ENVIRONMENT_VARIABLE: point, "TMPDIR": str(scratch)}
    code, said = verify(copy.bucket, "--repair", environment=environment)
    assert code == EXIT_STATUS_KILLED, said
    assert list(scratch.iterdir()) == []
    code, said = verify(copy.bucket, "--repair")
    assert code == WHOLE, said
    code, said = verify(copy.bucket, "--deep")
    assert (code, ": whole\n" in said) == (WHOLE, True), said
    repaired = copy.segments("apples")
    assert [entry.log_key for entry in repaired] == [entry.log_key for entry in entries]
    manifest = copy.manifest("apples")
    assert manifest is not None
    marked = {key for mark in manifest.deleting for key in mark.keys}
    assert marked == set(damaged)
    orphans = {orphan.key for orphan in copy.orphans()}
    assert len(orphans) == (1 if point == REPAIR_AFTER_META else 0)


@pytest.mark.heavy
def test_of_two_repairs_at_once_one_is_made_and_both_end_well(
    copy: Archive, fault_proxy: FaultProxy
) -> None:
    damaged = [entry.meta_key for entry in copy.segments("apples")]
    copy.store.delete(damaged)
    with (
        verifying(copy.bucket, "--repair", endpoint_url=fault_proxy.endpoint_url) as one,
        verifying(copy.bucket, "--repair", endpoint_url=fault_proxy.endpoint_url) as other,
    ):
        ended = [process.communicate(timeout=TIMEOUT_S) for process in (one, other)]
    assert [one.returncode, other.returncode] == [WHOLE, WHOLE], ended
    assert verify(copy.bucket, "--deep")[0] == WHOLE
    manifest = copy.manifest("apples")
    assert manifest is not None
    assert {key for mark in manifest.deleting for key in mark.keys} == set(damaged)
    copy.orphans()


def test_a_repair_of_what_was_repaired_meanwhile_changes_nothing(copy: Archive) -> None:
    """Its plan is of an older state of the bucket."""
    damaged = copy.segments("apples")[0].meta_key
    copy.store.delete([damaged])
    code, said = verify(copy.bucket, "--repair")
    assert code == WHOLE, said
    before = copy.contents()
    topic_id = copy.topic_id("apples")
    assert topic_id is not None
    partition = TopicIdPartition("apples", topic_id, 0)
    clock = SystemClock()
    assert repair_meta(copy.store, partition, 0, damaged_key=damaged, clock=clock) is None
    assert copy.contents() == before


def copy_by_another_tool(copy: Archive, key: str, content: bytes) -> None:
    """With the notes beside the object, and without a checksum that the store would keep."""
    client = boto3.session.Session().client(
        "s3",
        endpoint_url=copy.bucket.endpoint_url,
        region_name=REGION,
        config=Config(request_checksum_calculation="when_required"),
    )
    place = {"Bucket": copy.bucket.name, "Key": f"archive/{key}"}
    metadata = client.head_object(**place)["Metadata"]
    assert metadata
    client.put_object(**place, Body=content, Metadata=metadata)
    client.close()


@pytest.mark.heavy
def test_what_was_compared_by_size_alone_is_counted_and_a_deep_run_reads_it(copy: Archive) -> None:
    code, said = verify(copy.bucket)
    assert (code, "by size alone" in said) == (WHOLE, False), said
    entry = copy.segments("plums")[1]
    spoiled = bytearray(copy.store.get(entry.log_key))
    spoiled[len(spoiled) // 2] ^= 0x10
    copy_by_another_tool(copy, entry.log_key, bytes(spoiled))
    copy_by_another_tool(copy, entry.meta_key, copy.store.get(entry.meta_key))
    code, said = verify(copy.bucket)
    assert code == WHOLE, said
    assert "2 objects by size alone, without a CRC-32C in the store: see --deep" in said
    code, said = verify(copy.bucket, "--deep")
    assert (code, "by size alone" in said) == (DAMAGED, False), said
    assert entry.log_key in said


def test_a_lost_description_of_a_topic_is_found(copy: Archive) -> None:
    topic_id = copy.topic_id("pears")
    assert topic_id is not None
    key = topic_key("pears", topic_id)
    copy.store.delete([key])
    code, said = verify(copy.bucket, "--quick")
    assert code == DAMAGED
    assert key in said


def test_a_damaged_list_of_changes_is_found_and_a_missing_one_is_none(copy: Archive) -> None:
    copy.store.delete([CHANGES_KEY])
    assert verify(copy.bucket, "--quick")[0] == WHOLE
    copy.store.put(CHANGES_KEY, b"{")
    code, said = verify(copy.bucket, "--quick")
    assert code == DAMAGED
    assert CHANGES_KEY in said


@pytest.mark.parametrize("runs", [3, heavy(9)])
def test_a_verify_beside_a_broker_at_work_finds_nothing_wrong_and_disturbs_nothing(
    make_broker: MakeBroker, archive: Archive, runs: int
) -> None:
    """Copies, merges, retention, purges, and no grace time for what is replaced or let go."""
    broker = make_broker(settings={"strandline.remote.merge.target.bytes": str(4 * SEGMENT_BYTES)})
    broker.start()
    stopping = threading.Event()
    failures: list[BaseException] = []
    properties = {**TIERED, **FREE_LOCALLY, "retention.bytes": str(6 * SEGMENT_BYTES)}

    def work() -> None:
        try:
            with broker.client("lasting") as lasting:
                lasting.create_topic({**properties, "segment.ms": "300"})
                offset, life = 0, 0
                while not stopping.is_set():
                    with broker.client(f"brief-{life}") as brief:
                        brief.create_topic(properties)
                        for client, base in ((lasting, offset), (brief, 0)):
                            batches = make_batches(base_offset=base, size_bytes=3 * SEGMENT_BYTES)
                            client.produce(batches)
                            if client is lasting:
                                offset = end_of(batches)
                        broker.wait_until_archived(brief)
                        brief.delete_topic()
                    life += 1
        except BaseException as error:  # It is told by the test.
            failures.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        eventually(lambda: archive.end_offset("lasting") > 0, timeout_s=WAIT_S)
        for number in range(runs):
            depth = ((), ("--quick",), ("--deep",))[number % 3]
            code, said = verify(archive.bucket, *depth)
            assert (code, failures) == (WHOLE, []), said
    finally:
        stopping.set()
        worker.join(WAIT_S * 2)
    assert not failures
    with broker.client("lasting") as client:
        broker.wait_until_archived(client)
        assert archive.orphans() is not None
    assert broker.warnings("Traceback") == []
