"""Answers that no S3 gives: each is an error of the tier, in bounded time and memory."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from strandline.storage.clock import SystemClock
from strandline.storage.errors import ObjectCorrupt, TierError, TierUnavailable
from strandline.storage.remote.object_store.interface import AGE_UNKNOWN, Deadlines, ObjectStore
from strandline.storage.remote.s3 import sdk_responses
from strandline.storage.remote.s3.access import OBJECT_BYTES_MAX
from strandline.storage.remote.s3.store import S3Store

pytestmark = pytest.mark.slow

HASTY = Deadlines(connect_s=5.0, read_s=5.0, request_s=30.0, upload_s=30.0, attempts_max=1)
DATE = "Sat, 01 Jan 2028 00:00:00 GMT"
WHOLE = {"ETag": '"a"', "Last-Modified": DATE}


class Liar(BaseHTTPRequestHandler):
    """Gives every request the same answer."""

    protocol_version = "HTTP/1.1"
    headers_sent: dict[str, str] = {}  # noqa: RUF012  # set by each test
    headers_of_put: dict[str, str] = {}  # noqa: RUF012  # the same
    body = b""

    def log_message(self, *_: object) -> None:
        """Says nothing."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        for name, text in self.headers_of_put.items():
            self.send_header(name, text)
        self.send_header("Content-Length", "0")
        self.end_headers()
        # What a HEAD says from now on.
        told = {name: text for name, text in self.headers.items() if name.startswith("x-amz-meta")}
        Liar.headers_sent = {**WHOLE, **told, "Content-Length": self.headers["Content-Length"]}

    def do_GET(self) -> None:
        self.send_response(200)
        for name, text in {"Content-Length": str(len(self.body)), **self.headers_sent}.items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(self.body)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Liar)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    store = S3Store(
        bucket="bucket",
        prefix="archive",
        endpoint_url=f"http://127.0.0.1:{server.server_port}",
        region="us-east-1",
        deadlines=HASTY,
        clock=SystemClock(),
    )
    yield store
    store.close()
    server.shutdown()
    server.server_close()


def answer(body: bytes = b"", **headers: str) -> None:
    Liar.body = body
    Liar.headers_sent = {name.replace("_", "-"): text for name, text in headers.items()}


def listing(*keys: str, more: str = "", modified: str = "2028-01-01T00:00:00.000Z") -> bytes:
    contents = "".join(
        f"<Contents><Key>{key}</Key><LastModified>{modified}</LastModified>"
        f"<ETag>x</ETag><Size>1</Size></Contents>"
        f"<CommonPrefixes><Prefix>{key}/</Prefix></CommonPrefixes>"
        for key in keys
    )
    return (
        f"<ListBucketResult><IsTruncated>{'true' if more else 'false'}</IsTruncated>"
        f"<NextContinuationToken>{more}</NextContinuationToken>{contents}</ListBucketResult>"
    ).encode()


def listing_without(field: str) -> bytes:
    return re.sub(f"<{field}>.*?</{field}>", "", listing("archive/topics/a").decode()).encode()


def test_a_listing_without_etags_or_times_is_a_listing(store: ObjectStore) -> None:
    answer(listing_without("ETag"))
    (found,) = store.list("topics/")
    assert (found.key, found.size_bytes, found.etag) == ("topics/a", 1, "")
    assert found.modified_ms > 0
    answer(listing_without("LastModified"))
    (found,) = store.list("topics/")
    assert found.modified_ms == AGE_UNKNOWN


@pytest.mark.parametrize("field", ["Key", "Size"])
def test_a_listing_that_leaves_out_what_it_is_about_is_no_listing(
    store: ObjectStore, field: str
) -> None:
    answer(listing_without(field))
    with pytest.raises(TierUnavailable, match=f"no listing of an S3: without {field}"):
        list(store.list("topics/"))
    assert isinstance(store, S3Store)
    with pytest.raises(TierUnavailable, match=f"no listing of an S3: without {field}"):
        list(store.usage.objects())


@pytest.mark.parametrize("told", [{}, {"ETag": '"of the answer"'}])
def test_the_etag_that_an_answer_to_a_put_leaves_out_is_asked_for(
    store: ObjectStore, told: dict[str, str]
) -> None:
    Liar.headers_of_put = told
    assert store.put("topics/a", b"hello").etag == told.get("ETag", WHOLE["ETag"])


LISTS: list[Callable[[ObjectStore], Iterator[object]]] = [
    lambda store: store.list("topics/"),
    lambda store: store.list_folders("topics/"),
]


@pytest.mark.parametrize("ask", LISTS)
def test_a_listing_that_goes_on_where_it_began_is_no_listing(
    store: ObjectStore, ask: Callable[[ObjectStore], Iterator[object]]
) -> None:
    answer(listing("archive/topics/a", more="again"))
    with pytest.raises(TierUnavailable, match="where it began"):
        list(ask(store))


@pytest.mark.parametrize("ask", LISTS)
@pytest.mark.parametrize("key", ["another/topics/a", "archive/groups/0.log", "a"])
def test_a_name_of_somebody_else_does_not_become_one_of_ours(
    store: ObjectStore, ask: Callable[[ObjectStore], Iterator[object]], key: str
) -> None:
    answer(listing("archive/topics/a", key))
    with pytest.raises(TierUnavailable, match="is listed"):
        list(ask(store))


def test_a_time_that_is_none_is_an_answer_of_no_store(store: ObjectStore) -> None:
    answer(listing("archive/topics/a", modified="bogus"))
    with pytest.raises(TierUnavailable, match="no listing"):
        list(store.list("topics/"))


def test_an_answer_without_end_is_given_up(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sdk_responses, "ANSWER_BYTES_MAX", 100_000)
    answer(b" " * 200_000)
    with pytest.raises(TierUnavailable, match="more than 100000 bytes"):
        list(store.list("topics/"))


def test_an_object_that_claims_more_than_any_has_is_not_made_room_for(store: ObjectStore) -> None:
    answer(**WHOLE, Content_Length=str(OBJECT_BYTES_MAX + 1))
    with pytest.raises(ObjectCorrupt, match="by its header"):
        store.get("topics/a")


@pytest.mark.parametrize("lacking", ["ETag", "Last-Modified"])
def test_an_object_without_what_every_object_has_is_no_object(
    store: ObjectStore, lacking: str
) -> None:
    answer(b"hello", **{name: text for name, text in WHOLE.items() if name != lacking})
    with pytest.raises(TierUnavailable, match="no answer of an S3"):
        store.get("topics/a")


class Empty(Liar):
    """A server without any bucket."""

    def do_GET(self) -> None:
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()


def test_a_bucket_that_is_missing_is_told_with_the_endpoint_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Empty)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint_url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint_url)
    store = S3Store(
        bucket="bucket", prefix="", region="us-east-1", deadlines=HASTY, clock=SystemClock()
    )
    with pytest.raises(TierError, match="does not exist at") as told:
        store.check()
    store.close()
    server.shutdown()
    server.server_close()
    assert endpoint_url in str(told.value)
    assert "AWS" not in str(told.value)
