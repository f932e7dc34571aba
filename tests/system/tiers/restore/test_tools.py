"""`strandline archive` and `strandline dump-log` on what a broker really made."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import boto3.session
import pytest

from strandline.broker.cli import main
from strandline.broker.commands.archive.tables import human_time
from strandline.storage.model import TopicIdPartition
from strandline.storage.plurals import human_bytes
from strandline.storage.records.batch.batch import read_header
from strandline.storage.remote.keys import manifest_key, topic_key
from tests.conftest import S3Bucket, make_bucket
from tests.support.broker import REPOSITORY
from tests.support.fault_proxy import Action, FaultProxy, Rule
from tests.support.forked import STRANDLINE, run_process
from tests.support.ministack import ServerProcess
from tests.system.tiers.log_client import make_batches, timestamp_of
from tests.system.tiers.tiered_broker import (
    FREE_LOCALLY,
    REGION,
    SEGMENT_BYTES,
    TIERED,
    Archive,
    TieredBroker,
)

pytestmark = [pytest.mark.slow, pytest.mark.s3]

TIMEOUT_S = 60.0
TOPICS = ["apples", "pears"]
BATCHES = make_batches(size_bytes=5 * SEGMENT_BYTES // 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """What a broker left behind: a bucket and a folder."""

    archive: Archive
    data: Path

    @property
    def bucket(self) -> S3Bucket:
        return self.archive.bucket


@pytest.fixture(scope="module")
def stopped(ministack: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    bucket = make_bucket(ministack.endpoint_url)
    with TieredBroker(tmp_path_factory.mktemp("tools"), bucket) as broker:
        for topic in TOPICS:
            with broker.client(topic) as client:
                client.create_topic({**TIERED, **FREE_LOCALLY})
                client.produce(BATCHES)
                broker.wait_until_archived(client)
                broker.wait_until_freed(client)
        broker.stop()
    return Stopped(archive=Archive.open(bucket), data=broker.data)


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that has run."""

    returncode: int
    stdout: str
    stderr: str


def strandline(*arguments: str) -> Ended:
    """Runs a command in this process: starting one takes longer than most of them do."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        returncode = main(arguments)
    return Ended(returncode, stdout.getvalue(), stderr.getvalue())


def strandline_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_process([*STRANDLINE, *arguments], folder=REPOSITORY, timeout_s=TIMEOUT_S)


def options_for(bucket: S3Bucket) -> list[str]:
    return ["--remote", bucket.url, "--endpoint-url", bucket.endpoint_url, "--region", REGION]


def look(bucket: S3Bucket, action: str, *arguments: str) -> Ended:
    return strandline("archive", action, *options_for(bucket), *arguments)


def rows(output: str, first_word: str) -> Iterator[list[str]]:
    """The cells of every line that begins with that word; columns are two blanks apart."""
    for line in output.splitlines():
        cells = re.split(r"\s{2,}", line.strip())
        if cells[0] == first_word:
            yield cells


def test_archive_ls_agrees_with_the_manifests(stopped: Stopped) -> None:
    ended = look(stopped.bucket, "ls")
    assert (ended.returncode, ended.stderr) == (0, "")
    for topic in TOPICS:
        (row,) = rows(ended.stdout, topic)
        manifest = stopped.archive.manifest(topic)
        assert manifest is not None
        assert row == [
            topic,
            "0",
            str(manifest.segment_count),
            human_bytes(manifest.size_bytes),
            str(manifest.log_start_offset),
            str(manifest.end_offset),
            human_time(timestamp_of(0)),
            human_time(timestamp_of(manifest.end_offset - 1)),
            "manifest ok",
        ]
    one = strandline_process("archive", "ls", *options_for(stopped.bucket), "--topic", "pears")
    assert (one.returncode, one.stderr) == (0, "")
    assert list(rows(one.stdout, "pears")) == list(rows(ended.stdout, "pears"))
    assert "apples" not in one.stdout


def test_archive_show_lists_every_segment_as_its_manifest_has_it(stopped: Stopped) -> None:
    ended = look(stopped.bucket, "show", "--topic", "apples")
    assert (ended.returncode, ended.stderr) == (0, "")
    entries = stopped.archive.segments("apples")
    found = list(rows(ended.stdout, "apples-0"))
    assert len(found) == len(entries) == 2
    for row, entry in zip(found, entries, strict=True):
        assert row[1:5] == [
            str(entry.base_offset),
            str(entry.end_offset),
            f"{entry.record_count:,}",
            human_bytes(entry.size_bytes),
        ]
        assert row[-2:] == [f"{entry.log_crc32c:08x}", entry.log_key]


def test_programs_are_told_the_same_as_people(stopped: Stopped) -> None:
    partitions = json.loads(look(stopped.bucket, "ls", "--json").stdout)
    assert [row["topic"] for row in partitions] == TOPICS
    segments = json.loads(look(stopped.bucket, "show", "--topic", "apples", "--json").stdout)
    assert [(row["base_offset"], row["log_key"]) for row in segments] == [
        (entry.base_offset, entry.log_key) for entry in stopped.archive.segments("apples")
    ]
    one = look(stopped.bucket, "show", "--topic", "apples", "--partition", "1", "--json")
    assert (one.returncode, one.stdout) == (1, "")


def test_archive_usage_counts_each_object_once_and_what_no_listing_shows(
    stopped: Stopped, archive: Archive
) -> None:
    copy = copied(stopped, archive)
    client = boto3.session.Session().client(
        "s3", endpoint_url=copy.bucket.endpoint_url, region_name=REGION
    )
    bucket = copy.bucket.name
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    begun = client.create_multipart_upload(Bucket=bucket, Key="archive/topics/begun")
    client.upload_part(
        Bucket=bucket,
        Key="archive/topics/begun",
        UploadId=begun["UploadId"],
        PartNumber=1,
        Body=b"x" * 1000,
    )
    for body in (b"first", b"second"):
        client.put_object(Bucket=bucket, Key="archive/elses", Body=body)
    client.put_object(Bucket=bucket, Key="outside", Body=b"not under the prefix")
    ended = look(copy.bucket, "usage", "--json")
    assert (ended.returncode, ended.stderr) == (0, "")
    found = json.loads(ended.stdout)
    entries = [entry for topic in TOPICS for entry in stopped.archive.segments(topic)]
    assert found["kinds"]["segments"] == {
        "objects": len(entries),
        "size_bytes": sum(entry.size_bytes for entry in entries),
    }
    assert found["kinds"]["indexes"]["objects"] == len(entries)
    assert found["kinds"]["other"] == {"objects": 1, "size_bytes": len(b"second")}
    assert found["older_versions"] == {"objects": 1, "size_bytes": len(b"first")}
    assert found["unfinished_uploads"] == {"objects": 1, "size_bytes": 1000}
    listed = [info.size_bytes for info in copy.store.list("")]
    assert found["storage_classes"]["STANDARD"] == {
        "objects": len(listed) + 1,
        "size_bytes": sum(listed) + len(b"first"),
    }
    priced = look(copy.bucket, "usage", "--price", "STANDARD=1024").stdout
    (row,) = rows(priced, "STANDARD")
    assert float(row[-1]) == pytest.approx((sum(listed) + 5) / 1024**2, abs=0.006)
    with pytest.raises(SystemExit):
        look(copy.bucket, "usage", "--price")
    assert look(copy.bucket, "usage", "--price", "STANDARD=cheap").returncode == 2
    assert look(copy.bucket, "usage", "--price", "GLACIER=1").returncode == 2


def test_archive_usage_does_without_what_it_may_not_list(
    stopped: Stopped, fault_proxy: FaultProxy
) -> None:
    for path in (r"[?&]versions", r"[?&]uploads"):
        refusal = Rule(action=Action.STATUS, status=403, code="AccessDenied", times=-1, path=path)
        fault_proxy.add(refusal)
    bucket = S3Bucket(name=stopped.bucket.name, endpoint_url=fault_proxy.endpoint_url)
    ended = look(bucket, "usage", "--json")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert sorted(found["unknown"]) == ["unfinished uploads", "versions"]
    assert (found["older_versions"], found["unfinished_uploads"]) == (None, None)
    assert found["kinds"]["segments"]["objects"] == 4


def test_archive_retention_names_what_limits_would_delete_and_deletes_nothing(
    stopped: Stopped,
) -> None:
    before = stopped.archive.keys()
    entries = stopped.archive.segments("apples")
    ended = look(stopped.bucket, "retention", "--topic", "apples", "--retention-ms", "1d", "--json")
    assert (ended.returncode, ended.stderr) == (0, "")
    (row,) = json.loads(ended.stdout)
    assert (row["deleted_segments"], row["reasons"]) == (len(entries), ["AGE"])
    assert row["log_start_offset"] == entries[-1].end_offset
    limit = str(entries[-1].size_bytes)
    arguments = ("--topic", "apples", "--retention-ms", "-1", "--retention-bytes", limit)
    (row,) = json.loads(look(stopped.bucket, "retention", *arguments, "--json").stdout)
    assert (row["deleted_segments"], row["reasons"]) == (len(entries) - 1, ["SIZE"])
    assert row["log_start_offset"] == entries[-1].base_offset
    told = look(stopped.bucket, "retention", *arguments).stdout
    assert "would be deleted; nothing was" in told
    unset = look(stopped.bucket, "retention", "--topic", "apples")
    assert (unset.returncode, unset.stdout) == (2, "")
    assert "log.retention.ms" in unset.stderr
    assert stopped.archive.keys() == before


def test_an_unknown_topic_and_a_missing_bucket_are_failures_in_one_line(stopped: Stopped) -> None:
    nothing = look(stopped.bucket, "ls", "--topic", "plums")
    assert (nothing.returncode, nothing.stdout) == (1, "")
    assert "plums" in nothing.stderr
    nowhere = S3Bucket(name="no-such-bucket", endpoint_url=stopped.bucket.endpoint_url)
    for action in ("ls", "show"):
        missing = look(nowhere, action)
        assert (missing.returncode, missing.stdout) == (1, "")
        assert missing.stderr.count("\n") == 1
        assert "'no-such-bucket' does not exist" in missing.stderr


def copy_of(archive: Archive) -> Archive:
    """The same objects in a bucket of their own, to be damaged."""
    copy = Archive.open(make_bucket(archive.bucket.endpoint_url))
    for info in archive.store.list(""):
        copy.store.put(info.key, archive.store.get(info.key))
    return copy


def test_archive_ls_shows_a_damaged_manifest_beside_the_others_and_fails(stopped: Stopped) -> None:
    copy = copy_of(stopped.archive)
    topic_id = copy.topic_id("pears")
    assert topic_id is not None
    copy.store.put(manifest_key(TopicIdPartition("pears", topic_id, 0)), b"{}")
    ended = look(copy.bucket, "ls")
    assert ended.returncode == 1
    (good,) = rows(ended.stdout, "apples")
    assert good[-1] == "manifest ok"
    (bad,) = rows(ended.stdout, "pears")
    assert "manifest.json" in bad[-1]


def test_a_damaged_description_of_one_topic_hides_no_other(stopped: Stopped) -> None:
    copy = copy_of(stopped.archive)
    topic_id = copy.topic_id("pears")
    assert topic_id is not None
    copy.store.put(topic_key("pears", topic_id), b"{}")

    listed = look(copy.bucket, "ls")
    assert listed.returncode == 1
    (good,) = rows(listed.stdout, "apples")
    assert good[-1] == "manifest ok"
    (bad,) = rows(listed.stdout, "pears")
    assert "topic.json" in bad[-1]
    for action in ("ls", "show", "verify"):
        assert look(copy.bucket, action, "--topic", "apples").returncode == 0, action

    verified = look(copy.bucket, "verify")
    assert verified.returncode == 3
    assert verified.stdout.startswith("1 partition, ")
    assert verified.stderr.count("\n") == 1
    assert "topic.json: format is None" in verified.stderr
    assert "a broker that has the topic writes" in verified.stderr
    assert look(copy.bucket, "verify", "--topic", "pears").returncode == 3

    shown = look(copy.bucket, "show", "--topic", "pears")
    assert shown.returncode == 1
    assert shown.stderr.endswith("what to do: strandline docs runbooks/archive-damage\n")


def test_dump_log_reads_an_archived_segment_as_it_reads_a_local_one(
    stopped: Stopped, tmp_path: Path
) -> None:
    entry = stopped.archive.segments("apples")[0]
    downloaded = tmp_path / Path(entry.log_key).name
    downloaded.write_bytes(stopped.archive.store.get(entry.log_key))
    ended = strandline("dump-log", "--verify", "--records", str(downloaded))
    assert ended.returncode == 0, ended.stderr
    headers = [read_header(b) for b in BATCHES if read_header(b).next_offset <= entry.end_offset]
    for header in headers:
        assert re.search(rf"\b{header.base_offset}\b", ended.stdout)
    for offset in range(entry.base_offset, entry.end_offset):
        assert f"key-{offset}" in ended.stdout
    assert "DAMAGED" not in ended.stdout
    assert f"{entry.record_count}" in ended.stdout.splitlines()[-1]


def test_dump_log_reads_the_local_files(stopped: Stopped) -> None:
    folder = stopped.data / "apples-0"
    files = sorted(p for p in folder.iterdir() if p.suffix in (".log", ".index", ".timeindex"))
    assert len(files) == 3
    for path in files:
        ended = strandline("dump-log", "--verify", str(path))
        assert ended.returncode == 0, ended.stderr
        assert "DAMAGED" not in ended.stdout
        assert ended.stdout


def test_dump_log_says_where_a_file_is_damaged(stopped: Stopped, tmp_path: Path) -> None:
    entry = stopped.archive.segments("apples")[0]
    content = bytearray(stopped.archive.store.get(entry.log_key))
    content[len(content) // 2] ^= 1
    broken = tmp_path / Path(entry.log_key).name
    broken.write_bytes(content)
    ended = strandline("dump-log", "--verify", str(broken))
    assert "DAMAGED" in ended.stdout
    assert ended.returncode == 3
    assert strandline("dump-log", str(tmp_path / "nothing.log")).returncode == 2


def copied(stopped: Stopped, archive: Archive) -> Archive:
    for info in stopped.archive.store.list(""):
        archive.store.put(info.key, stopped.archive.store.get(info.key))
    return archive


@pytest.mark.parametrize("depth", [[], ["--quick"], ["--deep"]])
def test_archive_verify_calls_a_whole_archive_whole(stopped: Stopped, depth: list[str]) -> None:
    ended = strandline("archive", "verify", *options_for(stopped.bucket), *depth)
    assert ended.returncode == 0, ended
    assert ended.stdout.strip().endswith(": whole")


def test_archive_verify_names_what_is_damaged_repairs_what_it_can_and_goes_on_where_it_was(
    stopped: Stopped, archive: Archive, tmp_path: Path
) -> None:
    copy = copied(stopped, archive)
    apples, pears = copy.segments("apples"), copy.segments("pears")
    copy.store.delete([apples[0].meta_key, pears[0].log_key])
    state = tmp_path / "state.json"
    command = ("archive", "verify", *options_for(copy.bucket), "--state", str(state))
    ended = strandline(*command)
    assert ended.returncode == 3, ended
    assert all(key in ended.stdout for key in (apples[0].meta_key, pears[0].log_key))
    assert ended.stdout.strip().endswith("2 findings")
    ended = strandline(*command, "--repair")
    assert ended.returncode == 3, ended
    assert f"repaired: {apples[0].meta_key}" in ended.stdout
    assert strandline(*command).returncode == 3
    copy.store.put(pears[0].log_key, stopped.archive.store.get(pears[0].log_key))
    ended = strandline(*command)
    # What was whole is not looked at again.
    assert "1 partition done before" in ended.stdout
    assert (ended.returncode, state.exists()) == (0, False), ended


def test_archive_orphans_deletes_what_no_manifest_names_and_nothing_else(
    stopped: Stopped, archive: Archive
) -> None:
    copy = copied(stopped, archive)
    entry = copy.segments("apples")[0]
    orphan = entry.log_key.rpartition("-")[0] + "-" + "0" * 32 + ".log"
    strange = "topics/nobody/x"
    copy.store.put(orphan, b"left behind")
    copy.store.put(strange, b"somebody's")
    options = (*options_for(copy.bucket), "--grace-hours", "-1")
    ended = strandline("archive", "orphans", *options)
    assert ended.returncode == 0, ended
    assert orphan in ended.stdout
    assert strange in ended.stdout
    ended = strandline("archive", "orphans", *options, "--delete")
    assert ended.returncode == 2, ended
    assert "add --yes" in ended.stderr
    assert {found.key for found in copy.orphans()} == {orphan, strange}
    ended = strandline("archive", "orphans", *options, "--delete", "--yes")
    assert ended.returncode == 0, ended
    assert {orphan.key for orphan in copy.orphans()} == {strange}


def test_archive_lifecycle_adds_its_rule_to_those_that_are_there(archive: Archive) -> None:
    ended = strandline("archive", "lifecycle", *options_for(archive.bucket))
    assert ended.returncode == 0, ended
    assert "AbortIncompleteMultipartUpload" in ended.stdout
    client = boto3.session.Session().client(
        "s3", endpoint_url=archive.bucket.endpoint_url, region_name=REGION
    )
    mine = {
        "ID": "mine",
        "Status": "Enabled",
        "Filter": {"Prefix": "logs/"},
        "Expiration": {"Days": 3},
    }
    client.put_bucket_lifecycle_configuration(
        Bucket=archive.bucket.name,
        LifecycleConfiguration={"Rules": [mine]},  # type: ignore[list-item]  # a rule as S3 has it
    )
    for _ in range(2):
        ended = strandline("archive", "lifecycle", *options_for(archive.bucket), "--apply")
        assert ended.returncode == 0, ended
    rules = client.get_bucket_lifecycle_configuration(Bucket=archive.bucket.name)["Rules"]
    assert [rule["ID"] for rule in rules] == ["mine", "strandline-abort-unfinished-uploads"]
    assert rules[1]["Filter"] == {"Prefix": "archive/"}
    client.close()


@pytest.mark.parametrize(
    ("method", "status", "code", "told"),
    [
        ("GET", 403, "AccessDenied", "s3:GetLifecycleConfiguration"),
        ("PUT", 403, "AccessDenied", "s3:PutLifecycleConfiguration"),
        ("GET", 501, "NotImplemented", "nothing was changed"),
        ("PUT", 400, "MalformedXML", "nothing was changed"),
    ],
)
def test_archive_lifecycle_says_in_one_line_what_is_not_possible(
    archive: Archive, fault_proxy: FaultProxy, method: str, status: int, code: str, told: str
) -> None:
    refusal = Rule(action=Action.STATUS, method=method, path="lifecycle", times=-1)
    refusal.status, refusal.code = status, code
    fault_proxy.add(refusal)
    bucket = S3Bucket(name=archive.bucket.name, endpoint_url=fault_proxy.endpoint_url)
    ended = strandline("archive", "lifecycle", *options_for(bucket), "--apply")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.count("\n") == 1
    assert told in ended.stderr
    assert bucket.name in ended.stderr
