"""Signed URLs of a bucket's objects, for readers without the SDK."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest

from strandline.storage.clock import ManualClock
from strandline.storage.remote.object_store.interface import Deadlines
from strandline.storage.remote.s3.store import SIGNED_REUSED_S, SIGNED_S, S3Store

ENDPOINT = "http://127.0.0.1:9"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    for name, text in {
        "AWS_ACCESS_KEY_ID": "AKID",
        "AWS_SECRET_ACCESS_KEY": "se/cret",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_SHARED_CREDENTIALS_FILE": "/none",
        "AWS_CONFIG_FILE": "/none",
    }.items():
        monkeypatch.setenv(name, text)
    for name in ("AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    return ManualClock()


def store(clock: ManualClock) -> S3Store:
    return S3Store(
        bucket="b", prefix="p", endpoint_url=ENDPOINT, deadlines=Deadlines(read_s=7), clock=clock
    )


def test_a_url_names_the_object_and_how_long_it_is_good(clock: ManualClock) -> None:
    source = store(clock).direct_read("topics/a+b=c~d_é-1/0/0.log")
    assert source is not None
    assert source.read_s == 7
    url = urlsplit(source.url)
    assert f"{url.scheme}://{url.netloc}" == ENDPOINT
    assert url.path == "/b/p/topics/a%2Bb%3Dc~d_%C3%A9-1/0/0.log"
    assert parse_qs(url.query)["X-Amz-Expires"] == [str(SIGNED_S)]
    # Any range may be read by it.
    assert parse_qs(url.query)["X-Amz-SignedHeaders"] == ["host"]


def test_a_url_is_used_for_its_time_and_then_signed_anew(clock: ManualClock) -> None:
    reads = store(clock)
    first = reads.direct_read("a.log")
    clock.advance_ms(int(SIGNED_REUSED_S * 1000) - 1)
    assert reads.direct_read("a.log") is first
    clock.advance_ms(1)
    assert reads.direct_read("a.log") is not first


def test_without_credentials_only_the_store_can_say_what_is_wrong(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert store(clock).direct_read("a.log") is None
