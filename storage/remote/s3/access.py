"""Access to one bucket for reads and writes: requests, listings, key names, response parsing."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, TypeVar, cast

from strandline.storage.clock import Clock
from strandline.storage.errors import (
    ObjectCorrupt,
    ObjectNotFound,
    TierError,
    TierUnavailable,
)
from strandline.storage.model import TimestampMs
from strandline.storage.remote.object_store.interface import AGE_UNKNOWN, Deadlines, ObjectInfo
from strandline.storage.remote.s3.attempts import AgainError, Attempts, DeadlineError
from strandline.storage.remote.s3.lacks import Lacks

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client
    from types_boto3_s3.type_defs import (
        DeleteObjectRequestTypeDef,
        GetObjectOutputTypeDef,
        HeadBucketOutputTypeDef,
        HeadObjectOutputTypeDef,
        ListMultipartUploadsOutputTypeDef,
        ListMultipartUploadsRequestTypeDef,
        ListObjectsV2OutputTypeDef,
        ListObjectsV2RequestTypeDef,
        MultipartUploadTypeDef,
        ObjectTypeDef,
    )
    from urllib3.response import HTTPResponse

T = TypeVar("T")

# Every object is smaller. A reader allocates the Content-Length that a response states.
OBJECT_BYTES_MAX = 4 * 1024 * 1024 * 1024

# The size of one receive; the deadline is checked between two.
RECEIVE_BYTES = 1024 * 1024

# S3 returns and deletes at most this many keys per request.
PAGE_KEYS_MAX = 1000

# User metadata fields that the broker writes with every object.
WRITE_ID_FIELD = "strandline-write-id"
CRC32C_FIELD = "strandline-crc32c"


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Access:
    """One bucket with a key prefix. The first call of `client` creates the SDK's client."""

    bucket: str
    prefix: str
    client: Callable[[], S3Client]
    attempts: Attempts
    deadlines: Deadlines
    clock: Clock
    lacks: Lacks

    def full_key(self, key: str) -> str:
        """Returns the object key in the bucket, prefix included."""
        return self.prefix + key

    def own_key(self, full_key: str) -> str:
        """Returns the key relative to the prefix, as callers of the store use it."""
        return full_key[len(self.prefix) :]

    def listed_key(self, full_key: str, *, below: str) -> str:
        """`own_key` of a listed key. Raises TierUnavailable unless the key begins with `below`.

        A caller may delete the keys it lists: a foreign key must never be mapped to one of ours.
        """
        if not full_key.startswith(self.prefix + below):
            raise TierUnavailable(below, "list", f"{full_key!r} is listed and is not below it")
        return self.own_key(full_key)

    def listed_info(self, found: ObjectTypeDef, *, below: str) -> ObjectInfo:
        """Parses one object of a listing; some servers omit the etag or the modification time.

        Raises TierUnavailable if the entry lacks a key or a size.
        """
        check_listed(found, "Key", "Size", operation="list", prefix=below)
        modified = found.get("LastModified")
        return ObjectInfo(
            key=self.listed_key(found["Key"], below=below),
            size_bytes=found["Size"],
            etag=found.get("ETag", ""),
            modified_ms=AGE_UNKNOWN if modified is None else int(modified.timestamp() * 1000),
        )

    def send(
        self,
        key: str,
        operation: str,
        request: Callable[[S3Client], T],
        *,
        attempts_max: int | None = None,
    ) -> T:
        """Returns the response to a small request, with retries. Raises TierError."""
        return self.attempts.run(
            key, operation, lambda _: request(self.client()), attempts_max=attempts_max
        )

    def head(self, key: str) -> HeadObjectOutputTypeDef:
        return self.send(
            key,
            "head",
            lambda client: client.head_object(
                Bucket=self.bucket, Key=self.full_key(key), ChecksumMode="ENABLED"
            ),
        )

    def delete_one(self, key: str, *, etag: str = "", attempts_max: int | None = None) -> None:
        """Deletes an object, with `etag` only that version; an absent one is ignored."""
        request: DeleteObjectRequestTypeDef = {"Bucket": self.bucket, "Key": self.full_key(key)}
        if etag:
            request["IfMatch"] = etag
        with contextlib.suppress(ObjectNotFound):
            self.send(
                key,
                "delete",
                lambda client: client.delete_object(**request),
                attempts_max=attempts_max,
            )

    def body_blocks(
        self, key: str, response: GetObjectOutputTypeDef, size_bytes: int, deadline_s: float
    ) -> Iterator[bytes]:
        """Yields the `size_bytes` bytes of a body as they arrive, within the deadline.

        The SDK's own `read` and `readinto` return once the whole block has arrived, however slowly;
        `read1` returns after one `recv`, whose time is bounded.
        """
        done = 0
        body = response["Body"]
        try:
            with body as entered:
                # The stubs declare StreamingBody, but entering it returns the wrapped response.
                stream = cast("HTTPResponse", entered)
                while done < size_bytes:
                    if self.clock.monotonic_s() > deadline_s:
                        raise DeadlineError(f"{done} of {size_bytes} bytes came in time")
                    block = stream.read1(min(size_bytes - done, RECEIVE_BYTES))
                    if not block:
                        detail = f"body ended after {done} of {size_bytes} bytes"
                        raise AgainError(TierUnavailable(key, "get", detail))
                    self.attempts.silence.note_progress()
                    yield block
                    done += len(block)
                # The connection is reusable only after the end of the body was read.
                stream.read1(1)
        finally:
            body.close()

    def object_pages(
        self,
        prefix: str,
        *,
        start_after: str = "",
        delimiter: str = "",
        keys_max: int | None = None,
    ) -> Iterator[ListObjectsV2OutputTypeDef]:
        """Yields the pages of a listing of objects; a request for each. Raises TierError."""
        request: ListObjectsV2RequestTypeDef = {
            "Bucket": self.bucket,
            "Prefix": self.full_key(prefix),
            "MaxKeys": min(keys_max or PAGE_KEYS_MAX, PAGE_KEYS_MAX),
        }
        if start_after:
            request["StartAfter"] = self.full_key(start_after)
        if delimiter:
            request["Delimiter"] = delimiter

        def ask(client: S3Client) -> ListObjectsV2OutputTypeDef:
            try:
                return client.list_objects_v2(**request)
            except ValueError as error:
                # The SDK's error for an invalid timestamp.
                detail = f"no listing of an S3: {error}"
                raise AgainError(TierUnavailable(prefix, "list", detail)) from error

        while True:
            page = self.send(prefix, "list", ask)
            yield page
            token = page.get("NextContinuationToken")
            if not page.get("IsTruncated") or not token:
                return
            if token == request.get("ContinuationToken"):
                raise TierUnavailable(prefix, "list", "the listing goes on where it began")
            request["ContinuationToken"] = token

    def unfinished_uploads(self, prefix: str) -> Iterator[MultipartUploadTypeDef]:
        """Incomplete uploads below `prefix`; a request per 1000. Raises TierError."""
        request: ListMultipartUploadsRequestTypeDef = {
            "Bucket": self.bucket,
            "Prefix": self.full_key(prefix),
        }

        def ask(client: S3Client) -> ListMultipartUploadsOutputTypeDef | None:
            try:
                return client.list_multipart_uploads(**request)
            except client.exceptions.NoSuchUpload:
                # S3 returns an empty list; rclone returns this error for a bucket without uploads.
                return None

        while page := self.send(prefix, "list_uploads", ask):
            for found in page.get("Uploads", []):
                check_listed(found, "Key", "UploadId", operation="list_uploads", prefix=prefix)
                yield found
            request["KeyMarker"] = page.get("NextKeyMarker", "")
            request["UploadIdMarker"] = page.get("NextUploadIdMarker", "")
            # Without a marker, the next request would return the same page for ever.
            if not page.get("IsTruncated") or not request["KeyMarker"]:
                return


def check_listed(
    found: Mapping[str, object], *names: str, operation: str, prefix: str = ""
) -> None:
    """Raises TierUnavailable if an entry of a listing lacks one of the fields `names`."""
    missing = [name for name in names if name not in found]
    if missing:
        raise TierUnavailable(
            prefix, operation, f"no listing of an S3: without {missing[0]} in {dict(found)}"
        )


def info_of(key: str, answer: HeadObjectOutputTypeDef | GetObjectOutputTypeDef) -> ObjectInfo:
    """Parses the headers of a HEAD or GET response. Raises TierUnavailable if one is missing."""
    try:
        return ObjectInfo(
            key=key,
            size_bytes=answer["ContentLength"],
            etag=answer["ETag"],
            crc32c=crc_of(answer),
            noted_crc32c=noted_crc_of(answer),
            modified_ms=int(answer["LastModified"].timestamp() * 1000),
        )
    except (KeyError, ValueError) as error:
        # Every S3 server sends these headers, so a proxy may have answered instead.
        raise TierUnavailable(key, "read", f"no answer of an S3: without a good {error}") from error


def info_of_body(key: str, answer: GetObjectOutputTypeDef) -> ObjectInfo:
    """`info_of`, or closes the body; raises ObjectCorrupt if the stated size is over the limit."""
    try:
        info = info_of(key, answer)
        if info.size_bytes > OBJECT_BYTES_MAX:
            raise ObjectCorrupt(key, "get", f"has {info.size_bytes} bytes, by its header")
    except TierError:
        answer["Body"].close()
        raise
    return info


def date_of(answer: HeadBucketOutputTypeDef) -> TimestampMs | None:
    """Returns the server's time of the response, from its Date header; None without a valid one."""
    stated = answer["ResponseMetadata"]["HTTPHeaders"].get("date", "")
    try:
        return int(parsedate_to_datetime(stated).timestamp() * 1000)
    except ValueError:
        return None


def crc_of(answer: HeadObjectOutputTypeDef | GetObjectOutputTypeDef) -> int | None:
    """Returns the CRC-32C of the whole object that the server reports; None if it reports none."""
    encoded = answer.get("ChecksumCRC32C", "")
    # A multipart upload's checksum is one of the parts' checksums, unless its type says otherwise.
    # Some servers omit the type, but the etag of such an object always ends in the part count.
    stated_type: str = answer.get("ChecksumType", "")
    is_whole = stated_type == "FULL_OBJECT" or (not stated_type and "-" not in answer["ETag"])
    if encoded and is_whole and "-" not in encoded:
        return int.from_bytes(base64.b64decode(encoded), "big")
    return None


def noted_crc_of(answer: HeadObjectOutputTypeDef | GetObjectOutputTypeDef) -> int | None:
    """Returns the CRC-32C that the writer stored in the object's metadata."""
    recorded = answer["Metadata"].get(CRC32C_FIELD)
    try:
        return None if recorded is None else int(recorded, 16)
    except ValueError:
        return None
