"""What reading and writing S3 share: the client, the names, and how answers are understood."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from strandline.storage.clock import Clock
from strandline.storage.errors import ObjectCorrupt, TierError, TierUnavailable
from strandline.storage.model import TimestampMs
from strandline.storage.remote.object_store.interface import AGE_UNKNOWN, Deadlines, ObjectInfo
from strandline.storage.remote.s3.attempts import Attempts

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client
    from types_boto3_s3.type_defs import (
        GetObjectOutputTypeDef,
        HeadBucketOutputTypeDef,
        HeadObjectOutputTypeDef,
        ObjectTypeDef,
    )

# A segment is smaller, and so are all objects beside it. An answer gets room for what it claims.
OBJECT_BYTES_MAX = 4 * 1024 * 1024 * 1024

# Fields of every object's metadata that we write.
WRITE_ID_FIELD = "strandline-write-id"
CRC32C_FIELD = "strandline-crc32c"


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Access:
    """One bucket with a key prefix. `client` makes the SDK's client when it is first called."""

    bucket: str
    prefix: str
    client: Callable[[], S3Client]
    attempts: Attempts
    deadlines: Deadlines
    clock: Clock

    def full_key(self, key: str) -> str:
        """The key in the bucket."""
        return self.prefix + key

    def own_key(self, full_key: str) -> str:
        """The key as our callers know it."""
        return full_key[len(self.prefix) :]

    def listed_key(self, full_key: str, *, below: str) -> str:
        """`own_key` of a listing. Raises TierUnavailable unless it begins as was asked for.

        What is listed may be deleted next: a name of somebody else's must not become one of ours.
        """
        if not full_key.startswith(self.prefix + below):
            raise TierUnavailable(below, "list", f"{full_key!r} is listed and is not below it")
        return self.own_key(full_key)

    def listed_info(self, found: ObjectTypeDef, *, below: str) -> ObjectInfo:
        """What a listing says of one object; not every server names an etag or a time in it.

        Raises TierUnavailable for one without a name or a size: nothing can be said of it.
        """
        check_listed(found, "Key", "Size", operation="list", prefix=below)
        modified = found.get("LastModified")
        return ObjectInfo(
            key=self.listed_key(found["Key"], below=below),
            size_bytes=found["Size"],
            etag=found.get("ETag", ""),
            modified_ms=AGE_UNKNOWN if modified is None else int(modified.timestamp() * 1000),
        )

    def head(self, key: str) -> HeadObjectOutputTypeDef:
        """One attempt at a HEAD, with whatever the SDK raises."""
        return self.client().head_object(
            Bucket=self.bucket, Key=self.full_key(key), ChecksumMode="ENABLED"
        )


def check_listed(
    found: Mapping[str, object], *names: str, operation: str, prefix: str = ""
) -> None:
    """Raises TierUnavailable if a listing leaves out of something what it is about."""
    missing = [name for name in names if name not in found]
    if missing:
        raise TierUnavailable(
            prefix, operation, f"no listing of an S3: without {missing[0]} in {dict(found)}"
        )


def info_of(key: str, answer: HeadObjectOutputTypeDef | GetObjectOutputTypeDef) -> ObjectInfo:
    """What an answer to HEAD or GET says about the object. Raises TierUnavailable if too little."""
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
        # Of a proxy's own, perhaps: no S3 leaves these out.
        raise TierUnavailable(key, "read", f"no answer of an S3: without a good {error}") from error


def info_of_body(key: str, answer: GetObjectOutputTypeDef) -> ObjectInfo:
    """`info_of` for who reads the body next. Raises ObjectCorrupt if that claims too much, too."""
    try:
        info = info_of(key, answer)
        if info.size_bytes > OBJECT_BYTES_MAX:
            raise ObjectCorrupt(key, "get", f"has {info.size_bytes} bytes, by its header")
    except TierError:
        answer["Body"].close()
        raise
    return info


def date_of(answer: HeadBucketOutputTypeDef) -> TimestampMs | None:
    """When the server gave the answer, by its own clock; None if it does not say."""
    stated = answer["ResponseMetadata"]["HTTPHeaders"].get("date", "")
    try:
        return int(parsedate_to_datetime(stated).timestamp() * 1000)
    except ValueError:
        return None


def crc_of(answer: HeadObjectOutputTypeDef | GetObjectOutputTypeDef) -> int | None:
    """The server's own CRC-32C of the whole object; None if it keeps none."""
    encoded = answer.get("ChecksumCRC32C", "")
    # That of an upload in parts is a checksum of their checksums, unless it says otherwise. Not
    # every server marks it, but the etag of such an object ends in the number of parts everywhere.
    stated_type: str = answer.get("ChecksumType", "")
    is_whole = stated_type == "FULL_OBJECT" or (not stated_type and "-" not in answer["ETag"])
    if encoded and is_whole and "-" not in encoded:
        return int.from_bytes(base64.b64decode(encoded), "big")
    return None


def noted_crc_of(answer: HeadObjectOutputTypeDef | GetObjectOutputTypeDef) -> int | None:
    """The CRC-32C that we wrote beside the object."""
    recorded = answer["Metadata"].get(CRC32C_FIELD)
    try:
        return None if recorded is None else int(recorded, 16)
    except ValueError:
        return None
