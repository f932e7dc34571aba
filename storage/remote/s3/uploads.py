"""Writes objects to S3, whole or in parts, under a condition, and with a known outcome.

    put ──ok──► done
      ├─ 412, or IfMatches and 404 ─► HEAD: our write id? ──yes─► done (the response was lost)
      │                                              └─no──► PreconditionFailed
      └─ out of attempts ───────────► HEAD: our write id? ──yes─► done
                                                     └─no──► TierUnavailable

Every `put` writes a unique write id into the object's metadata. A HEAD that shows it proves that
the object is ours; length and checksum do not, because two brokers may write the same bytes. The
metadata contain the CRC-32C too, for servers that do not report one.

Every PUT and every part is sent with its CRC-32C, computed here (the SDK needs awscrt for it), and
the server rejects a damaged body. So the body is not signed as well: its SHA-256 costs 0.6 s per GB
([why that is enough](../../docs/decisions/0013-upload.md)).

In parts: 1 create   2 upload the parts, some in parallel   3 complete, under the condition. Step 1
sets the write id, so a lost response to step 3 is resolved as for a plain put. "No such upload" has
an unknown outcome: it may be the response to a second step 3 after the first one succeeded.
"""

from __future__ import annotations

import base64
import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, cast
from urllib.parse import urlencode

from strandline.storage.errors import (
    ObjectCorrupt,
    ObjectNotFound,
    PreconditionFailed,
    TierError,
    TierUnavailable,
)
from strandline.storage.model import TimestampMs
from strandline.storage.remote.keys import new_unique
from strandline.storage.remote.object_store.interface import (
    AGE_UNKNOWN,
    BucketMissing,
    FileBody,
    IfAbsent,
    IfMatches,
    Lack,
    ObjectInfo,
    ObjectOptions,
    PutBody,
    PutCondition,
    checksum,
)
from strandline.storage.remote.s3.access import (
    CRC32C_FIELD,
    WRITE_ID_FIELD,
    S3Access,
    info_of,
    info_of_body,
)
from strandline.storage.remote.s3.attempts import AgainError
from strandline.storage.remote.s3.lacks import Lacks
from strandline.storage.remote.s3.upload_body import BodyPart, BodyReader, measure_body
from strandline.storage.system import crc32c

if TYPE_CHECKING:
    from types_boto3_s3.literals import StorageClassType
    from types_boto3_s3.type_defs import (
        CompletedPartTypeDef,
        CompleteMultipartUploadRequestTypeDef,
        CreateMultipartUploadRequestTypeDef,
        MultipartUploadTypeDef,
        PutObjectRequestTypeDef,
    )

# A plain PUT is one atomic request; above this size parallel parts are worth their requests.
SINGLE_PUT_BYTES_MAX = 64 * 1024 * 1024
# 10,000 parts of this size are 160 GiB, far above any segment.
PART_BYTES = 16 * 1024 * 1024
PARTS_PARALLEL = 4
# A smaller body fits the socket's buffer, so sending it cannot block for long.
SMALL_BODY_BYTES = 64 * 1024


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

    @property
    def options(self) -> ObjectOptions:
        return self.body.options if isinstance(self.body, FileBody) else ObjectOptions()

    def info(self, etag: str) -> ObjectInfo:
        return ObjectInfo(key=self.key, size_bytes=self.size_bytes, etag=etag, crc32c=self.crc32c)


class S3Uploads:
    """The writes to one bucket. Thread-safe."""

    def __init__(self, access: S3Access) -> None:
        self._access = access

    def put(self, key: str, body: PutBody, *, condition: PutCondition | None = None) -> ObjectInfo:
        is_large = isinstance(body, FileBody) and body.size_bytes > SINGLE_PUT_BYTES_MAX
        parts = measure_body(key, body, part_bytes=PART_BYTES if is_large else SINGLE_PUT_BYTES_MAX)
        upload = _Upload(
            key=key,
            body=body,
            parts=parts,
            condition=condition,
            write_id=new_unique(),
            size_bytes=sum(part.size_bytes for part in parts),
            crc32c=body.crc32c if isinstance(body, FileBody) else parts[0].crc32c,
        )
        if not is_large:
            return self._put_at_once(upload)
        return self._lacks.do(
            Lack.MULTIPART,
            lambda: self._put_parts(upload),
            lambda: self._put_at_once(upload),
        )

    def try_out(self, key: str) -> ObjectInfo:
        """Writes a small object in parts, or in one request if the server refuses the parts."""
        body = b"in parts"
        upload = _Upload(
            key=key,
            body=body,
            parts=measure_body(key, body, part_bytes=PART_BYTES),
            condition=None,
            write_id=new_unique(),
            size_bytes=len(body),
            crc32c=checksum(body),
        )
        return self._lacks.do(
            Lack.MULTIPART,
            lambda: self._put_parts(upload),
            lambda: self._put_at_once(upload),
        )

    def _put_at_once(self, upload: _Upload) -> ObjectInfo:
        try:
            return self._lacks.do(
                Lack.CHECKSUMS,
                lambda: self._put_checked(upload),
                lambda: self._put_unchecked(upload),
            )
        except ObjectCorrupt:
            if isinstance(upload.body, FileBody):
                self._delete_changed(upload.key)
            raise

    def _put_checked(self, upload: _Upload) -> ObjectInfo:
        crc = _base64_crc(upload.crc32c)
        return self._send(upload, lambda deadline_s: self._put_whole(upload, crc, deadline_s))

    def _put_unchecked(self, upload: _Upload) -> ObjectInfo:
        """Writes without the checksum, and reads back what the server stored."""
        written = self._send(upload, lambda deadline_s: self._put_whole(upload, "", deadline_s))
        self._access.attempts.run(
            upload.key,
            "get",
            lambda deadline_s: self._read_back(written, upload.crc32c, deadline_s),
            size_bytes=upload.size_bytes,
        )
        return written

    def _read_back(self, written: ObjectInfo, sent_crc32c: int, deadline_s: float) -> None:
        """Raises AgainError unless the server stored the bytes that were sent."""
        key = written.key
        response = self._access.client().get_object(
            Bucket=self._access.bucket, Key=self._access.full_key(key)
        )
        size_bytes = info_of_body(key, response).size_bytes
        if response["ETag"] != written.etag:
            # Another writer replaced it since: these bytes are not ours.
            response["Body"].close()
            return
        found_crc32c = 0
        for block in self._access.body_blocks(key, response, size_bytes, deadline_s):
            found_crc32c = crc32c.crc32c(block, found_crc32c)
        if found_crc32c != sent_crc32c:
            text = f"crc32c {found_crc32c:08x} was read back, {sent_crc32c:08x} was written"
            raise AgainError(ObjectCorrupt(key, "put", text))

    @property
    def _lacks(self) -> Lacks:
        return self._access.lacks

    def _delete_changed(self, key: str) -> None:
        """Deletes the object of a file that changed while it was sent, if the server kept it."""
        with contextlib.suppress(TierError):
            self._access.delete_one(key, attempts_max=1)

    def _put_whole(self, upload: _Upload, encoded_crc: str, deadline_s: float) -> str:
        request: PutObjectRequestTypeDef = {
            "Bucket": self._access.bucket,
            "Key": self._access.full_key(upload.key),
            "ContentLength": upload.size_bytes,
            "Metadata": upload.metadata,
        }
        if encoded_crc:
            request["ChecksumCRC32C"] = encoded_crc
        _add_options(request, upload.options)
        _add_condition(request, upload.condition)
        if upload.size_bytes <= SMALL_BODY_BYTES and not isinstance(upload.body, FileBody):
            request["Body"] = bytes(upload.body)
            response = self._access.client().put_object(**request)
        else:
            whole = BodyPart(position=0, size_bytes=upload.size_bytes, crc32c=upload.crc32c)
            with self._reader(upload, whole, deadline_s) as reader:
                request["Body"] = _as_file(reader)
                response = self._access.client().put_object(**request)
        return response.get("ETag", "")

    def _reader(self, upload: _Upload, part: BodyPart, deadline_s: float) -> BodyReader:
        return BodyReader(
            upload.key,
            upload.body,
            part,
            clock=self._access.clock,
            deadline_s=deadline_s,
            progress_s=self._access.deadlines.read_s,
            on_progress=self._access.attempts.silence.note_progress,
        )

    def _send(self, upload: _Upload, attempt: Callable[[float], str]) -> ObjectInfo:
        """Sends the write; a HEAD resolves a failure that may be a lost response."""
        try:
            etag = self._access.attempts.run(
                upload.key, "put", attempt, size_bytes=upload.size_bytes
            )
        except BucketMissing:
            raise
        except (PreconditionFailed, TierUnavailable) as error:
            return self._resolve_doubt(upload, error)
        except ObjectNotFound as error:
            # S3 answers If-Match on a missing key with 404 instead of 412.
            return self._resolve_doubt(upload, PreconditionFailed(upload.key, "put", error.detail))
        if not etag:
            # The next conditional write needs the etag, and a HEAD may return it.
            return self._resolve_doubt(upload, _lacking(upload.key, "an ETag"))
        return upload.info(etag)

    def _resolve_doubt(
        self, upload: _Upload, error: PreconditionFailed | TierUnavailable
    ) -> ObjectInfo:
        """Returns if the object is our own; else raises `error`, or TierUnavailable if in doubt."""
        try:
            found = self._access.head(upload.key)
        except ObjectNotFound:
            raise error from None
        except TierError:
            detail = f"outcome unknown after: {error.detail}"
            raise TierUnavailable(upload.key, "put", detail) from error
        info = info_of(upload.key, found)
        is_ours = (
            found["Metadata"].get(WRITE_ID_FIELD) == upload.write_id
            and info.size_bytes == upload.size_bytes
            and info.stated_crc32c in (None, upload.crc32c)
        )
        if is_ours:
            return upload.info(info.etag)
        raise error

    # --- multipart ---------------------------------------------------------------------------

    def _put_parts(self, upload: _Upload) -> ObjectInfo:
        key = upload.key
        request: CreateMultipartUploadRequestTypeDef = {
            "Bucket": self._access.bucket,
            "Key": self._access.full_key(key),
            "ChecksumAlgorithm": "CRC32C",
            "Metadata": upload.metadata,
        }
        _add_options(request, upload.options)
        created = self._access.send(
            key, "put", lambda client: client.create_multipart_upload(**request)
        )
        upload_id = created.get("UploadId", "")
        if not upload_id:
            raise _lacking(key, "an UploadId")
        try:
            completed = self._send_parts(upload, upload_id)
            return self._send(upload, lambda _: self._complete(upload, upload_id, completed))
        except BaseException:
            self._abort(key, upload_id)
            raise

    def _send_parts(self, upload: _Upload, upload_id: str) -> Sequence[CompletedPartTypeDef]:
        give_up_s = self._access.clock.monotonic_s() + self._access.deadlines.upload_s
        failed = threading.Event()

        def send(numbered: tuple[int, BodyPart]) -> CompletedPartTypeDef:
            number, part = numbered
            if failed.is_set():
                raise TierUnavailable(upload.key, "put", "another part of the upload failed")
            try:
                return self._access.attempts.run(
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
            response = self._access.client().upload_part(
                Bucket=self._access.bucket,
                Key=self._access.full_key(upload.key),
                UploadId=upload_id,
                PartNumber=number,
                ContentLength=part.size_bytes,
                ChecksumCRC32C=encoded_crc,
                Body=_as_file(reader),
            )
        if "ETag" not in response:
            raise AgainError(_lacking(upload.key, "an ETag"))
        return {"PartNumber": number, "ETag": response["ETag"], "ChecksumCRC32C": encoded_crc}

    def _complete(
        self, upload: _Upload, upload_id: str, parts: Sequence[CompletedPartTypeDef]
    ) -> str:
        request: CompleteMultipartUploadRequestTypeDef = {
            "Bucket": self._access.bucket,
            "Key": self._access.full_key(upload.key),
            "UploadId": upload_id,
            "MultipartUpload": {"Parts": parts},
        }
        _add_condition(request, upload.condition)
        return self._access.client().complete_multipart_upload(**request).get("ETag", "")

    def _abort(self, key: str, upload_id: str) -> None:
        """Tries once; `abort_uploads` or the bucket's lifecycle rule removes the remains."""
        with contextlib.suppress(TierError):
            self._access.send(
                key,
                "abort",
                lambda client: client.abort_multipart_upload(
                    Bucket=self._access.bucket, Key=self._access.full_key(key), UploadId=upload_id
                ),
                attempts_max=1,
            )

    def abort_uploads(self, prefix: str, *, older_than_ms: int) -> int:
        before_ms = self._access.clock.now_ms() - older_than_ms
        aborted_count = 0
        for found in self._access.unfinished_uploads(prefix):
            begun_ms = begun_ms_of(found)
            if not older_than_ms or AGE_UNKNOWN < begun_ms < before_ms:
                key = self._access.listed_key(found["Key"], below=prefix)
                self._abort(key, found["UploadId"])
                aborted_count += 1
        return aborted_count


def _add_options(
    request: PutObjectRequestTypeDef | CreateMultipartUploadRequestTypeDef, options: ObjectOptions
) -> None:
    if options.storage_class:
        request["StorageClass"] = cast("StorageClassType", options.storage_class)
    if options.tags:
        request["Tagging"] = urlencode(options.tags)


def _add_condition(
    request: PutObjectRequestTypeDef | CompleteMultipartUploadRequestTypeDef,
    condition: PutCondition | None,
) -> None:
    match condition:
        case IfAbsent():
            request["IfNoneMatch"] = "*"
        case IfMatches(etag=etag):
            request["IfMatch"] = etag


def begun_ms_of(found: MultipartUploadTypeDef) -> TimestampMs:
    """Returns the start of an upload; AGE_UNKNOWN if the listing does not state it."""
    begun = found.get("Initiated")
    return AGE_UNKNOWN if begun is None else int(begun.timestamp() * 1000)


def _lacking(key: str, what: str) -> TierUnavailable:
    return TierUnavailable(key, "put", f"no answer of an S3: without {what}")


def _as_file(reader: BodyReader) -> IO[bytes]:
    """The stubs require `typing.IO`, which no class of `io` is; the SDK uses read, tell, seek."""
    return cast("IO[bytes]", reader)


def _base64_crc(crc: int) -> str:
    return base64.b64encode(crc.to_bytes(4, "big")).decode()
