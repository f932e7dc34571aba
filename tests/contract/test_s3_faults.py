"""What the S3 store makes of a bad network and a bad day of the server: one test per known trap."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import boto3.session
import crc32c
import pytest

from strandline.storage.clock import SystemClock
from strandline.storage.errors import (
    AccessDenied,
    InvalidConfig,
    ObjectArchived,
    ObjectCorrupt,
    ObjectNotFound,
    PreconditionFailed,
    TierError,
    TierUnavailable,
)
from strandline.storage.model import TopicIdPartition
from strandline.storage.remote.keys import topic_key
from strandline.storage.remote.object_store.conditional_writes import (
    Conditions,
    check_conditional_writes,
)
from strandline.storage.remote.object_store.interface import (
    BucketMissing,
    Deadlines,
    FileBody,
    IfAbsent,
    IfMatches,
    Lack,
    ObjectStore,
    checksum,
)
from strandline.storage.remote.open_store import open_store
from strandline.storage.remote.reader.cold_reader import ColdReader
from strandline.storage.remote.s3 import uploads as s3_uploads
from strandline.storage.remote.s3.store import S3Store
from tests.conftest import S3Bucket
from tests.support.archived_segments import archive_segment, make_log
from tests.support.fault_proxy import Action, FaultProxy, Rule
from tests.support.heavy import heavy
from tests.support.manual_clock import ManualClock
from tests.support.ports import ReservedPort

pytestmark = [pytest.mark.s3, pytest.mark.slow]

# Three attempts, and time enough for each of them on a machine that has much else to do.
STEADY = Deadlines(connect_s=10.0, read_s=3.0, request_s=60.0, upload_s=60.0, attempts_max=3)
# For what is given up in the end: waiting for the worst takes a second.
HASTY = Deadlines(connect_s=0.5, read_s=0.6, request_s=3.0, upload_s=10.0, attempts_max=3)
# The same, for what succeeds in the end: a busy machine has more bad moments than the planned one.
TENACIOUS = Deadlines(connect_s=10.0, read_s=0.6, request_s=60.0, upload_s=100.0, attempts_max=20)
# What is given up would have taken several times as long.
GIVEN_UP_S_MAX = 60.0
ENDLESS_S = 600.0
PARTITION = TopicIdPartition("orders", uuid.UUID("00000000-0000-4000-8000-00000000002a"), 0)
BODY = os.urandom(200_000)


@pytest.fixture
def store(fault_proxy: FaultProxy, s3_bucket: S3Bucket) -> Iterator[S3Store]:
    """A store behind the proxy, with an empty bucket."""
    opened = open_store(s3_bucket.url, endpoint_url=fault_proxy.endpoint_url, deadlines=STEADY)
    assert isinstance(opened, S3Store)
    yield opened
    opened.close()


@pytest.fixture
def hasty(fault_proxy: FaultProxy, s3_bucket: S3Bucket) -> Iterator[ObjectStore]:
    """The same with little patience."""
    opened = open_store(s3_bucket.url, endpoint_url=fault_proxy.endpoint_url, deadlines=HASTY)
    yield opened
    opened.close()


@pytest.fixture
def direct(s3_bucket: S3Bucket) -> Iterator[ObjectStore]:
    """The same bucket without the proxy: what somebody else sees and does."""
    opened = open_store(s3_bucket.url, endpoint_url=s3_bucket.endpoint_url)
    yield opened
    opened.close()


def took_s(work: Callable[[], object], error: type[TierError]) -> float:
    """Runs `work`, which must raise `error` itself and no subclass; how long it took."""
    begin_s = time.monotonic()
    with pytest.raises(error) as raised:
        work()
    assert raised.type is error, raised.value
    return time.monotonic() - begin_s


# --- lost answers ----------------------------------------------------------------------------


def test_a_lost_answer_to_put_if_absent_is_no_lost_race(
    store: S3Store, fault_proxy: FaultProxy
) -> None:
    fault_proxy.add(Rule(action=Action.RESET_AFTER, method="PUT"))
    written = store.put("a", b"mine", condition=IfAbsent())
    assert store.get("a") == b"mine"
    assert store.head("a").etag == written.etag
    assert fault_proxy.count("PUT") == 2


def test_a_lost_answer_to_put_if_unchanged_is_no_lost_race(
    store: S3Store, fault_proxy: FaultProxy
) -> None:
    first = store.put("a", b"first")
    fault_proxy.add(Rule(action=Action.RESET_AFTER, method="PUT"))
    second = store.put("a", b"second", condition=IfMatches(first.etag))
    third = store.put("a", b"third", condition=IfMatches(second.etag))
    assert store.get_object("a").info.etag == third.etag


def test_a_lost_answer_on_the_last_attempt_is_found_by_head(
    store: S3Store, fault_proxy: FaultProxy
) -> None:
    fault_proxy.add(Rule(action=Action.RESET_AFTER, method="PUT", times=-1))
    store.put("a", b"mine", condition=IfAbsent())
    assert store.get("a") == b"mine"


def test_a_late_answer_counts_as_lost_and_is_found(store: S3Store, fault_proxy: FaultProxy) -> None:
    fault_proxy.add(Rule(action=Action.LATENCY, method="PUT", delay_s=2 * STEADY.read_s))
    store.put("a", b"mine", condition=IfAbsent())
    assert store.get("a") == b"mine"


def test_a_lost_race_is_believed_after_one_head(
    store: S3Store, direct: ObjectStore, fault_proxy: FaultProxy
) -> None:
    direct.put("a", b"theirs")
    with pytest.raises(PreconditionFailed):
        store.put("a", b"mine", condition=IfAbsent())
    assert (fault_proxy.count("PUT"), fault_proxy.count("HEAD")) == (1, 1)
    assert direct.get("a") == b"theirs"


def test_somebody_elses_equal_bytes_are_not_taken_for_ours(
    store: S3Store, direct: ObjectStore, fault_proxy: FaultProxy
) -> None:
    """Length and checksum agree; the write id does not."""
    direct.put("a", b"same")
    fault_proxy.add(Rule(action=Action.RESET_BEFORE, method="PUT"))
    with pytest.raises(PreconditionFailed):
        store.put("a", b"same", condition=IfAbsent())


def test_a_lost_answer_and_a_dead_server_leave_the_outcome_unknown(
    store: S3Store, direct: ObjectStore, fault_proxy: FaultProxy
) -> None:
    fault_proxy.add(Rule(action=Action.RESET_AFTER, method="PUT"))
    fault_proxy.add(Rule(action=Action.RESET_BEFORE, times=-1))
    took_s(lambda: store.put("a", b"mine", condition=IfAbsent()), TierUnavailable)
    assert direct.get("a") == b"mine"


def test_a_refused_condition_and_a_dead_server_leave_the_outcome_unknown(
    store: S3Store, fault_proxy: FaultProxy
) -> None:
    fault_proxy.add(Rule(action=Action.RESET_AFTER, method="PUT"))
    fault_proxy.add(Rule(action=Action.RESET_BEFORE, method="HEAD", times=-1))
    took_s(lambda: store.put("a", b"mine", condition=IfAbsent()), TierUnavailable)


def test_a_conflict_is_tried_again_and_is_not_a_lost_race(
    store: S3Store, fault_proxy: FaultProxy
) -> None:
    conflict = Rule(
        action=Action.STATUS, method="PUT", status=409, code="ConditionalRequestConflict"
    )
    fault_proxy.add(conflict)
    store.put("a", b"mine", condition=IfAbsent())
    assert conflict.hit_count == 1
    fault_proxy.add(
        Rule(
            action=Action.STATUS,
            method="PUT",
            status=409,
            code="ConditionalRequestConflict",
            times=-1,
        )
    )
    took_s(lambda: store.put("b", b"mine", condition=IfAbsent()), TierUnavailable)


# --- the server is busy, slow, or away -------------------------------------------------------


def test_a_busy_server_is_asked_again(store: S3Store, fault_proxy: FaultProxy) -> None:
    store.put("a", BODY)
    fault_proxy.clear()
    fault_proxy.add(Rule(action=Action.STATUS, method="GET", times=2))
    assert store.get("a") == BODY
    assert fault_proxy.count("GET") == 3


def test_a_server_that_stays_busy_is_given_up(store: S3Store, fault_proxy: FaultProxy) -> None:
    fault_proxy.add(Rule(action=Action.STATUS, times=-1))
    took_s(lambda: store.get("a"), TierUnavailable)
    assert fault_proxy.count("GET") == STEADY.attempts_max


@pytest.mark.parametrize("action", [Action.HANG, Action.RESET_BEFORE, Action.RESET_AFTER])
def test_a_read_survives_one_broken_connection(
    store: S3Store, fault_proxy: FaultProxy, action: Action
) -> None:
    store.put("a", BODY)
    fault_proxy.add(Rule(action=action, method="GET", delay_s=ENDLESS_S))
    assert store.get("a", start=10, end=100_000) == BODY[10:100_000]


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_a_server_that_never_answers_is_given_up_in_bounded_time(
    hasty: ObjectStore, fault_proxy: FaultProxy, method: str
) -> None:
    fault_proxy.add(Rule(action=Action.HANG, times=-1, delay_s=ENDLESS_S))
    work = (lambda: hasty.get("a")) if method == "GET" else (lambda: hasty.put("a", BODY))
    assert took_s(work, TierUnavailable) < GIVEN_UP_S_MAX


def test_a_body_that_trickles_is_given_up_in_bounded_time(
    store: S3Store, hasty: ObjectStore, fault_proxy: FaultProxy
) -> None:
    store.put("a", BODY)
    # Bytes come all the time, so no wait for one is long; the whole would take minutes.
    bytes_per_s = len(BODY) // int(ENDLESS_S)
    fault_proxy.add(Rule(action=Action.THROTTLE, method="GET", times=-1, bytes_per_s=bytes_per_s))
    assert took_s(lambda: hasty.get("a", start=0, end=200_000), TierUnavailable) < GIVEN_UP_S_MAX
    assert took_s(lambda: hasty.get("a"), TierUnavailable) < GIVEN_UP_S_MAX


def test_a_listing_that_trickles_is_given_up_in_bounded_time(
    store: S3Store, hasty: ObjectStore, fault_proxy: FaultProxy
) -> None:
    for number in range(20):
        store.put(f"a/{number}", b"x")
    # Bytes come all the time, so no wait for one is long; the whole would take minutes.
    fault_proxy.add(Rule(action=Action.THROTTLE, method="GET", times=-1, bytes_per_s=10))
    assert took_s(lambda: list(hasty.list("a/")), TierUnavailable) < GIVEN_UP_S_MAX
    fault_proxy.clear()
    assert len(list(store.list("a/"))) == 20


def test_a_server_that_is_away_is_unavailable_and_comes_back(
    store: S3Store, fault_proxy: FaultProxy
) -> None:
    store.put("a", BODY)
    fault_proxy.go_away()
    took_s(lambda: store.get("a"), TierUnavailable)
    took_s(lambda: store.put("b", b"x"), TierUnavailable)
    fault_proxy.come_back()
    assert store.get("a") == BODY


def test_nobody_listening_is_unavailable(s3_bucket: S3Bucket) -> None:
    silent = ReservedPort()
    nowhere = open_store(
        s3_bucket.url, endpoint_url=f"http://127.0.0.1:{silent.number}", deadlines=HASTY
    )
    took_s(nowhere.check, TierUnavailable)
    nowhere.close()


def test_closing_ends_the_pauses_between_attempts(
    fault_proxy: FaultProxy, s3_bucket: S3Bucket
) -> None:
    patient = open_store(
        s3_bucket.url,
        endpoint_url=fault_proxy.endpoint_url,
        deadlines=Deadlines(attempts_max=1000, request_s=ENDLESS_S),
    )
    fault_proxy.add(Rule(action=Action.STATUS, times=-1))
    timer = threading.Timer(0.5, patient.close)
    timer.start()
    assert took_s(lambda: patient.get("a"), TierUnavailable) < GIVEN_UP_S_MAX
    timer.join()


# --- damaged bytes ---------------------------------------------------------------------------


@pytest.mark.parametrize("at_byte", [0, 100, 150_000])
def test_a_body_that_breaks_off_is_fetched_again(
    store: S3Store, fault_proxy: FaultProxy, at_byte: int
) -> None:
    store.put("a", BODY)
    fault_proxy.add(Rule(action=Action.TRUNCATE, method="GET", at_byte=at_byte))
    target = bytearray(len(BODY))
    store.get_into("a", memoryview(target), start=0)
    assert target == BODY
    fault_proxy.add(Rule(action=Action.TRUNCATE, method="GET", at_byte=at_byte))
    assert store.get("a") == BODY


def test_a_body_that_always_breaks_off_is_unavailable(
    store: S3Store, fault_proxy: FaultProxy
) -> None:
    store.put("a", BODY)
    fault_proxy.add(Rule(action=Action.TRUNCATE, method="GET", at_byte=1000, times=-1))
    took_s(lambda: store.get("a", start=0, end=100_000), TierUnavailable)


def test_a_whole_object_with_a_flipped_bit_is_fetched_again(
    store: S3Store, fault_proxy: FaultProxy
) -> None:
    store.put("a", BODY)
    fault_proxy.add(Rule(action=Action.CORRUPT, method="GET", at_byte=77_000))
    assert store.get("a") == BODY
    fault_proxy.add(Rule(action=Action.CORRUPT, method="GET", at_byte=77_000, times=-1))
    took_s(lambda: store.get("a"), ObjectCorrupt)


@pytest.mark.parametrize("size_bytes", [1000, 200_000])
def test_an_upload_with_a_flipped_bit_is_sent_again(
    store: S3Store, direct: ObjectStore, fault_proxy: FaultProxy, size_bytes: int
) -> None:
    damage = fault_proxy.add(Rule(action=Action.CORRUPT_UPLOAD, method="PUT", at_byte=500))
    store.put("a", BODY[:size_bytes])
    assert damage.hit_count == 1
    assert direct.get("a") == BODY[:size_bytes]


def test_an_upload_that_always_arrives_damaged_is_corrupt_and_leaves_nothing(
    store: S3Store, direct: ObjectStore, fault_proxy: FaultProxy
) -> None:
    fault_proxy.add(Rule(action=Action.CORRUPT_UPLOAD, method="PUT", at_byte=500, times=-1))
    took_s(lambda: store.put("a", BODY), ObjectCorrupt)
    with pytest.raises(ObjectNotFound):
        direct.head("a")


def test_a_flipped_bit_in_a_range_is_caught_by_the_batch_checksum(
    store: S3Store, direct: ObjectStore, fault_proxy: FaultProxy
) -> None:
    """Ranges carry no checksum in S3, so nobody below the reader can notice."""
    segment = archive_segment(direct, PARTITION, make_log(batch_count=50))
    rule = fault_proxy.add(
        Rule(action=Action.CORRUPT, method="GET", path=r"\.log", at_byte=5000, times=1)
    )
    with ThreadPoolExecutor(2) as executor:
        reader = ColdReader(store, executor)
        found = asyncio.run(reader.read(segment.entry, 0, bytes_max=10**6))
        assert b"".join(found.buffers) == segment.log
        assert (rule.hit_count, reader.statistics().corrupt_chunks) == (1, 1)
        fault_proxy.add(
            Rule(action=Action.CORRUPT, method="GET", path=r"\.log", at_byte=5000, times=-1)
        )
        again = ColdReader(store, executor)
        took_s(lambda: asyncio.run(again.read(segment.entry, 0, bytes_max=10**6)), ObjectCorrupt)


# --- uploads in parts ------------------------------------------------------------------------


@pytest.fixture
def parts_body(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileBody:
    """A file of five parts, which the store sends in parts."""
    monkeypatch.setattr(s3_uploads, "SINGLE_PUT_BYTES_MAX", 100_000)
    monkeypatch.setattr(s3_uploads, "PART_BYTES", 100_000)
    path = tmp_path / "segment.log"
    content = os.urandom(450_000)
    path.write_bytes(content)
    return FileBody(path=path, size_bytes=len(content), crc32c=crc32c.crc32c(content))


def test_a_lost_answer_to_complete_is_no_failed_upload(
    store: S3Store, fault_proxy: FaultProxy, parts_body: FileBody
) -> None:
    fault_proxy.add(Rule(action=Action.RESET_AFTER, method="POST", path="uploadId="))
    store.put("big", parts_body, condition=IfAbsent())
    assert store.get("big") == parts_body.path.read_bytes()
    assert store.head("big").stated_crc32c == parts_body.crc32c


def test_no_such_upload_after_a_lost_answer_is_resolved_by_head(
    store: S3Store, fault_proxy: FaultProxy, parts_body: FileBody
) -> None:
    """What LocalStack and S3 answer when a complete is repeated; MiniStack does not."""
    fault_proxy.add(Rule(action=Action.RESET_AFTER, method="POST", path="uploadId="))
    fault_proxy.add(
        Rule(action=Action.STATUS, method="POST", path="uploadId=", status=404, code="NoSuchUpload")
    )
    store.put("big", parts_body, condition=IfAbsent())
    assert store.get("big") == parts_body.path.read_bytes()


def test_an_upload_that_vanished_is_unavailable_and_not_missing(
    store: S3Store, fault_proxy: FaultProxy, parts_body: FileBody
) -> None:
    fault_proxy.add(
        Rule(action=Action.STATUS, method="POST", path="uploadId=", status=404, code="NoSuchUpload")
    )
    took_s(lambda: store.put("big", parts_body), TierUnavailable)


@pytest.mark.parametrize(
    "action", [Action.STATUS, Action.RESET_BEFORE, Action.RESET_AFTER, Action.HANG]
)
def test_each_part_is_tried_again(
    store: S3Store, fault_proxy: FaultProxy, parts_body: FileBody, action: Action
) -> None:
    fault_proxy.add(Rule(action=action, method="PUT", path="partNumber=3", delay_s=ENDLESS_S))
    store.put("big", parts_body)
    assert store.get("big") == parts_body.path.read_bytes()


@pytest.mark.parametrize("in_parts", [False, heavy(True)])
@pytest.mark.heavy
def test_an_upload_that_drips_is_given_up_and_sent_again(
    direct: ObjectStore,
    s3_bucket: S3Bucket,
    fault_proxy: FaultProxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    in_parts: bool,
) -> None:
    """More than the buffers of two sockets hold: what goes in there looks like progress."""
    if in_parts:
        monkeypatch.setattr(s3_uploads, "SINGLE_PUT_BYTES_MAX", 16_000_000)
    path = tmp_path / "segment.log"
    content = os.urandom(1_000_000) * 24
    path.write_bytes(content)
    body = FileBody(path=path, size_bytes=len(content), crc32c=crc32c.crc32c(content))
    dripping = Rule(action=Action.THROTTLE_UPLOAD, method="PUT", bytes_per_s=100_000)
    fault_proxy.add(dripping)
    tenacious = open_store(
        s3_bucket.url, endpoint_url=fault_proxy.endpoint_url, deadlines=TENACIOUS
    )
    begin_s = time.monotonic()
    tenacious.put("big", body)
    # All of it at that pace: four minutes.
    assert time.monotonic() - begin_s < len(content) / dripping.bytes_per_s / 2
    assert dripping.hit_count == 1
    assert checksum(direct.get("big")) == body.crc32c
    tenacious.close()


def test_a_part_that_fails_for_good_aborts_the_upload(
    store: S3Store, direct: ObjectStore, fault_proxy: FaultProxy, parts_body: FileBody
) -> None:
    fault_proxy.add(Rule(action=Action.STATUS, method="PUT", path="partNumber=3", times=-1))
    took_s(lambda: store.put("big", parts_body), TierUnavailable)
    assert fault_proxy.count("DELETE", "uploadId=") == 1
    assert direct.abort_uploads("", older_than_ms=0) == 0
    with pytest.raises(ObjectNotFound):
        direct.head("big")


def test_forgotten_uploads_are_aborted_once_they_are_old(
    store: S3Store, s3_bucket: S3Bucket, fault_proxy: FaultProxy, parts_body: FileBody
) -> None:
    fault_proxy.add(Rule(action=Action.STATUS, method="PUT", path="partNumber=3", times=-1))
    fault_proxy.add(Rule(action=Action.STATUS, method="DELETE", times=-1))
    took_s(lambda: store.put("topics/x/big", parts_body), TierUnavailable)
    clock = ManualClock(SystemClock().now_ms())
    later = open_store(s3_bucket.url, endpoint_url=s3_bucket.endpoint_url, clock=clock)
    assert later.abort_uploads("topics/", older_than_ms=3_600_000) == 0
    clock.advance_ms(3_700_000)
    assert later.abort_uploads("other/", older_than_ms=3_600_000) == 0
    assert later.abort_uploads("topics/", older_than_ms=3_600_000) == 1
    assert later.abort_uploads("topics/", older_than_ms=3_600_000) == 0
    later.close()


# --- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (403, "AccessDenied", AccessDenied),
        (403, "SignatureDoesNotMatch", AccessDenied),
        (403, "InvalidObjectState", ObjectArchived),
        (401, "Unauthorized", AccessDenied),
        (400, "ExpiredToken", AccessDenied),
        (404, "NoSuchKey", ObjectNotFound),
        (404, "NoSuchBucket", BucketMissing),
        (400, "InvalidArgument", TierError),
        (501, "NotImplemented", TierError),
    ],
)
def test_each_refusal_has_its_own_class_and_is_not_repeated(
    store: S3Store, fault_proxy: FaultProxy, status: int, code: str, error: type[TierError]
) -> None:
    fault_proxy.add(Rule(action=Action.STATUS, method="GET", status=status, code=code, times=-1))
    took_s(lambda: store.get("a", start=0, end=10), error)
    assert fault_proxy.count("GET") == 1


def test_a_refusal_without_a_body_says_its_status_once(
    store: S3Store, fault_proxy: FaultProxy
) -> None:
    fault_proxy.add(Rule(action=Action.STATUS, method="HEAD", status=403, times=-1))
    with pytest.raises(AccessDenied) as refused:
        store.head("changes.json")
    assert str(refused.value) == "head changes.json: 403: Forbidden"


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [(400, "KeyTooLongError", TierError), (500, "InternalError", TierUnavailable)],
)
def test_a_name_that_no_file_can_have_is_said_where_it_cannot_be_put(
    hasty: ObjectStore, fault_proxy: FaultProxy, status: int, code: str, error: type[TierError]
) -> None:
    """As servers answer that keep objects as files."""
    refusal = Rule(action=Action.STATUS, method="PUT", status=status, code=code, times=-1)
    fault_proxy.add(refusal)
    key = topic_key("t" * 219, PARTITION.topic_id)
    with pytest.raises(error, match=r"names of 256 bytes .* topics .* 218 characters"):
        hasty.put(key, b"")
    with pytest.raises(error) as refused:
        hasty.put(topic_key("t" * 218, PARTITION.topic_id), b"")
    assert "218" not in str(refused.value)


def test_an_object_in_cold_storage_is_archived_not_missing_and_not_denied(
    store: S3Store, s3_bucket: S3Bucket
) -> None:
    client = boto3.session.Session().client(
        "s3", endpoint_url=s3_bucket.endpoint_url, region_name="us-east-1"
    )
    client.put_object(
        Bucket=s3_bucket.name, Key="archive/a", Body=BODY, StorageClass="DEEP_ARCHIVE"
    )
    client.close()
    took_s(lambda: store.get("a"), ObjectArchived)
    took_s(lambda: store.get("a", start=0, end=10), ObjectArchived)


@pytest.mark.parametrize("header", ["If-None-Match", "If-Match"])
def test_a_server_that_ignores_conditions_is_refused(
    store: S3Store, direct: ObjectStore, fault_proxy: FaultProxy, header: str
) -> None:
    fault_proxy.add(Rule(action=Action.DROP_HEADER, method="PUT", header=header, times=-1))
    with pytest.raises(InvalidConfig, match=f"ignores {header}"):
        check_conditional_writes(store)
    assert list(direct.list("probe/")) == []


def refusal(**more: str) -> Rule:
    return Rule(action=Action.STATUS, status=501, code="NotImplemented", times=-1, **more)


LACKING = {
    Lack.CHECKSUMS: refusal(method="PUT|POST", if_header="x-amz-checksum-"),
    Lack.MULTIPART: refusal(method="POST", path=r"\?uploads", if_header="x-amz-checksum-algorithm"),
    Lack.BATCH_DELETE: refusal(method="POST", path=r"\?delete", unless_header="content-md5"),
    Lack.CONDITIONAL_DELETE: refusal(method="DELETE", if_header="if-match"),
}


@pytest.mark.parametrize("lack", LACKING)
def test_what_a_server_lacks_is_found_by_a_start_and_done_in_another_way(
    store: S3Store,
    direct: ObjectStore,
    fault_proxy: FaultProxy,
    lack: Lack,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """No segment above 64 MiB was ever archived, or nothing at all, or nothing deleted."""
    monkeypatch.setattr(s3_uploads, "SINGLE_PUT_BYTES_MAX", 64 * 1024)
    fault_proxy.add(LACKING[lack])
    assert check_conditional_writes(store) is Conditions.AT_ONCE
    # Uploads in parts and deletions have checksums too.
    also = {Lack.MULTIPART, Lack.BATCH_DELETE} if lack is Lack.CHECKSUMS else set()
    assert store.lacks == {lack} | also
    assert list(direct.list("probe/")) == []
    path = tmp_path / "large"
    path.write_bytes(BODY)
    body = FileBody(path=path, size_bytes=len(BODY), crc32c=checksum(BODY))
    assert store.put("large", body, condition=IfAbsent()).crc32c == checksum(BODY)
    manifest = store.put("small", b"first", condition=IfAbsent())
    store.put("small", b"second", condition=IfMatches(manifest.etag))
    assert (direct.get("large"), direct.get("small")) == (BODY, b"second")
    store.delete(["large", "small", "absent"])
    assert list(direct.list("")) == []


def test_a_server_that_takes_no_checksums_is_caught_storing_other_bytes(
    store: S3Store, direct: ObjectStore, fault_proxy: FaultProxy, tmp_path: Path
) -> None:
    fault_proxy.add(LACKING[Lack.CHECKSUMS])
    path = tmp_path / "segment"
    path.write_bytes(BODY)
    body = FileBody(path=path, size_bytes=len(BODY), crc32c=checksum(BODY))
    assert store.put("whole", body).size_bytes == len(BODY)
    fault_proxy.add(Rule(action=Action.CORRUPT_UPLOAD, method="PUT", at_byte=1000))
    with pytest.raises(ObjectCorrupt, match="was read back"):
        store.put("damaged", body)
    assert [info.key for info in direct.list("")] == ["whole"]


def test_a_server_that_ignores_the_condition_of_a_delete_is_not_relied_on(
    store: S3Store, fault_proxy: FaultProxy
) -> None:
    fault_proxy.add(Rule(action=Action.DROP_HEADER, method="DELETE", header="If-Match", times=-1))
    check_conditional_writes(store)
    assert store.lacks == {Lack.CONDITIONAL_DELETE}


def test_a_request_that_the_server_refuses_in_both_ways_says_nothing_of_the_server(
    store: S3Store, fault_proxy: FaultProxy
) -> None:
    fault_proxy.add(
        Rule(action=Action.STATUS, method="PUT", status=400, code="InvalidArgument", times=2)
    )
    with pytest.raises(TierError, match="InvalidArgument"):
        store.put("a", b"x")
    store.put("a", b"x")
    assert Lack.CHECKSUMS not in store.lacks


def test_a_server_that_keeps_conditions_one_at_a_time_is_told_by_a_race(
    store: S3Store, direct: ObjectStore, fault_proxy: FaultProxy
) -> None:
    """Whoever looked in time writes: of the race two are done, and the four before it are kept."""
    fault_proxy.add(
        Rule(action=Action.DROP_HEADER, method="PUT", header="If-None-Match", skip=4, times=2)
    )
    assert check_conditional_writes(store) is Conditions.ONE_AT_A_TIME
    assert list(direct.list("probe/")) == []


def test_a_server_that_knows_no_such_upload_has_none(
    store: S3Store, fault_proxy: FaultProxy
) -> None:
    """rclone says so of a bucket without any; the deletion of a topic waited for it for ever."""
    fault_proxy.add(
        Rule(action=Action.STATUS, path=r"\?.*uploads", status=404, code="NoSuchUpload", times=-1)
    )
    assert store.abort_uploads("topics/", older_than_ms=0) == 0
    assert list(store.usage.unfinished_uploads()) == []


def test_missing_credentials_are_denied_access(
    s3_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    anonymous = open_store(s3_bucket.url, endpoint_url=s3_bucket.endpoint_url)
    took_s(lambda: anonymous.get("a"), AccessDenied)
    anonymous.close()
