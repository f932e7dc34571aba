"""The same reads from a server that speaks S3, through s3fs."""

from __future__ import annotations

import multiprocessing
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import pytest
from botocore.config import Config
from moto.server import ThreadedMotoServer

from strandline.spark_lake import scan
from strandline.spark_lake.archive.objects import ObjectReader
from strandline.spark_lake.options.options import S3Options
from strandline.spark_lake.spark.source import StrandlineDataSource
from strandline.storage.errors import (
    AccessDenied,
    InvalidConfig,
    ObjectCorrupt,
    ObjectNotFound,
    StrandlineError,
    TierUnavailable,
)
from tests.conftest import S3Bucket
from tests.unit.spark_lake.archive_builder import ArchiveBuilder, make_batches, make_records

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client
from typing import Any

from strandline.spark_lake.archive import objects
from strandline.spark_lake.archive.catalog import Catalog
from strandline.spark_lake.options.selection_options import Subscribe
from strandline.storage.errors import ObjectArchived

pytestmark = pytest.mark.slow
CREDENTIALS = {"s3.access.key": "test", "s3.secret": "test"}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def options(endpoint: str, tmp_path: Path) -> dict[str, str]:
    """A bucket with an archive of 3 segments of topic `t` under the prefix `lake`."""
    archive = ArchiveBuilder(tmp_path)
    archive.add_topic("t")
    for start in (0, 300, 600):
        records = make_records(300, base_offset=start, value_bytes=9000)
        archive.add_segment("t", make_batches(records))
    bucket = f"b-{uuid.uuid4().hex}"
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )
    client.create_bucket(Bucket=bucket)
    for path in sorted(tmp_path.rglob("*")):
        if path.is_file():
            key = f"lake/{path.relative_to(tmp_path)}"
            client.put_object(Bucket=bucket, Key=key, Body=path.read_bytes())
    return {
        "path": f"s3://{bucket}/lake",
        "subscribe": "t",
        "s3.endpoint.url": endpoint,
        **CREDENTIALS,
    }


def offsets(options: dict[str, str]) -> list[int]:
    source = StrandlineDataSource(options)
    reader = source.reader(source.schema())
    return [
        offset
        for one in reader.partitions()
        for batch in reader.read(one)
        for offset in batch.column("offset").to_pylist()
    ]


def test_an_archive_in_a_bucket_is_read_completely(options: dict[str, str]) -> None:
    assert offsets(options) == list(range(900))


# Python 3.12 warns of forks beside threads, which is what this is about.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_reader_goes_through_a_fork_unless_it_was_begun(options: dict[str, str]) -> None:
    """As workers of a notebook have it, which are forked: neither hangs, nor shares connections."""
    given = {name: text for name, text in options.items() if name != "path"}
    made, begun = (scan(options["path"], options=given | {"splitBytes": 1 << 20}) for _ in "12")
    first = begun.read_next_batch().num_rows
    fork = multiprocessing.get_context("fork")
    told, tells = fork.Pipe(duplex=False)

    def read() -> None:
        tells.send(made.read_all().num_rows)
        try:
            begun.read_all()
        except InvalidConfig as error:
            tells.send(str(error))

    forked = fork.Process(target=read, daemon=True)
    forked.start()
    assert told.poll(60)
    assert told.recv() == 900
    assert told.poll(60)
    assert "begun in another process, before a fork: make one with scan" in told.recv()
    forked.join()
    assert (made.read_all().num_rows, first + begun.read_all().num_rows) == (900, 900)


def test_bounds_are_found_in_a_bucket(options: dict[str, str]) -> None:
    bounds = {
        "startingTimestamp": str(1_700_000_000_000 + 450_000),
        "endingOffsets": '{"t":{"0":700}}',
    }
    assert offsets({**options, **bounds}) == list(range(450, 700))


def refused(options: dict[str, str], kind: type[StrandlineError]) -> str:
    with pytest.raises(kind) as caught:
        offsets(options)
    return str(caught.value)


def test_a_prefix_without_an_archive_says_so(options: dict[str, str]) -> None:
    assert "no strandline archive at" in refused(
        {**options, "path": options["path"] + "/other"}, ObjectNotFound
    )


def test_a_bucket_that_does_not_exist_says_so(options: dict[str, str]) -> None:
    assert "s3://missing-bucket" in refused(
        {**options, "path": "s3://missing-bucket/lake"}, ObjectNotFound
    )


def without_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))


def test_missing_credentials_are_access_denied(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    without_credentials(monkeypatch, tmp_path)
    without = {name: text for name, text in options.items() if name not in CREDENTIALS}
    assert "s3.access.key and s3.secret" in refused(without, AccessDenied)


def test_a_server_that_is_away_is_unavailable_in_bounded_time(options: dict[str, str]) -> None:
    away = {**options, "s3.endpoint.url": "http://127.0.0.1:9"}
    message = refused(away, TierUnavailable)
    assert "cluster.json" in message


def test_addresses_read_their_objects_without_credentials(options: dict[str, str]) -> None:
    s3 = S3Options(endpoint_url=options["s3.endpoint.url"], key="test", secret="test")
    reader = ObjectReader(options["path"], s3)
    topic = reader.list_folders("topics/")[0]
    names = ["cluster.json", f"topics/{topic}/topic.json", f"topics/{topic}/0/manifest.json"]
    made = reader.addresses([*names, names[0]], 600)
    assert list(made) == names
    for key, url in made.items():
        assert url.startswith(options["s3.endpoint.url"])
        assert "X-Amz-Expires=600" in url
        with urllib.request.urlopen(url) as answer:
            assert answer.read() == reader.get(key)
    assert reader.addresses([], 600) == {}


def test_addresses_are_what_the_sdk_signs_to_the_last_byte(options: dict[str, str]) -> None:
    """With odd names too, and credentials that end; the time alone may be another second."""
    endpoint, bucket = options["s3.endpoint.url"], options["path"].split("/")[2]
    keys = ["cluster.json", *(f"topics/a+b=c~d_é-{n}/0 &?#.log" for n in range(20))]
    for key, token in (("test", None), ("ASIA", "tok/en+with==signs&more")):
        s3 = S3Options(endpoint_url=endpoint, key=key, secret="se/cret", token=token)
        reader = ObjectReader(options["path"], s3)
        client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name="us-east-1",
            aws_access_key_id=key,
            aws_secret_access_key="se/cret",
            aws_session_token=token,
            config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
        )

        def theirs(key: str, client: S3Client = client) -> str:
            wanted = {"Bucket": bucket, "Key": f"lake/{key}"}
            return client.generate_presigned_url("get_object", Params=wanted, ExpiresIn=600)

        # A second may end in between.
        assert any(
            reader.addresses(keys, 600) == {key: theirs(key) for key in keys} for _ in range(10)
        )


def test_addresses_of_an_anonymous_reader_are_not_signed(options: dict[str, str]) -> None:
    s3 = S3Options(endpoint_url=options["s3.endpoint.url"], anonymous=True)
    made = ObjectReader(options["path"], s3).addresses(["a", "b"], 600)
    base = options["path"].replace("s3:/", options["s3.endpoint.url"])
    assert made == {"a": f"{base}/a", "b": f"{base}/b"}


def test_addresses_need_credentials_to_be_signed(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    without_credentials(monkeypatch, tmp_path)
    reader = ObjectReader(options["path"], S3Options(endpoint_url=options["s3.endpoint.url"]))
    with pytest.raises(AccessDenied, match=r"s3\.access\.key and s3\.secret") as caught:
        reader.addresses(["cluster.json"], 600)
    assert f"sign {options['path']}/cluster.json" in str(caught.value)


def test_a_range_beyond_the_object_is_corrupt(options: dict[str, str]) -> None:
    s3 = S3Options(endpoint_url=options["s3.endpoint.url"], key="test", secret="test")
    reader = ObjectReader(options["path"], s3)
    size_bytes = len(reader.get("cluster.json"))
    assert len(reader.get("cluster.json", start=1, end=size_bytes)) == size_bytes - 1
    for start in (size_bytes - 1, size_bytes + 5):
        with pytest.raises(ObjectCorrupt, match="shorter"):
            reader.get("cluster.json", start=start, end=size_bytes + 10)
    statistics = reader.statistics()
    assert statistics.request_count >= 3
    assert statistics.bytes_read >= 2 * size_bytes - 1


@pytest.mark.s3
@pytest.mark.parametrize("region", [None, "eu-central-1", "ap-south-1"])
def test_addresses_are_signed_for_the_region_of_the_bucket(
    s3_bucket: S3Bucket, region: str | None
) -> None:
    """Whatever region is given: a signature for another is refused, and nobody follows it."""
    client = boto3.client("s3", endpoint_url=s3_bucket.endpoint_url, region_name="eu-central-1")
    bucket = f"{s3_bucket.name}-eu"
    client.create_bucket(
        Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"}
    )
    client.put_object(Bucket=bucket, Key="lake/a", Body=b"all of it")
    s3 = S3Options(endpoint_url=s3_bucket.endpoint_url, region=region)
    reader = ObjectReader(f"s3://{bucket}/lake", s3)
    assert reader.get("a") == b"all of it"
    for address in reader.addresses(["a"], 60).values():
        with urllib.request.urlopen(address) as answer:
            assert answer.read() == b"all of it"


# --- the store -------------------------------------------------------------------------------


class S3Failure(Exception):
    """As botocore raises it: the code lies in the response."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.response = {"Error": {"Code": code}}


class NoCredentialsError(Exception):
    """Named as botocore's."""


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("raised", "kind", "says"),
    [
        (FileNotFoundError("key"), ObjectNotFound, "does not exist"),
        (PermissionError("Forbidden"), AccessDenied, "s3.access.key and s3.secret"),
        (NoCredentialsError("none"), AccessDenied, "s3.access.key and s3.secret"),
        (caused(PermissionError("x"), S3Failure("InvalidObjectState")), ObjectArchived, "restored"),
        (caused(OSError("x"), S3Failure("InvalidRange")), ObjectCorrupt, "shorter"),
        (OSError("connection refused"), TierUnavailable, "connection refused"),
        (TimeoutError("slow"), TierUnavailable, "TimeoutError: slow"),
    ],
)
def test_the_four_kinds_of_store_errors_stay_apart(
    raised: Exception, kind: type[StrandlineError], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
            raise raised

        def ls(self, path: str, detail: bool = True, **options: Any) -> list[str]:
            raise raised

    monkeypatch.setattr(objects, "_open_file_system", lambda url, s3: Broken())
    reader = ObjectReader("s3://bucket/prefix", S3Options())
    with pytest.raises(kind, match=r"s3://bucket/prefix/cluster\.json") as caught:
        reader.get("cluster.json")
    assert says in str(caught.value)
    if kind is TierUnavailable:
        with pytest.raises(TierUnavailable):
            Catalog(reader).load_partitions(Subscribe(("t",)))
