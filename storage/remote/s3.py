"""S3 and everything that speaks its protocol; the only module that knows boto3.

The SDK's own retries are off. It cannot know that a 412 on the second attempt of a conditional PUT
is our own first attempt whose answer was lost, it does not repeat a GET whose body broke off, and
it has no deadline over its attempts. So each request is tried here:

    attempt ──ok──► done
       │ 404, 403, archived ───────────────────► that error
       │ 412 ──► HEAD: our write id? ──yes─────► done (the answer was lost)
       │                             └─no──────► PreconditionFailed
       │ timeout, reset, 5xx, 409, broken body ► pause, next attempt; out of attempts or time:
       ▼                                         a PUT asks HEAD once more, else TierUnavailable

Every `put` carries a write id of its own in the object's metadata. A HEAD that shows it is proof
that the object is ours, which length and checksum alone are not: two brokers may well write the
same bytes. The metadata hold the CRC-32C too, for servers that do not report one.

Checksums: CRC-32C goes with every PUT and every part, computed here (the SDK would want awscrt),
and the server refuses what arrives damaged. Whole objects are checked when they are read. Ranges
carry no checksum in S3: the readers of ranges check batch CRCs or section checksums.

The client is made with the first request: loading the SDK costs half a second and 40 MB.
"""

from __future__ import annotations

import base64
import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from typing import IO, TYPE_CHECKING, cast

from strandline.storage.clock import Clock
from strandline.storage.errors import (
    AccessDenied,
    ObjectCorrupt,
    ObjectNotFound,
    PreconditionFailed,
    TierError,
    TierUnavailable,
)
from strandline.storage.remote.attempts import AgainError, Attempts, DeadlineError, Failure
from strandline.storage.remote.object_store import (
    BucketMissing,
    Deadlines,
    FileBody,
    IfAbsent,
    IfMatches,
    ObjectInfo,
    PutBody,
    PutCondition,
    StoredObject,
    check_key,
    checksum,
    new_write_id,
)
from strandline.storage.remote.s3_failures import failure_of_code
from strandline.storage.remote.upload_body import BodyPart, BodyReader, measure_body

if TYPE_CHECKING:
    from botocore.exceptions import ClientError
    from types_boto3_s3 import S3Client
    from types_boto3_s3.type_defs import (
        CompletedPartTypeDef,
        CompleteMultipartUploadRequestTypeDef,
        GetObjectOutputTypeDef,
        GetObjectRequestTypeDef,
        HeadObjectOutputTypeDef,
        ListObjectsV2OutputTypeDef,
        ListObjectsV2RequestTypeDef,
        PutObjectRequestTypeDef,
    )
    from urllib3.response import HTTPResponse

DEFAULT_REGION = "us-east-1"

# One PUT is one request and atomic; above this size the parallelism of parts is worth theirs.
SINGLE_PUT_BYTES_MAX = 64 * 1024 * 1024
# 10,000 parts of this size are 160 GiB, far above any segment.
PART_BYTES = 16 * 1024 * 1024
PARTS_PARALLEL = 4
# A smaller body fits the socket's buffer, so sending it cannot block for long.
SMALL_BODY_BYTES = 64 * 1024
# At most this much is received at once; the deadline is looked at in between.
RECEIVE_BYTES = 256 * 1024
# S3 returns and deletes at most this many keys per request.
PAGE_KEYS_MAX = 1000
# More threads than this waiting for one store are a mistake elsewhere.
CONNECTIONS_MAX = 64
WRITE_ID_FIELD = "strandline-write-id"
CRC32C_FIELD = "strandline-crc32c"


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Statistics:
    """What this store has asked for so far: requests are money, so they are counted by kind."""

    requests: Mapping[str, int]
    failed_attempt_count: int
    read_bytes: int
    written_bytes: int


class S3Store:
    """See the top of this file. Thread-safe; one client and its connections for all threads."""

    def __init__(
        self,
        *,
        bucket: str,
        prefix: str = "",
        endpoint_url: str | None = None,
        region: str | None = None,
        deadlines: Deadlines,
        clock: Clock,
    ) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._endpoint_url = endpoint_url
        self._region = region
        self._deadlines = deadlines
        self._clock = clock
        self._lock = threading.Lock()
        self._attempts = Attempts(deadlines=deadlines, clock=clock, classify=self._failure)
        self._lazy_client: S3Client | None = None
        self._read_bytes = 0
        self._written_bytes = 0

    @property
    def url(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    @property
    def endpoint_url(self) -> str | None:
        """Where the server is; None for AWS itself."""
        return self._endpoint_url

    def statistics(self) -> S3Statistics:
        attempts = self._attempts.statistics()
        with self._lock:
            return S3Statistics(
                requests=attempts.requests,
                failed_attempt_count=attempts.failed_attempt_count,
                read_bytes=self._read_bytes,
                written_bytes=self._written_bytes,
            )

    def __repr__(self) -> str:
        return f"<S3Store {self.url} at {self._endpoint_url or 'AWS'}>"

    def close(self) -> None:
        self._attempts.close()
        with self._lock:
            client, self._lazy_client = self._lazy_client, None
        if client is not None:
            client.close()

    def check(self) -> None:
        self._attempts.run("", "check", lambda _: self._client().head_bucket(Bucket=self._bucket))

    # --- reading -----------------------------------------------------------------------------

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        if end is not None:
            target = bytearray(end - start)
            self.get_into(key, memoryview(target), start=start)
            return bytes(target)
        if start == 0:
            return self.get_object(key).body
        return self._get_whole(key, f"bytes={start}-").body

    def get_object(self, key: str) -> StoredObject:
        return self._get_whole(key, None)

    def _get_whole(self, key: str, range_header: str | None) -> StoredObject:
        def attempt(deadline_s: float) -> StoredObject:
            response = self._get_response(key, range_header)
            body = bytearray(response["ContentLength"])
            self._receive(key, response, memoryview(body), deadline_s)
            info = _info_of(key, response)
            if range_header is None and info.crc32c not in (None, checksum(body)):
                raise AgainError(ObjectCorrupt(key, "get", "checksum differs from the stored one"))
            return StoredObject(info=info, body=bytes(body))

        return self._attempts.run(key, "get", attempt)

    def get_into(self, key: str, target: memoryview, *, start: int) -> None:
        end = start + len(target)
        if not target:
            return

        def attempt(deadline_s: float) -> None:
            response = self._get_response(key, f"bytes={start}-{end - 1}")
            stated_range = response.get("ContentRange", "")
            if not stated_range.startswith(f"bytes {start}-"):
                response["Body"].close()
                raise TierError(key, "get", f"asked for bytes {start}-, got {stated_range!r}")
            if response["ContentLength"] != len(target):
                response["Body"].close()
                raise ObjectCorrupt(
                    key, "get", f"[{start}, {end}) were asked for, there is only {stated_range!r}"
                )
            self._receive(key, response, target, deadline_s)

        self._attempts.run(key, "get", attempt, size_bytes=len(target))

    def _get_response(self, key: str, range_header: str | None) -> GetObjectOutputTypeDef:
        request: GetObjectRequestTypeDef = {"Bucket": self._bucket, "Key": self._full(key)}
        if range_header is None:
            request["ChecksumMode"] = "ENABLED"
        else:
            request["Range"] = range_header
        return self._client().get_object(**request)

    def _receive(
        self, key: str, response: GetObjectOutputTypeDef, target: memoryview, deadline_s: float
    ) -> None:
        """Reads the body into all of `target`, watching the time.

        The SDK's own `read` and `readinto` return when the whole block is there, however slowly it
        trickles in; `read1` of the stream below returns after one `recv`, whose time is bounded.
        """
        done = 0
        body = response["Body"]
        try:
            with body as entered:
                # The stubs say StreamingBody; what it hands out is the response below it.
                stream = cast("HTTPResponse", entered)
                while done < len(target):
                    if self._clock.monotonic_s() > deadline_s:
                        raise DeadlineError(f"{done} of {len(target)} bytes came in time")
                    block = stream.read1(min(len(target) - done, RECEIVE_BYTES))
                    if not block:
                        detail = f"body ended after {done} of {len(target)} bytes"
                        raise AgainError(TierUnavailable(key, "get", detail))
                    target[done : done + len(block)] = block
                    done += len(block)
                # The end of the body must be seen for the connection to be used again.
                stream.read1(1)
        finally:
            body.close()
        with self._lock:
            self._read_bytes += done

    def head(self, key: str) -> ObjectInfo:
        try:
            return _info_of(key, self._attempts.run(key, "head", lambda _: self._head(key)))
        except ObjectNotFound:
            # A HEAD has no body to say what is missing, and a lost bucket is no lost object.
            with contextlib.suppress(AccessDenied):
                self.check()
            raise

    def _head(self, key: str) -> HeadObjectOutputTypeDef:
        return self._client().head_object(
            Bucket=self._bucket, Key=self._full(key), ChecksumMode="ENABLED"
        )

    def list(
        self, prefix: str, *, start_after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        left = limit
        for page in self._pages(prefix, start_after=start_after, keys_max=limit):
            for found in page.get("Contents", []):
                if left == 0:
                    return
                left = None if left is None else left - 1
                yield ObjectInfo(
                    key=found["Key"][len(self._prefix) :],
                    size_bytes=found["Size"],
                    etag=found["ETag"],
                    modified_ms=int(found["LastModified"].timestamp() * 1000),
                )
            if left == 0:
                return

    def list_folders(self, prefix: str) -> Iterator[str]:
        assert prefix == "" or prefix.endswith("/"), prefix
        start = len(self._full(prefix))
        for page in self._pages(prefix, delimiter="/"):
            for found in page.get("CommonPrefixes", []):
                yield found["Prefix"][start:].rstrip("/")

    def _pages(
        self,
        prefix: str,
        *,
        start_after: str = "",
        delimiter: str = "",
        keys_max: int | None = None,
    ) -> Iterator[ListObjectsV2OutputTypeDef]:
        request: ListObjectsV2RequestTypeDef = {
            "Bucket": self._bucket,
            "Prefix": self._full(prefix),
            "MaxKeys": min(keys_max or PAGE_KEYS_MAX, PAGE_KEYS_MAX),
        }
        if start_after:
            request["StartAfter"] = self._full(start_after)
        if delimiter:
            request["Delimiter"] = delimiter
        while True:
            page = self._attempts.run(
                prefix, "list", lambda _: self._client().list_objects_v2(**request)
            )
            yield page
            token = page.get("NextContinuationToken")
            if not page.get("IsTruncated") or not token:
                return
            request["ContinuationToken"] = token

    # --- writing -----------------------------------------------------------------------------

    def put(self, key: str, body: PutBody, *, condition: PutCondition | None = None) -> ObjectInfo:
        check_key(key)
        is_multipart = isinstance(body, FileBody) and body.size_bytes > SINGLE_PUT_BYTES_MAX
        parts = measure_body(
            key, body, part_bytes=PART_BYTES if is_multipart else SINGLE_PUT_BYTES_MAX
        )
        upload = _Upload(
            key=key,
            body=body,
            parts=parts,
            condition=condition,
            write_id=new_write_id(),
            size_bytes=sum(part.size_bytes for part in parts),
            crc32c=body.crc32c if isinstance(body, FileBody) else parts[0].crc32c,
        )
        if is_multipart:
            return self._put_parts(upload)
        return self._settle(upload, lambda deadline_s: self._put_whole(upload, deadline_s))

    def _put_whole(self, upload: _Upload, deadline_s: float) -> str:
        request: PutObjectRequestTypeDef = {
            "Bucket": self._bucket,
            "Key": self._full(upload.key),
            "ContentLength": upload.size_bytes,
            "ChecksumCRC32C": _base64_crc(upload.crc32c),
            "Metadata": upload.metadata,
        }
        match upload.condition:
            case IfAbsent():
                request["IfNoneMatch"] = "*"
            case IfMatches(etag=etag):
                request["IfMatch"] = etag
        if upload.size_bytes <= SMALL_BODY_BYTES and not isinstance(upload.body, FileBody):
            request["Body"] = bytes(upload.body)
            response = self._client().put_object(**request)
        else:
            with self._reader(upload, upload.parts[0], deadline_s) as reader:
                request["Body"] = _as_file(reader)
                response = self._client().put_object(**request)
        self._count_written(upload.size_bytes)
        return response["ETag"]

    def _reader(self, upload: _Upload, part: BodyPart, deadline_s: float) -> BodyReader:
        return BodyReader(upload.body, part, clock=self._clock, deadline_s=deadline_s)

    def _settle(self, upload: _Upload, attempt: Callable[[float], str]) -> ObjectInfo:
        """Carries out the write; a failure that may be a lost answer is resolved by HEAD."""
        try:
            etag = self._attempts.run(upload.key, "put", attempt, size_bytes=upload.size_bytes)
        except BucketMissing:
            raise
        except (PreconditionFailed, TierUnavailable) as error:
            return self._settle_doubt(upload, error)
        except ObjectNotFound as error:
            # S3 answers If-Match on a missing key with 404 instead of 412.
            return self._settle_doubt(upload, PreconditionFailed(upload.key, "put", error.detail))
        return upload.info(etag)

    def _settle_doubt(
        self, upload: _Upload, error: PreconditionFailed | TierUnavailable
    ) -> ObjectInfo:
        """Success if the object is our own; else the error, as far as it can be believed."""
        try:
            found = self._attempts.run(upload.key, "head", lambda _: self._head(upload.key))
        except ObjectNotFound:
            raise error from None
        except TierError:
            detail = f"outcome unknown after: {error.detail}"
            raise TierUnavailable(upload.key, "put", detail) from error
        info = _info_of(upload.key, found)
        is_ours = (
            found["Metadata"].get(WRITE_ID_FIELD) == upload.write_id
            and info.size_bytes == upload.size_bytes
            and info.crc32c in (None, upload.crc32c)
        )
        if is_ours:
            return upload.info(info.etag)
        raise error

    # --- multipart ---------------------------------------------------------------------------

    def _put_parts(self, upload: _Upload) -> ObjectInfo:
        """1 create   2 upload the parts, some in parallel   3 complete, under the condition"""
        key = upload.key
        created = self._attempts.run(
            key,
            "put",
            lambda _: self._client().create_multipart_upload(
                Bucket=self._bucket,
                Key=self._full(key),
                ChecksumAlgorithm="CRC32C",
                Metadata=upload.metadata,
            ),
        )
        upload_id = created["UploadId"]
        try:
            completed = self._send_parts(upload, upload_id)
            return self._settle(upload, lambda _: self._complete(upload, upload_id, completed))
        except BaseException:
            self._abort(key, upload_id)
            raise

    def _send_parts(self, upload: _Upload, upload_id: str) -> Sequence[CompletedPartTypeDef]:
        give_up_s = self._clock.monotonic_s() + self._deadlines.upload_s
        failed = threading.Event()

        def send(numbered: tuple[int, BodyPart]) -> CompletedPartTypeDef:
            number, part = numbered
            if failed.is_set():
                raise TierUnavailable(upload.key, "put", "another part of the upload failed")
            try:
                return self._attempts.run(
                    upload.key,
                    "put",
                    lambda deadline_s: self._send_part(upload, upload_id, number, part, deadline_s),
                    size_bytes=part.size_bytes,
                    give_up_s=give_up_s,
                )
            except BaseException:
                failed.set()
                raise

        with ThreadPoolExecutor(PARTS_PARALLEL, thread_name_prefix="s3-part") as executor:
            return tuple(executor.map(send, enumerate(upload.parts, start=1)))

    def _send_part(
        self, upload: _Upload, upload_id: str, number: int, part: BodyPart, deadline_s: float
    ) -> CompletedPartTypeDef:
        encoded_crc = _base64_crc(part.crc32c)
        with self._reader(upload, part, deadline_s) as reader:
            response = self._client().upload_part(
                Bucket=self._bucket,
                Key=self._full(upload.key),
                UploadId=upload_id,
                PartNumber=number,
                ContentLength=part.size_bytes,
                ChecksumCRC32C=encoded_crc,
                Body=_as_file(reader),
            )
        self._count_written(part.size_bytes)
        return {"PartNumber": number, "ETag": response["ETag"], "ChecksumCRC32C": encoded_crc}

    def _complete(
        self, upload: _Upload, upload_id: str, parts: Sequence[CompletedPartTypeDef]
    ) -> str:
        request: CompleteMultipartUploadRequestTypeDef = {
            "Bucket": self._bucket,
            "Key": self._full(upload.key),
            "UploadId": upload_id,
            "MultipartUpload": {"Parts": parts},
        }
        match upload.condition:
            case IfAbsent():
                request["IfNoneMatch"] = "*"
            case IfMatches(etag=etag):
                request["IfMatch"] = etag
        return self._client().complete_multipart_upload(**request)["ETag"]

    def _abort(self, key: str, upload_id: str) -> None:
        """Tries once; what stays is found by `abort_uploads` or the bucket's lifecycle rule."""
        try:
            self._client().abort_multipart_upload(
                Bucket=self._bucket, Key=self._full(key), UploadId=upload_id
            )
        except Exception as error:
            self._failure(error, key, "abort")  # raises only what is our own mistake

    def abort_uploads(self, prefix: str, *, older_than_ms: int) -> int:
        before_ms = self._clock.now_ms() - older_than_ms
        aborted_count = 0
        key_marker = upload_marker = ""
        while True:
            page = self._attempts.run(
                prefix,
                "abort_uploads",
                lambda _, key=key_marker, upload=upload_marker: (  # type: ignore[misc]
                    self._client().list_multipart_uploads(
                        Bucket=self._bucket,
                        Prefix=self._full(prefix),
                        KeyMarker=key,
                        UploadIdMarker=upload,
                    )
                ),
            )
            for found in page.get("Uploads", []):
                if found["Initiated"].timestamp() * 1000 < before_ms:
                    self._abort(found["Key"][len(self._prefix) :], found["UploadId"])
                    aborted_count += 1
            if not page.get("IsTruncated"):
                return aborted_count
            key_marker, upload_marker = page["NextKeyMarker"], page["NextUploadIdMarker"]

    def delete(self, keys: Sequence[str]) -> None:
        for start in range(0, len(keys), PAGE_KEYS_MAX):
            batch = keys[start : start + PAGE_KEYS_MAX]
            response = self._attempts.run(
                batch[0],
                "delete",
                lambda _, batch=batch: self._client().delete_objects(  # type: ignore[misc]
                    Bucket=self._bucket,
                    Delete={"Objects": [{"Key": self._full(key)} for key in batch], "Quiet": True},
                ),
            )
            for failure in response.get("Errors", []):
                key = failure.get("Key", "")[len(self._prefix) :]
                code = failure.get("Code", "")
                detail = f"{code}: {failure.get('Message', '')}"
                error = failure_of_code(code, 0, key, "delete", detail).error
                if not isinstance(error, ObjectNotFound):
                    raise error

    # --- one request -------------------------------------------------------------------------

    def _failure(self, error: Exception, key: str, operation: str) -> Failure:
        """What an exception of an attempt means. Raises it again if it is our own mistake."""
        from botocore import exceptions
        from urllib3.exceptions import HTTPError

        match error:
            case AgainError():
                return Failure(error.error, is_worth_repeating=True)
            case DeadlineError():
                return Failure(TierUnavailable(key, operation, str(error)))
            case exceptions.ClientError():
                return self._failure_of_answer(error, key, operation)
            case exceptions.NoCredentialsError() | exceptions.PartialCredentialsError():
                return Failure(AccessDenied(key, operation, str(error)))
            case exceptions.ParamValidationError():
                raise error
            case exceptions.BotoCoreError() | HTTPError() | OSError():
                # Refused, reset, timed out, broken off, unreadable: all of these may pass.
                return Failure(TierUnavailable(key, operation, str(error)), is_worth_repeating=True)
            case _:
                raise error

    def _failure_of_answer(self, error: ClientError, key: str, operation: str) -> Failure:
        code = str(error.response.get("Error", {}).get("Code", ""))
        message = str(error.response.get("Error", {}).get("Message", ""))
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        if code == "NoSuchBucket" or (operation == "check" and status == HTTPStatus.NOT_FOUND):
            where = self._endpoint_url or "AWS"
            text = (
                f"bucket {self._bucket!r} does not exist at {where}: create it or correct the URL"
            )
            return Failure(BucketMissing(key, operation, text))
        return failure_of_code(code, status, key, operation, f"{status} {code}: {message}")

    def _count_written(self, size_bytes: int) -> None:
        with self._lock:
            self._written_bytes += size_bytes

    def _full(self, key: str) -> str:
        return self._prefix + key

    def _client(self) -> S3Client:
        with self._lock:
            if self._lazy_client is None:
                self._lazy_client = self._make_client()
            return self._lazy_client

    def _make_client(self) -> S3Client:
        import boto3.session
        from botocore.config import Config

        session = boto3.session.Session()
        region = (
            self._region or os.environ.get("AWS_REGION") or session.region_name or DEFAULT_REGION
        )
        config = Config(
            connect_timeout=self._deadlines.connect_s,
            read_timeout=self._deadlines.read_s,
            retries={"total_max_attempts": 1},
            max_pool_connections=CONNECTIONS_MAX,
            tcp_keepalive=True,
            # Other servers than AWS's are rarely reached as bucket.host.
            s3={"addressing_style": "path" if self._endpoint_url else "auto"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        client: S3Client = session.client(
            "s3", region_name=region, endpoint_url=self._endpoint_url, config=config
        )
        return client


@dataclass(frozen=True, slots=True, kw_only=True)
class _Upload:
    """One `put` with all its attempts."""

    key: str
    body: PutBody
    parts: tuple[BodyPart, ...]
    condition: PutCondition | None
    write_id: str
    size_bytes: int
    crc32c: int

    @property
    def metadata(self) -> dict[str, str]:
        return {WRITE_ID_FIELD: self.write_id, CRC32C_FIELD: f"{self.crc32c:08x}"}

    def info(self, etag: str) -> ObjectInfo:
        return ObjectInfo(key=self.key, size_bytes=self.size_bytes, etag=etag, crc32c=self.crc32c)


def _info_of(key: str, answer: HeadObjectOutputTypeDef | GetObjectOutputTypeDef) -> ObjectInfo:
    return ObjectInfo(
        key=key,
        size_bytes=answer["ContentLength"],
        etag=answer["ETag"],
        crc32c=_crc_of(answer),
        modified_ms=int(answer["LastModified"].timestamp() * 1000),
    )


def _crc_of(answer: HeadObjectOutputTypeDef | GetObjectOutputTypeDef) -> int | None:
    """CRC-32C of the whole object: the server's if it has one, else what we wrote beside it."""
    encoded = answer.get("ChecksumCRC32C", "")
    # That of an upload in parts is a checksum of their checksums, unless it says otherwise. Not
    # every server marks it, but the etag of such an object ends in the number of parts everywhere.
    stated_type: str = answer.get("ChecksumType", "")
    is_whole = stated_type == "FULL_OBJECT" or (not stated_type and "-" not in answer["ETag"])
    if encoded and is_whole and "-" not in encoded:
        return int.from_bytes(base64.b64decode(encoded), "big")
    recorded = answer["Metadata"].get(CRC32C_FIELD)
    try:
        return None if recorded is None else int(recorded, 16)
    except ValueError:
        return None


def _as_file(reader: BodyReader) -> IO[bytes]:
    """The stubs ask for `typing.IO`, which no class of `io` is; the SDK wants read, tell, seek."""
    return cast("IO[bytes]", reader)


def _base64_crc(crc: int) -> str:
    return base64.b64encode(crc.to_bytes(4, "big")).decode()
