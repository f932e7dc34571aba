"""Lists everything that a bucket stores and bills, with its storage class.

    versions    current and older versions of objects, and delete markers; a listing of objects
                does not show the older versions and the markers of a versioned bucket
    uploads     incomplete multipart uploads, with the bytes of their parts

Needs s3:ListBucketVersions and s3:ListBucketMultipartUploads besides a broker's permissions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strandline.storage.errors import ObjectNotFound, TierUnavailable
from strandline.storage.model import TimestampMs
from strandline.storage.remote.s3.access import S3Access, check_listed
from strandline.storage.remote.s3.uploads import begun_ms_of

if TYPE_CHECKING:
    from types_boto3_s3.type_defs import (
        ListObjectVersionsRequestTypeDef,
        ObjectTypeDef,
        ObjectVersionTypeDef,
    )

# The storage class of an object for which S3 states none.
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
    """A multipart upload neither completed nor aborted; `size_bytes` counts its parts so far."""

    key: str
    begun_ms: TimestampMs
    size_bytes: int


class S3Usage:
    """The objects, versions and incomplete uploads of one bucket below the archive's prefix."""

    def __init__(self, access: S3Access) -> None:
        self._access = access

    def objects(self) -> Iterator[ObjectVersion]:
        """Yields the current objects alone; a request per 1000. Raises what a store raises."""
        for page in self._access.object_pages(""):
            for found in page.get("Contents", []):
                yield self._version(found, is_current=True)

    def versions(self) -> Iterator[ObjectVersion]:
        """All versions, the current ones too; a request per 1000. Raises what a store raises."""
        access = self._access
        request: ListObjectVersionsRequestTypeDef = {
            "Bucket": access.bucket,
            "Prefix": access.prefix,
        }
        while True:
            page = access.send(
                "", "list_versions", lambda client: client.list_object_versions(**request)
            )
            for found in page.get("Versions", []):
                yield self._version(found, is_current=found.get("IsLatest", True))
            for gone in page.get("DeleteMarkers", []):
                check_listed(gone, "Key", operation="list_versions")
                yield ObjectVersion(
                    key=access.own_key(gone["Key"]),
                    size_bytes=0,
                    storage_class="",
                    is_current=False,
                    is_delete_marker=True,
                )
            if not page.get("IsTruncated") or "NextKeyMarker" not in page:
                return
            request["KeyMarker"] = page["NextKeyMarker"]
            request.pop("VersionIdMarker", None)
            if "NextVersionIdMarker" in page:
                request["VersionIdMarker"] = page["NextVersionIdMarker"]

    def unfinished_uploads(self) -> Iterator[UnfinishedUpload]:
        """A request per 1000 uploads, and one for each of them. Raises what a store raises."""
        for found in self._access.unfinished_uploads(""):
            yield UnfinishedUpload(
                key=self._access.own_key(found["Key"]),
                begun_ms=begun_ms_of(found),
                size_bytes=self._size_of_parts(found["Key"], found["UploadId"]),
            )

    def _version(
        self, found: ObjectTypeDef | ObjectVersionTypeDef, *, is_current: bool
    ) -> ObjectVersion:
        check_listed(found, "Key", "Size", operation="list")
        return ObjectVersion(
            key=self._access.own_key(found["Key"]),
            size_bytes=found["Size"],
            storage_class=found.get("StorageClass", DEFAULT_CLASS),
            is_current=is_current,
        )

    def _size_of_parts(self, full_key: str, upload_id: str) -> int:
        """Of the first 1000 parts; ours have fewer. 0 if the upload has ended meanwhile."""
        access = self._access
        try:
            parts = access.send(
                access.own_key(full_key),
                "list_parts",
                lambda client: client.list_parts(
                    Bucket=access.bucket, Key=full_key, UploadId=upload_id
                ),
            )
        except (ObjectNotFound, TierUnavailable):
            # What S3 says of an upload that has just ended counts as "may pass" here.
            return 0
        return sum(part.get("Size", 0) for part in parts.get("Parts", []))
