"""What a bucket holds besides the objects that a listing shows, and what it bills them as.

    versions    objects with their storage class; older versions and delete markers, where the
                bucket keeps them: no listing of objects shows those, and they are paid for
    uploads     that were begun and neither completed nor aborted, with the bytes of their parts

Needs s3:ListBucketVersions and s3:ListBucketMultipartUploads beside what a broker needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from strandline.storage.errors import ObjectNotFound, TierUnavailable
from strandline.storage.model import TimestampMs
from strandline.storage.remote.s3_access import S3Access
from strandline.storage.values import dataclass

if TYPE_CHECKING:
    from types_boto3_s3.type_defs import ListMultipartUploadsRequestTypeDef

# What S3 calls the class of an object for which it names none.
DEFAULT_CLASS = "STANDARD"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectVersion:
    """One version of an object. A delete marker has no bytes and no class."""

    key: str
    size_bytes: int
    storage_class: str
    is_current: bool
    is_delete_marker: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedUpload:
    """An upload in parts that nobody has ended. `size_bytes` is what its parts have so far."""

    key: str
    begun_ms: TimestampMs
    size_bytes: int


class S3Usage:
    """One bucket below the archive's prefix."""

    def __init__(self, access: S3Access) -> None:
        self._access = access

    def objects(self) -> Iterator[ObjectVersion]:
        """The current objects alone; a request per 1000. Raises what a store raises."""
        access = self._access
        token = ""
        while True:
            more = {"ContinuationToken": token} if token else {}
            page = access.attempts.run(
                "",
                "list",
                lambda _, more=more: access.client().list_objects_v2(  # type: ignore[misc]
                    Bucket=access.bucket,
                    Prefix=access.prefix,
                    **more,
                ),
            )
            for found in page.get("Contents", []):
                yield ObjectVersion(
                    key=access.own_key(found["Key"]),
                    size_bytes=found["Size"],
                    storage_class=found.get("StorageClass", DEFAULT_CLASS),
                    is_current=True,
                )
            token = page.get("NextContinuationToken", "")
            if not page.get("IsTruncated") or not token:
                return

    def versions(self) -> Iterator[ObjectVersion]:
        """All versions, the current ones too; a request per 1000. Raises what a store raises."""
        access = self._access
        marker: dict[str, str] = {}
        while True:
            page = access.attempts.run(
                "",
                "list_versions",
                lambda _, marker=marker: access.client().list_object_versions(  # type: ignore[misc]
                    Bucket=access.bucket,
                    Prefix=access.prefix,
                    **marker,
                ),
            )
            for found in page.get("Versions", []):
                yield ObjectVersion(
                    key=access.own_key(found["Key"]),
                    size_bytes=found["Size"],
                    storage_class=found.get("StorageClass", DEFAULT_CLASS),
                    is_current=found["IsLatest"],
                )
            for gone in page.get("DeleteMarkers", []):
                yield ObjectVersion(
                    key=access.own_key(gone["Key"]),
                    size_bytes=0,
                    storage_class="",
                    is_current=False,
                    is_delete_marker=True,
                )
            if not page.get("IsTruncated") or "NextKeyMarker" not in page:
                return
            marker = {"KeyMarker": page["NextKeyMarker"]}
            if "NextVersionIdMarker" in page:
                marker["VersionIdMarker"] = page["NextVersionIdMarker"]

    def unfinished_uploads(self) -> Iterator[UnfinishedUpload]:
        """A request per 1000 uploads, and one for each of them. Raises what a store raises."""
        access = self._access
        request: ListMultipartUploadsRequestTypeDef = {
            "Bucket": access.bucket,
            "Prefix": access.prefix,
        }
        while True:
            page = access.attempts.run(
                "", "list_uploads", lambda _: access.client().list_multipart_uploads(**request)
            )
            for found in page.get("Uploads", []):
                yield UnfinishedUpload(
                    key=access.own_key(found["Key"]),
                    begun_ms=int(found["Initiated"].timestamp() * 1000),
                    size_bytes=self._size_of_parts(found["Key"], found["UploadId"]),
                )
            key_marker, id_marker = page.get("NextKeyMarker"), page.get("NextUploadIdMarker")
            if not page.get("IsTruncated") or not key_marker or not id_marker:
                return
            request["KeyMarker"], request["UploadIdMarker"] = key_marker, id_marker

    def _size_of_parts(self, full_key: str, upload_id: str) -> int:
        """Of the first 1000 parts; ours have fewer. 0 if the upload has ended meanwhile."""
        access = self._access
        try:
            parts = access.attempts.run(
                access.own_key(full_key),
                "list_parts",
                lambda _: access.client().list_parts(
                    Bucket=access.bucket, Key=full_key, UploadId=upload_id
                ),
            )
        except (ObjectNotFound, TierUnavailable):
            # What S3 says of an upload that has just ended counts as "may pass" here.
            return 0
        return sum(part["Size"] for part in parts.get("Parts", []))
