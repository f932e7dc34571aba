"""Every kind of fault strikes every operation on the bucket, and afterwards nothing is wrong.

             put .log  put .meta  put .tail  commit  get chunk  delete  list
    403         .         .          .         .         .         .      .
    404 ...     each field: the fault strikes while that operation is needed; appends go on; then
                the store is well again, and the bucket is what the manifest says, the records are
                what was sent, orphans are found and nothing else is missing

A real S3 server behind the proxy and the real S3 store, which is told not to try again by itself:
so each fault reaches the tiering above it. The partition lives in this process, with a clock of its
own.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from strandline.storage.errors import StorageError, TierUnavailable
from strandline.storage.remote.manifest.store import load
from strandline.storage.remote.object_store.interface import Deadlines, ObjectStore
from strandline.storage.remote.open_store import open_store
from strandline.storage.tiering.audit.orphans import compare, delete_orphans
from strandline.storage.tiering.audit.scrub import Depth, Scrub
from tests.conftest import S3Bucket, make_bucket
from tests.support.fault_proxy import Action, FaultProxy, Rule
from tests.support.heavy import heavy
from tests.support.ministack import ServerProcess
from tests.system.tiers.tiered_broker import END_OF_TIME_MS, REGION
from tests.unit.storage.tiering.harness import (
    CONFIG,
    GRACE_MS,
    ID_PARTITION,
    Rig,
    asynchronous,
    keys_of,
)

pytestmark = [pytest.mark.slow, pytest.mark.s3]

# Nothing is tried again below the tiering, and the worst is over in a third of a second.
IMPATIENT = Deadlines(connect_s=2.0, read_s=0.3, request_s=0.6, upload_s=1.0, attempts_max=1)
SLOWER_THAN_PATIENCE_S = 0.8
UPLOAD_MS = 5_000
BATCH = 10
SEGMENTS = 3
# A fault that strikes twice is met by the first attempt and by the one after it.
STRIKES = 2
ROUNDS_MIN = 3
# Most heal in a few rounds of milliseconds.
HEAL_S_MAX = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What is struck, as the proxy sees it, and what has happened before."""

    method: str
    path: str
    is_archived: bool = False
    is_upload: bool = False


OPERATIONS = {
    "put .log": Operation(method="PUT", path=r"\.log", is_upload=True),
    "put .meta": Operation(method="PUT", path=r"\.meta", is_upload=True),
    "put .tail": Operation(method="PUT", path=r"\.tail", is_upload=True),
    "commit": Operation(method="PUT", path=r"manifest\.json", is_upload=True),
    "get chunk": Operation(method="GET", path=r"\.log", is_archived=True),
    "delete": Operation(method="POST", path=r"delete", is_archived=True),
    "list": Operation(method="GET", path=r"list-type=2", is_archived=True),
}
REFUSALS = {
    "403": (403, "AccessDenied"),
    "404": (404, "NoSuchKey"),
    "409": (409, "ConditionalRequestConflict"),
    "500": (500, "InternalError"),
    "503": (503, "SlowDown"),
}
FAULTS = [
    *REFUSALS,
    "slow first byte",
    "slow drip",
    "hang",
    "truncated body",
    "flipped byte",
    "dropped before",
    "dropped after",
]


# Each sixth has each fault and each operation.
FIELDS = [
    (fault, operation) if (row + column) % 6 == 0 else heavy(fault, operation)
    for row, fault in enumerate(FAULTS)
    for column, operation in enumerate(OPERATIONS)
]


def make_rule(fault: str, operation: Operation) -> Rule:
    """The fault, in the direction in which the operation's bytes go."""
    rule = Rule(action=Action.STATUS, method=operation.method, path=operation.path, times=STRIKES)
    up = operation.is_upload
    match fault:
        case "slow first byte":
            return replace(rule, action=Action.LATENCY, delay_s=SLOWER_THAN_PATIENCE_S, times=1)
        case "slow drip":
            action = Action.THROTTLE_UPLOAD if up else Action.THROTTLE
            return replace(rule, action=action, bytes_per_s=100, times=1)
        case "hang":
            return replace(rule, action=Action.HANG, times=1)
        case "truncated body":
            action = Action.TRUNCATE_UPLOAD if up else Action.TRUNCATE
            return replace(rule, action=action, at_byte=20)
        case "flipped byte":
            return replace(rule, action=Action.CORRUPT_UPLOAD if up else Action.CORRUPT, at_byte=90)
        case "dropped before":
            return replace(rule, action=Action.RESET_BEFORE)
        case "dropped after":
            return replace(rule, action=Action.RESET_AFTER)
    status, code = REFUSALS[fault]
    return replace(rule, status=status, code=code)


@pytest.fixture(scope="module")
def proxy(ministack: ServerProcess) -> Iterator[FaultProxy]:
    with FaultProxy(ministack.port) as opened:
        yield opened


@pytest.fixture(scope="module")
def bucket(ministack: ServerProcess) -> S3Bucket:
    return make_bucket(ministack.endpoint_url)


@pytest.fixture
def folder_url(bucket: S3Bucket) -> str:
    """Each test has a folder of its own: a request that one gave up may still reach the server.

    As the commit of a slow drip does, ten seconds later. With one folder for all it made a manifest
    in the next tests' archive, which named objects that nobody had.
    """
    return f"{bucket.url}/{uuid.uuid4().hex}"


@pytest.fixture
def store(folder_url: str, proxy: FaultProxy) -> Iterator[ObjectStore]:
    """What the partition has: faults, and no patience with them."""
    opened = open_store(
        folder_url, endpoint_url=proxy.endpoint_url, region=REGION, deadlines=IMPATIENT
    )
    yield opened
    proxy.clear()
    opened.close()


@pytest.fixture
def patient(folder_url: str, bucket: S3Bucket) -> Iterator[ObjectStore]:
    """The same folder, as somebody sees it who waits for a loaded machine."""
    opened = open_store(folder_url, endpoint_url=bucket.endpoint_url, region=REGION)
    yield opened
    opened.close()


async def until_true(rig: Rig, condition: Callable[[], bool]) -> None:
    """Time passes and work is done until then; a loaded machine may miss deadlines once more."""
    given_up_s = time.monotonic() + HEAL_S_MAX
    while True:
        rig.pass_ms(GRACE_MS)
        await rig.settle()
        if condition():
            return
        assert time.monotonic() < given_up_s, f"does not heal: {rig.statistics}"


def is_settled(rig: Rig) -> bool:
    """Whether nothing is left to do."""
    state = rig.statistics
    return not (state.copy_lag_segments or state.deleting_segments or state.copy_failure)


async def heal(rig: Rig) -> None:
    """Until nothing is left to do."""
    await until_true(rig, lambda: is_settled(rig))


async def heal_and_free(rig: Rig, local_start_offset: int) -> None:
    """Until the local copies below are gone too.

    Which is a round later where a copy missed its deadline first: a loaded machine may do that.
    """
    await until_true(
        rig, lambda: is_settled(rig) and rig.log.local_start_offset == local_start_offset
    )


async def read_what_can_be_read(rig: Rig) -> None:
    """Right bytes or an error, never wrong bytes."""
    try:
        assert await rig.read_all(0) == b"".join(rig.sent)
    except StorageError:
        return


async def read_patiently(rig: Rig, start: int) -> bytes:
    """As a client reads, who asks again what was away for the moment."""
    given_up_s = time.monotonic() + HEAL_S_MAX
    while True:
        try:
            return await rig.read_all(start)
        except TierUnavailable:
            if time.monotonic() > given_up_s:
                raise


@pytest.mark.parametrize(("fault", "operation"), FIELDS)
@asynchronous
async def test_after_any_fault_of_any_operation_the_bucket_is_what_the_manifest_says(
    tmp_path: Path,
    proxy: FaultProxy,
    store: ObjectStore,
    patient: ObjectStore,
    fault: str,
    operation: str,
) -> None:
    struck = OPERATIONS[operation]
    config = replace(CONFIG, strandline_remote_active_segment_upload_ms=UPLOAD_MS)
    async with Rig(tmp_path, store=store, config=config) as rig:
        # Until then nobody may append to an empty log.
        await until_true(rig, lambda: rig.log.remote is not None and rig.log.remote.known)
        rig.produce_segments(SEGMENTS)
        rig.produce(BATCH)
        start = 0
        if struck.is_archived:
            # Whoever reads has to ask the store.
            await heal_and_free(rig, BATCH * SEGMENTS)
        rule = proxy.add(make_rule(fault, struck))
        if operation == "delete":
            start = rig.log.delete_records(BATCH * 2)
        if operation == "list":
            rig.manager.delete_topic(rig.topic_info)
        # What the store does is no matter of those who write. A loaded machine needs more rounds
        # until the operation comes by.
        given_up_s = time.monotonic() + HEAL_S_MAX
        rounds = 0
        while rounds < ROUNDS_MIN or not rule.hit_count:
            assert time.monotonic() < given_up_s, "the fault did not strike"
            if operation != "list":
                rig.produce(BATCH)
            if operation == "get chunk":
                await read_what_can_be_read(rig)
            rig.pass_ms(GRACE_MS)
            await rig.manager.run_once()
            rounds += 1
        proxy.clear()

        if operation == "list":
            await until_true(rig, lambda: not list(patient.list("topics/")))
            return
        await heal(rig)
        assert rig.log.log_start_offset == start
        assert await read_patiently(rig, start) == b"".join(rig.sent[start // BATCH :])
    found = compare(patient, now_ms=END_OF_TIME_MS, grace_ms=0)
    assert (found.missing_keys, found.unreadable) == ((), ())
    delete_orphans(patient, found.orphans)
    stored = load(patient, ID_PARTITION)
    assert stored is not None
    found_keys = {info.key for info in patient.list("topics/") if is_data(info.key)}
    assert found_keys == keys_of(stored.manifest)
    with ThreadPoolExecutor(2) as executor:
        report = Scrub(patient, executor, depth=Depth.EVERYTHING).check(ID_PARTITION)
    assert report.findings == ()


def is_data(key: str) -> bool:
    return key.endswith((".log", ".meta", ".tail"))
