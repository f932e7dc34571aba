"""The object store on S3 and compatible servers, through boto3.

The SDK's own retries are off. It cannot know that a 412 on the second attempt of a conditional PUT
is our own first attempt whose response was lost, it does not retry a GET whose body broke off, and
it has no deadline over its attempts. So this module retries each request:

    attempt ──ok──► done
       │ 404, 403, archived, 412 ──────────────► that error
       │ timeout, reset, 5xx, 409, broken body ► pause, next attempt
       ▼ out of attempts or time ──────────────► TierUnavailable

`uploads` describes how a `put` handles 412 and an unknown outcome, `lacks` what is done on servers
that do not know a request.

Reads of whole objects verify their CRC-32C. S3 has no checksum for a range: readers of ranges
verify batch CRCs or section checksums.

The first request creates the client: loading the SDK costs half a second and 26 MB.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from itertools import islice
from typing import TYPE_CHECKING

from strandline.storage.clock import Clock
from strandline.storage.errors import (
    AccessDenied,
    InvalidConfig,
    ObjectCorrupt,
    ObjectNotFound,
    PreconditionFailed,
    TierError,
    TierUnavailable,
)
from strandline.storage.model import TimestampMs
from strandline.storage.remote.object_store.interface import (
    BucketMissing,
    Deadlines,
    Lack,
    ObjectInfo,
    PutBody,
    PutCondition,
    StoredObject,
    check_key,
    checksum,
)
from strandline.storage.remote.s3.access import (
    PAGE_KEYS_MAX,
    S3Access,
    check_listed,
    date_of,
    info_of,
    info_of_body,
)
from strandline.storage.remote.s3.attempts import (
    AgainError,
    Attempts,
    AttemptStatistics,
    DeadlineError,
    Failure,
)
from strandline.storage.remote.s3.failures import failure_of_code
from strandline.storage.remote.s3.lacks import Lacks
from strandline.storage.remote.s3.lifecycle import S3Lifecycle
from strandline.storage.remote.s3.sdk_responses import bound_answers
from strandline.storage.remote.s3.uploads import S3Uploads
from strandline.storage.remote.s3.usage import S3Usage
from strandline.storage.remote.silence import Silence
from strandline.storage.urls import check_no_password

if TYPE_CHECKING:
    from botocore.exceptions import ClientError
    from types_boto3_s3 import S3Client
    from types_boto3_s3.type_defs import (
        GetObjectOutputTypeDef,
        GetObjectRequestTypeDef,
        ObjectIdentifierTypeDef,
    )

DEFAULT_REGION = "us-east-1"
# The SDK's error only says that it found no credentials.
WHERE_CREDENTIALS_ARE = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile in ~/.aws (AWS_PROFILE), or give"
    " this machine a role"
)

# No object has it.
_ETAG_OF_NONE = f'"{"0" * 32}"'
# More threads than this that wait for one store indicate a bug elsewhere.
CONNECTIONS_MAX = 64


# A part of the name of every host of Amazon's S3.
_AWS_HOST = ".amazonaws.com"


class S3Store:
    """An object store in an S3 bucket. Thread-safe; all threads share one client."""

    def __init__(
        self,
        *,
        bucket: str,
        prefix: str = "",
        endpoint_url: str | None = None,
        region: str | None = None,
        ca_file: str | None = None,
        deadlines: Deadlines,
        clock: Clock,
    ) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._endpoint_url = endpoint_url
        self._region = region
        self._ca_file = ca_file
        self._deadlines = deadlines
        self._clock = clock
        self._lock = threading.Lock()
        self._attempts = Attempts(
            deadlines=deadlines,
            clock=clock,
            silence=Silence(self.url, clock),
            classify=self._failure,
        )
        self._access = S3Access(
            bucket=bucket,
            prefix=self._prefix,
            client=self._client,
            attempts=self._attempts,
            deadlines=deadlines,
            clock=clock,
            lacks=Lacks(self.url),
        )
        self._uploads = S3Uploads(self._access)
        self._lazy_client: S3Client | None = None

    @property
    def url(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    @property
    def endpoint_url(self) -> str | None:
        """The URL of the S3 endpoint; None for AWS."""
        return self._endpoint_url

    def statistics(self) -> AttemptStatistics:
        return self._attempts.statistics()

    def __repr__(self) -> str:
        return f"<S3Store {self.url} at {self._endpoint_url or 'AWS'}>"

    def close(self) -> None:
        self._attempts.close()
        with self._lock:
            client, self._lazy_client = self._lazy_client, None
        if client is not None:
            client.close()

    def check(self) -> None:
        self._access.send("", "check", lambda client: client.head_bucket(Bucket=self._bucket))

    def clock_ms(self) -> TimestampMs:
        dated = date_of(
            self._access.send("", "clock", lambda client: client.head_bucket(Bucket=self._bucket))
        )
        return self._clock.now_ms() if dated is None else dated

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
            info = info_of_body(key, response)
            body = bytearray(info.size_bytes)
            self._receive(key, response, memoryview(body), deadline_s)
            if range_header is None and info.stated_crc32c not in (None, checksum(body)):
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
            if response.get("ContentLength") != len(target):
                response["Body"].close()
                raise ObjectCorrupt(
                    key, "get", f"[{start}, {end}) were asked for, there is only {stated_range!r}"
                )
            self._receive(key, response, target, deadline_s)

        self._attempts.run(key, "get", attempt, size_bytes=len(target))

    def _get_response(self, key: str, range_header: str | None) -> GetObjectOutputTypeDef:
        request: GetObjectRequestTypeDef = {
            "Bucket": self._bucket,
            "Key": self._access.full_key(key),
        }
        if range_header is None:
            request["ChecksumMode"] = "ENABLED"
        else:
            request["Range"] = range_header
        return self._client().get_object(**request)

    def _receive(
        self, key: str, response: GetObjectOutputTypeDef, target: memoryview, deadline_s: float
    ) -> None:
        """Fills `target` from the body, within the deadline."""
        done = 0
        for block in self._access.body_blocks(key, response, len(target), deadline_s):
            target[done : done + len(block)] = block
            done += len(block)

    def head(self, key: str) -> ObjectInfo:
        try:
            return info_of(key, self._access.head(key))
        except ObjectNotFound:
            # A 404 to a HEAD has no body that tells a missing bucket from a missing object.
            with contextlib.suppress(AccessDenied):
                self.check()
            raise

    def list(
        self, prefix: str, *, start_after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        pages = self._access.object_pages(prefix, start_after=start_after, keys_max=limit)
        objects = (found for page in pages for found in page.get("Contents", []))
        for found in islice(objects, limit):
            yield self._access.listed_info(found, below=prefix)

    def list_folders(self, prefix: str) -> Iterator[str]:
        assert prefix == "" or prefix.endswith("/"), prefix
        for page in self._access.object_pages(prefix, delimiter="/"):
            for found in page.get("CommonPrefixes", []):
                check_listed(found, "Prefix", operation="list", prefix=prefix)
                folder = self._access.listed_key(found["Prefix"], below=prefix)
                yield folder[len(prefix) :].rstrip("/")

    # --- writing -----------------------------------------------------------------------------

    def put(self, key: str, body: PutBody, *, condition: PutCondition | None = None) -> ObjectInfo:
        return self._uploads.put(check_key(key), body, condition=condition)

    def abort_uploads(self, prefix: str, *, older_than_ms: int) -> int:
        return self._uploads.abort_uploads(prefix, older_than_ms=older_than_ms)

    def delete(self, keys: Sequence[str]) -> None:
        for start in range(0, len(keys), PAGE_KEYS_MAX):
            self._delete_page(keys[start : start + PAGE_KEYS_MAX])

    def _delete_page(self, keys: Sequence[str]) -> None:
        def one_by_one() -> None:
            for key in keys:
                self._access.delete_one(key)

        self._access.lacks.do(Lack.BATCH_DELETE, lambda: self._delete_together(keys), one_by_one)

    def delete_matching(self, key: str, etag: str) -> None:
        is_ignored = Lack.CONDITIONAL_DELETE in self.lacks
        self._access.delete_one(check_key(key), etag="" if is_ignored else etag)

    @property
    def lacks(self) -> frozenset[Lack]:
        return self._access.lacks.found

    def try_out(self, key: str) -> None:
        self._uploads.try_out(check_key(key))
        try:
            # A server that ignores the condition deletes the object.
            self._access.delete_one(key, etag=_ETAG_OF_NONE)
        except PreconditionFailed:
            self._access.lacks.forget(Lack.CONDITIONAL_DELETE)
        except TierError as error:
            if type(error) is not TierError:
                raise

    def _delete_together(self, keys: Sequence[str]) -> None:
        objects: list[ObjectIdentifierTypeDef] = [
            {"Key": self._access.full_key(key)} for key in keys
        ]
        response = self._access.send(
            keys[0],
            "delete",
            lambda client: client.delete_objects(
                Bucket=self._bucket, Delete={"Objects": objects, "Quiet": True}
            ),
        )
        for failure in response.get("Errors", []):
            key = self._access.own_key(failure.get("Key", ""))
            code = failure.get("Code", "")
            detail = f"{code}: {failure.get('Message', '')}"
            error = failure_of_code(code, 0, key, "delete", detail).error
            if not isinstance(error, ObjectNotFound):
                raise error

    @property
    def lifecycle(self) -> S3Lifecycle:
        """The bucket's lifecycle rules."""
        return S3Lifecycle(self._access)

    @property
    def usage(self) -> S3Usage:
        """The versions and unfinished uploads that the bucket stores and bills."""
        return S3Usage(self._access)

    # --- one request -------------------------------------------------------------------------

    def _failure(self, error: Exception, key: str, operation: str) -> Failure:
        """Classifies the exception of an attempt. Re-raises programming errors."""
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
                return Failure(AccessDenied(key, operation, f"{error}; {WHERE_CREDENTIALS_ARE}"))
            case exceptions.ParamValidationError():
                raise error
            case exceptions.BotoCoreError() | HTTPError() | OSError():
                # Refused, reset, timed out, truncated or unparsable: all of these are transient.
                return Failure(TierUnavailable(key, operation, str(error)), is_worth_repeating=True)
            case _:
                raise error

    def _failure_of_answer(self, error: ClientError, key: str, operation: str) -> Failure:
        code = str(error.response.get("Error", {}).get("Code", ""))
        message = str(error.response.get("Error", {}).get("Message", ""))
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        if code == "NoSuchBucket" or (
            operation in ("check", "clock") and status == HTTPStatus.NOT_FOUND
        ):
            # AWS_ENDPOINT_URL and ~/.aws/config name an endpoint too.
            endpoint_url = str(self._client().meta.endpoint_url)
            where = "AWS" if _AWS_HOST in endpoint_url else endpoint_url
            text = (
                f"bucket {self._bucket!r} does not exist at {where}: create it or correct the URL"
            )
            return Failure(BucketMissing(key, operation, text))
        if operation in ("check", "clock") and status == HTTPStatus.FORBIDDEN:
            # The response to a HEAD has no body that says which of them.
            text = f"{status} {message}: credentials, policy, or a clock that is wrong"
            return failure_of_code(
                "AccessDenied", status, f"bucket {self._bucket}", operation, text
            )
        # The SDK uses the status as the code of a response without a body.
        name = f"{status}" if code in ("", str(status)) else f"{status} {code}"
        return failure_of_code(code, status, key, operation, f"{name}: {message}")

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
            # Presigned URLs too: newer regions reject signature version 2.
            signature_version="s3v4",
            # Servers other than AWS rarely support bucket.host names.
            s3={
                "addressing_style": "path" if self._endpoint_url else "auto",
                # Every body is sent with its CRC-32C, which the server verifies; see `uploads`.
                "payload_signing_enabled": False,
            },
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        try:
            client: S3Client = session.client(
                "s3",
                region_name=region,
                endpoint_url=self._endpoint_url,
                # Each new connection reads the file, so one that is replaced is taken up.
                verify=self._ca_file,
                config=config,
            )
        except ValueError as error:
            raise InvalidConfig(
                f"{error}: expected http://host:port or https://host; --endpoint-url,"
                " strandline.remote.s3.endpoint.url, AWS_ENDPOINT_URL or ~/.aws/config has it"
            ) from error
        check_no_password("AWS_ENDPOINT_URL or ~/.aws/config", client.meta.endpoint_url)
        bound_answers(client, seconds=self._deadlines.request_s, clock=self._clock)
        return client
