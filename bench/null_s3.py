"""A null S3: as much of the protocol as the broker uses, in memory, as cheap as Python can.

It exists so that a benchmark measures the broker and not an emulator. No authentication, no
checksum verification, nothing on disk. Run it as `python bench/null_s3.py --help` says; it prints a
line when it listens, and stops with its standard input.

By itself it answers at once, which no S3 does. `--first-byte-ms` and `--connection-mb-per-s` make
its GETs as slow as those of a real one: what is measured then is how a reader hides latency.

    PUT     If-None-Match: *, If-Match, Expect: 100-continue, aws-chunked bodies, multipart parts
    GET     Range: bytes=a-b, a-, -n; ListObjectsV2 with prefix, delimiter, paging
    HEAD, DELETE, POST ?uploads, ?uploadId=, ?delete
    GET /_counts     JSON: how many requests of each method came for .log, .meta and other objects
    GET /_step_aside it goes to the idle scheduling class, for good: as on a machine of its own
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import re
import sys
import urllib.parse
from bisect import bisect_right
from collections import Counter, deque
from xml.sax.saxutils import escape

BODY_BYTES_MAX = 1 << 30
LIST_PAGE = 1000
PACED_SLICE_BYTES = 256 * 1024
# asyncio copies what a socket does not take at once, and of 64 MiB that would be nearly all.
WRITE_BYTES = 1024 * 1024


class Store:
    """Objects and unfinished uploads of all buckets, and how slowly they are given out."""

    def __init__(self, *, first_byte_s: float = 0, connection_bytes_per_s: float = 0) -> None:
        self.first_byte_s = first_byte_s
        self.connection_bytes_per_s = connection_bytes_per_s
        # body, etag, and the headers that S3 keeps with an object and gives back.
        self.objects: dict[str, tuple[bytes, str, dict[str, str]]] = {}
        self.uploads: dict[str, tuple[dict[str, str], dict[int, bytes]]] = {}
        # "GET .log" -> requests
        self.counts: Counter[str] = Counter()
        self._number = 0

    def count(self, method: str, path: str) -> None:
        ending = path[path.rfind(".") :] if path.endswith((".log", ".meta")) else "other"
        self.counts[f"{method} {ending}"] += 1

    def put(self, path: str, body: bytes, kept: dict[str, str]) -> str:
        self._number += 1
        etag = f'"{hashlib.md5(f"{path}{self._number}".encode()).hexdigest()}"'
        self.objects[path] = (body, etag, kept)
        return etag

    def new_upload(self, headers: dict[str, str]) -> str:
        self._number += 1
        upload_id = f"upload-{self._number}"
        self.uploads[upload_id] = (kept_headers(headers), {})
        return upload_id


class Peer(asyncio.Protocol):
    """One connection: a buffer, then requests in order."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._received = bytearray()
        self._head: tuple[str, str, dict[str, str]] | None = None
        self._transport: asyncio.Transport | None = None
        self._unsent: deque[memoryview] = deque()
        self._is_full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=0)
        self._transport = transport

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._send()

    def data_received(self, data: bytes) -> None:
        self._received += data
        while self._step():
            pass

    def _step(self) -> bool:
        if self._head is None:
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                return False
            lines = bytes(self._received[:end]).decode("latin1").split("\r\n")
            del self._received[: end + 4]
            method, target, _ = lines[0].split(" ", 2)
            headers = {
                name.strip().lower(): value.strip()
                for name, _, value in (line.partition(":") for line in lines[1:])
            }
            self._head = (method, target, headers)
            if headers.get("expect", "").lower() == "100-continue":
                self._write(b"HTTP/1.1 100 Continue\r\n\r\n")
        method, target, headers = self._head
        length = int(headers.get("content-length", "0"))
        if length > BODY_BYTES_MAX:
            raise ConnectionError("body too large")
        if len(self._received) < length:
            return False
        body = bytes(memoryview(self._received)[:length])
        del self._received[:length]
        self._head = None
        if "aws-chunked" in headers.get("content-encoding", ""):
            body = _unchunk(body)
        self._answer(method, target, headers, body)
        return bool(self._received)

    def _write(self, data: bytes | memoryview) -> None:
        self._unsent.append(memoryview(data))
        self._send()

    def _send(self) -> None:
        assert self._transport is not None
        while self._unsent and not self._is_full:
            data = self._unsent.popleft()
            if len(data) > WRITE_BYTES:
                self._unsent.appendleft(data[WRITE_BYTES:])
            self._transport.write(data[:WRITE_BYTES])

    def _reply(
        self,
        status: str,
        body: bytes | memoryview = b"",
        *,
        head_only: bool = False,
        **headers: str,
    ) -> None:
        lines = [f"HTTP/1.1 {status}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        if "Content_Length" not in headers:
            lines.append(f"Content-Length: {len(body)}")
        self._write(("\r\n".join(lines) + "\r\n\r\n").encode("latin1"))
        if len(body) and not head_only:
            self._write(body)

    def _reply_slowly(self, status: str, body: memoryview, **headers: str) -> None:
        """Like a far store: the head after a while, the body at the speed of one connection."""
        loop = asyncio.get_running_loop()
        loop.call_later(
            self._store.first_byte_s, lambda: self._reply(status, body, head_only=True, **headers)
        )
        pace = self._store.connection_bytes_per_s
        for start in range(0, len(body), PACED_SLICE_BYTES):
            sent = min(start + PACED_SLICE_BYTES, len(body))
            wait_s = self._store.first_byte_s + (sent / pace if pace else 0)
            loop.call_later(wait_s, self._write_if_open, body[start:sent])

    def _write_if_open(self, data: memoryview) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._write(data)

    def _error(self, status: str, code: str, *, head_only: bool = False) -> None:
        body = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{code}</Message></Error>'
        self._reply(
            status,
            b"" if head_only else body.encode(),
            head_only=head_only,
            Content_Type="application/xml",
        )

    def _answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> None:
        path, _, query_text = target.partition("?")
        path = urllib.parse.unquote(path)
        query = dict(urllib.parse.parse_qsl(query_text, keep_blank_values=True))
        if path == "/_counts":
            self._reply("200 OK", json.dumps(self._store.counts).encode())
            return
        if path == "/_step_aside":
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            self._reply("200 OK")
            return
        self._store.count(method, path)
        match method:
            case "PUT":
                self._put(path, query, headers, body)
            case "GET" if "uploads" in query:
                xml = b"<ListMultipartUploadsResult></ListMultipartUploadsResult>"
                self._reply("200 OK", xml, Content_Type="application/xml")
            case "GET" if path.count("/") == 1 or (path.endswith("/") and path.count("/") == 2):
                self._list(path.strip("/"), query)
            case "GET" | "HEAD":
                self._get(path, headers, head_only=method == "HEAD")
            case "DELETE":
                if "uploadId" in query:
                    self._store.uploads.pop(query["uploadId"], None)
                else:
                    self._store.objects.pop(path, None)
                self._reply("204 No Content")
            case "POST":
                self._post(path, query, headers, body)
            case _:
                self._error("405 Method Not Allowed", "MethodNotAllowed")

    def _put(self, path: str, query: dict[str, str], headers: dict[str, str], body: bytes) -> None:
        if "uploadId" in query:
            upload = self._store.uploads.get(query["uploadId"])
            if upload is None:
                self._error("404 Not Found", "NoSuchUpload")
                return
            upload[1][int(query["partNumber"])] = body
            self._reply("200 OK", ETag=f'"part-{query["partNumber"]}"')
            return
        existing = self._store.objects.get(path)
        if headers.get("if-none-match") == "*" and existing is not None:
            self._error("412 Precondition Failed", "PreconditionFailed")
            return
        if "if-match" in headers and (existing is None or existing[1] != headers["if-match"]):
            self._error("412 Precondition Failed", "PreconditionFailed")
            return
        self._reply("200 OK", ETag=self._store.put(path, body, kept_headers(headers)))

    def _get(self, path: str, headers: dict[str, str], *, head_only: bool) -> None:
        found = self._store.objects.get(path)
        if found is None:
            is_bucket = path.count("/") == 1
            if is_bucket:
                self._reply("200 OK")
                return
            self._error("404 Not Found", "NoSuchKey", head_only=head_only)
            return
        content, etag, kept = found
        start, end, status = 0, len(content), "200 OK"
        extra = {"ETag": etag, "Last_Modified": "Thu, 01 Jan 2026 00:00:00 GMT", **kept}
        ranged = re.match(r"bytes=(\d*)-(\d*)$", headers.get("range", ""))
        if ranged:
            first, last = ranged.groups()
            if first:
                start = int(first)
                end = min(len(content), int(last) + 1) if last else len(content)
            else:
                start = max(0, len(content) - int(last))
            if start >= len(content):
                self._error("416 Range Not Satisfiable", "InvalidRange")
                return
            status = "206 Partial Content"
            extra["Content_Range"] = f"bytes {start}-{end - 1}/{len(content)}"
        extra["Content_Length"] = str(end - start)
        body = memoryview(content)[start:end]
        is_slow = self._store.first_byte_s or self._store.connection_bytes_per_s
        if is_slow and not head_only:
            self._reply_slowly(status, body, **extra)
        else:
            self._reply(status, body, head_only=head_only, **extra)

    def _list(self, bucket: str, query: dict[str, str]) -> None:
        root = f"/{bucket}/"
        prefix = root + query.get("prefix", "")
        delimiter = query.get("delimiter", "")
        keys = sorted(key for key in self._store.objects if key.startswith(prefix))
        after = query.get("continuation-token") or query.get("start-after") or ""
        keys = keys[bisect_right(keys, root + after) :] if after else keys
        if delimiter and after.endswith(delimiter):
            # The page before ended with this folder, which has more than one object.
            keys = [key for key in keys if not key.startswith(root + after)]
        folders: dict[str, None] = {}
        contents: list[str] = []
        last = ""
        truncated = False
        for key in keys:
            if len(contents) + len(folders) >= LIST_PAGE:
                truncated = True
                break
            last = key[len(root) :]
            rest = key[len(prefix) :]
            if delimiter and delimiter in rest:
                last = prefix[len(root) :] + rest.partition(delimiter)[0] + delimiter
                folders[last] = None
                continue
            body, etag, _ = self._store.objects[key]
            contents.append(
                f"<Contents><Key>{escape(last)}</Key><Size>{len(body)}</Size>"
                f"<ETag>{escape(etag)}</ETag>"
                "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            )
        token = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>"
        xml = (
            '<?xml version="1.0"?><ListBucketResult>'
            f"<Name>{bucket}</Name><KeyCount>{len(contents) + len(folders)}</KeyCount>"
            f"<IsTruncated>{str(truncated).lower()}</IsTruncated>{token if truncated else ''}"
            + "".join(contents)
            + "".join(
                f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>"
                for folder in folders
            )
            + "</ListBucketResult>"
        )
        self._reply("200 OK", xml.encode(), Content_Type="application/xml")

    def _post(self, path: str, query: dict[str, str], headers: dict[str, str], body: bytes) -> None:
        if "uploads" in query:
            upload_id = self._store.new_upload(headers)
            xml = (
                "<InitiateMultipartUploadResult>"
                f"<UploadId>{upload_id}</UploadId></InitiateMultipartUploadResult>"
            )
        elif "uploadId" in query:
            upload = self._store.uploads.pop(query["uploadId"], None)
            if upload is None:
                self._error("404 Not Found", "NoSuchUpload")
                return
            if headers.get("if-none-match") == "*" and path in self._store.objects:
                self._error("412 Precondition Failed", "PreconditionFailed")
                return
            etag = self._store.put(
                path, b"".join(part for _, part in sorted(upload[1].items())), upload[0]
            )
            xml = (
                "<CompleteMultipartUploadResult>"
                f"<ETag>{escape(etag)}</ETag></CompleteMultipartUploadResult>"
            )
        else:
            bucket = path.strip("/").partition("/")[0]
            for key in re.findall(r"<Key>([^<]*)</Key>", body.decode()):
                self._store.objects.pop(f"/{bucket}/{key}", None)
            xml = "<DeleteResult/>"
        self._reply("200 OK", xml.encode(), Content_Type="application/xml")


def kept_headers(headers: dict[str, str]) -> dict[str, str]:
    """The headers of a PUT that S3 gives back with the object: its metadata, and the checksum."""
    return {
        name: value
        for name, value in headers.items()
        if name.startswith("x-amz-meta-") or name == "x-amz-checksum-crc32c"
    }


def _unchunk(body: bytes) -> bytes:
    """The payload of an aws-chunked body; trailers are ignored."""
    parts = []
    position = 0
    while position < len(body):
        line_end = body.index(b"\r\n", position)
        length = int(body[position:line_end].split(b";")[0], 16)
        if length == 0:
            break
        parts.append(body[line_end + 2 : line_end + 2 + length])
        position = line_end + 4 + length
    return b"".join(parts)


async def serve(port: int, store: Store) -> None:
    """Listens on loopback until standard input ends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Peer(store), "127.0.0.1", port)
    print(f"null S3 at 127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="an S3 for benchmarks, in memory, on loopback")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--first-byte-ms", type=float, default=0, help="latency of a GET")
    parser.add_argument(
        "--connection-mb-per-s", type=float, default=0, help="speed of one connection; 0: no bound"
    )
    options = parser.parse_args()
    store = Store(
        first_byte_s=options.first_byte_ms / 1000,
        connection_bytes_per_s=options.connection_mb_per_s * 1e6,
    )
    asyncio.run(serve(options.port, store))


if __name__ == "__main__":
    main()
