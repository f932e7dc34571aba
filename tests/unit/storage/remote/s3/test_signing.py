"""Signed URLs that are made without the SDK are the SDK's, to the last byte."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from botocore.auth import S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials, ReadOnlyCredentials

from strandline.storage.clock import ManualClock
from strandline.storage.remote.object_store.direct_read import DirectRead
from strandline.storage.remote.s3.presigned import REUSED_S, VALID_S, PresignedReads
from strandline.storage.remote.s3.signing import UrlSigner

BASES = ("http://127.0.0.1:4566/bucket/", "https://bucket.s3.eu-central-1.amazonaws.com/")
KEY = "a prefix/topics/a+b=c~d_é-1/0/00000000000000000000-1.log"
OTHER_KEY = "a prefix/topics/o&t?h#er/3/00000000000000001000-2.meta"
PLAIN = ReadOnlyCredentials("AKID", "se/cret", None)
TEMPORARY = ReadOnlyCredentials("ASIA", "other", "tok/en+with==signs&more")


def by_the_sdk(base: str, key: str, secrets: ReadOnlyCredentials) -> str:
    request = AWSRequest(method="GET", url=base + quote(key, safe="/~"))
    credentials = Credentials(secrets.access_key, secrets.secret_key, secrets.token)
    S3SigV4QueryAuth(credentials, "s3", "eu-central-1", expires=VALID_S).add_auth(request)
    assert isinstance(request.url, str)
    return request.url


def signed_at_ms(url: str) -> int:
    (date,) = parse_qs(urlsplit(url).query)["X-Amz-Date"]
    signed = datetime.strptime(date, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    return int(signed.timestamp() * 1000)


@pytest.mark.parametrize("secrets", [PLAIN, TEMPORARY], ids=["plain", "temporary"])
@pytest.mark.parametrize("base", BASES)
def test_a_url_is_the_one_that_the_sdk_would_make(base: str, secrets: ReadOnlyCredentials) -> None:
    signer = UrlSigner.like(by_the_sdk(base, KEY, secrets), KEY, secrets)
    assert signer is not None
    # Other credentials than those it was learned with: they are renewed.
    for renewed in (PLAIN, TEMPORARY):
        theirs = by_the_sdk(base, OTHER_KEY, renewed)
        assert signer.url(OTHER_KEY, renewed, signed_at_ms(theirs)) == theirs


def test_what_the_sdk_signs_otherwise_is_left_to_it() -> None:
    url = by_the_sdk(BASES[0], KEY, PLAIN)
    assert UrlSigner.like(url, KEY, PLAIN) is not None
    for changed in (
        url[:-1] + ("0" if url[-1] != "0" else "1"),
        url.replace("X-Amz-Date", "x-amz-date"),
        url + "&x-id=GetObject",
        url.replace("a%20prefix", "a+prefix"),
        "http://127.0.0.1/bucket/key?AWSAccessKeyId=AKID&Signature=s&Expires=1",
    ):
        assert UrlSigner.like(changed, KEY, PLAIN) is None, changed
    assert UrlSigner.like(url, KEY, TEMPORARY) is None
    assert UrlSigner.like(url, OTHER_KEY, PLAIN) is None


class Sdk:
    """What a store has of the SDK: it signs, and knows the credentials of the moment."""

    def __init__(self) -> None:
        self.secrets: ReadOnlyCredentials | None = PLAIN
        self.signed: list[str] = []
        self.is_strange = False
        self.clock = ManualClock(now_ms=signed_at_ms(by_the_sdk(BASES[0], KEY, PLAIN)))
        self.reads = PresignedReads(
            self.sign, lambda: self.secrets, lambda key: f"p/{key}", self.clock
        )

    def sign(self, key: str) -> DirectRead | None:
        self.signed.append(key)
        if self.secrets is None:
            return None
        url = by_the_sdk(BASES[0], f"p/{key}", self.secrets)
        return DirectRead(url=url + "&x-id=GetObject" * self.is_strange, connect_s=7)


def test_the_sdk_signs_the_first_url_of_a_store_and_no_other() -> None:
    sdk = Sdk()
    first = sdk.reads.source("a.log")
    second = sdk.reads.source("b.log")
    assert first is not None
    assert second is not None
    assert second.connect_s == first.connect_s
    assert second.url.startswith(f"{BASES[0]}p/b.log?")
    sdk.clock.advance_ms(int(REUSED_S * 1000))
    assert sdk.reads.source("a.log") is not None
    assert sdk.signed == ["a.log"]


def test_a_url_is_signed_with_the_credentials_of_the_moment() -> None:
    sdk = Sdk()
    sdk.reads.source("a.log")
    sdk.secrets = TEMPORARY
    renewed = sdk.reads.source("b.log")
    assert renewed is not None
    assert "ASIA" in renewed.url
    assert "X-Amz-Security-Token=" in renewed.url
    sdk.secrets = None
    assert sdk.reads.source("c.log") is None
    assert sdk.signed == ["a.log", "c.log"], "without any, the SDK says what to do"


def test_a_store_whose_urls_are_not_understood_has_all_of_them_from_the_sdk() -> None:
    sdk = Sdk()
    sdk.is_strange = True
    for key in ("a.log", "b.log"):
        found = sdk.reads.source(key)
        assert found is not None
        assert found.url.endswith("&x-id=GetObject")
    assert sdk.signed == ["a.log", "b.log"]
