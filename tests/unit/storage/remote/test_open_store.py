"""A URL names a store, which is opened without a request."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from strandline.storage.errors import (
    InvalidConfig,
)
from strandline.storage.remote.object_store.local_directory import LocalDirectoryStore
from strandline.storage.remote.open_store import open_store
from strandline.storage.remote.s3.store import S3Store

# --- open_store ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "kind", "canonical"),
    [
        ("s3://bucket/a/prefix", S3Store, "s3://bucket/a/prefix"),
        ("s3://bucket/prefix/", S3Store, "s3://bucket/prefix"),
        ("s3://bucket", S3Store, "s3://bucket"),
        ("file:///var/lib/my%20archive", LocalDirectoryStore, "file:///var/lib/my%20archive"),
    ],
)
def test_a_url_opens_its_store_without_contacting_it(url: str, kind: type, canonical: str) -> None:
    store = open_store(url)
    assert isinstance(store, kind)
    assert store.url == canonical


def test_a_folder_with_a_relative_path_has_an_absolute_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log folders may be relative (`log.dirs=./data`), and the first one is such a store."""
    monkeypatch.chdir(tmp_path)
    assert LocalDirectoryStore(Path("data")).url == (tmp_path / "data").as_uri()


@pytest.mark.parametrize(
    "url",
    ["", "bucket", "s3://", "s3:///prefix", "http://host/x", "file://host/x", "file://", "file:///",
     "s3://bucket/x?versionId=1", "file:///a#b", "s3://[x/a", "s3://bü/a", "s3://a b/c", "s3://a@b"],
)  # fmt: skip
def test_a_wrong_url_is_refused_with_its_text(url: str) -> None:
    with pytest.raises(InvalidConfig, match="object store URL"):
        open_store(url)


def test_a_folder_with_a_number_sign_is_told_how_to_write_it() -> None:
    with pytest.raises(InvalidConfig, match=r"write %3F .* and %23"):
        open_store("file:///home/me/c#/archive")
    assert open_store("file:///home/me/c%23/archive").url == "file:///home/me/c%23/archive"


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_an_endpoint_that_is_no_url_is_refused_with_those_who_set_it(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    endpoint_url = "127.0.0.1:9000"
    if how == "environment":
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint_url)
    store = open_store("s3://bucket/x", endpoint_url=endpoint_url if how == "argument" else None)
    with pytest.raises(InvalidConfig, match=r"127\.0\.0\.1:9000.*http://host:port.*AWS_ENDPOINT"):
        store.check()


@pytest.mark.parametrize("how", ["URL", "argument", "environment"])
def test_a_password_in_a_url_is_refused_and_not_repeated(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    secret = "http://user:pass-word@127.0.0.1:9000"
    if how == "environment":
        monkeypatch.setenv("AWS_ENDPOINT_URL", secret)
    url = "s3://user:pass-word@bucket/x" if how == "URL" else "s3://bucket/x"
    with pytest.raises(InvalidConfig, match="a user or a password is refused") as refused:
        open_store(url, endpoint_url=secret if how == "argument" else None).check()
    assert "pass-word" not in str(refused.value)


@pytest.mark.parametrize("endpoint_url", ["http://[::1]:9000", "https://s3.example.org/a@b"])
def test_an_at_sign_elsewhere_is_no_password(endpoint_url: str) -> None:
    assert open_store("s3://bucket/a@b", endpoint_url=endpoint_url).url == "s3://bucket/a@b"


@pytest.mark.slow
def test_neither_importing_nor_opening_loads_the_sdk() -> None:
    """A broker without a remote tier, or one that has not used it yet, must stay small."""
    code = (
        "import sys\n"
        "from strandline.storage.remote.open_store import open_store\n"
        "import strandline.storage.remote.reader.cold_reader\n"
        "open_store('s3://bucket/x')\n"
        "print(sorted({'boto3', 'botocore', 's3transfer'} & set(sys.modules)))\n"
    )
    path = os.pathsep.join(entry for entry in sys.path if entry)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "[]"
