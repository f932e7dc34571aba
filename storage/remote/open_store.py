"""Opens the object store at a URL."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from strandline.storage.clock import Clock, SystemClock
from strandline.storage.errors import InvalidConfig
from strandline.storage.remote.ca_file import check_ca_file
from strandline.storage.remote.object_store.interface import Deadlines, ObjectStore
from strandline.storage.remote.object_store.local_directory import LocalDirectoryStore
from strandline.storage.urls import check_no_password

# What the SDK takes: S3 was less strict once than it is for new buckets.
_BUCKET = re.compile(r"[A-Za-z0-9._-]{1,255}|arn:\S+")


def open_store(
    url: str,
    *,
    endpoint_url: str | None = None,
    region: str | None = None,
    ca_file: str | None = None,
    deadlines: Deadlines | None = None,
    clock: Clock | None = None,
) -> ObjectStore:
    """Returns the store at `s3://bucket/prefix` or `file:///folder`.

    `ca_file` has the authorities, in PEM, that a server of S3 is trusted by; without it those of
    AWS_CA_BUNDLE, or of the SDK. Opening contacts no server: call `check()` for that. Raises
    InvalidConfig for any other URL, and for a file that has no certificates.
    """
    check_no_password("object store URL", url)
    check_no_password("endpoint URL of S3", endpoint_url or "")
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise InvalidConfig(f"object store URL {url!r}: {error}") from None
    if parts.query or parts.fragment:
        raise InvalidConfig(
            f"object store URL {url!r} has a query or a fragment; write %3F for a question mark"
            " of a name, and %23 for a number sign"
        )
    path = unquote(parts.path)
    match parts.scheme:
        case "s3" | "s3a" | "s3n":
            if not parts.netloc:
                raise InvalidConfig(f"object store URL {url!r} names no bucket")
            if not _BUCKET.fullmatch(parts.netloc):
                raise InvalidConfig(
                    f"object store URL {url!r}: the name of a bucket has letters, digits, dots,"
                    " hyphens and underscores, 255 at most"
                )
            check_ca_file(ca_file)
            # boto3 takes 0.2 s to load, which a broker without a remote tier does not need.
            from strandline.storage.remote.s3.store import S3Store

            return S3Store(
                bucket=parts.netloc,
                prefix=path.strip("/"),
                endpoint_url=endpoint_url,
                region=region,
                ca_file=ca_file,
                deadlines=deadlines or Deadlines(),
                clock=clock or SystemClock(),
            )
        case "file":
            if parts.netloc not in ("", "localhost") or not path.strip("/"):
                raise InvalidConfig(
                    f"object store URL {url!r}: a folder is written file:///absolute/folder"
                )
            return LocalDirectoryStore(Path(path), clock=clock or SystemClock())
        case _:
            raise InvalidConfig(
                f"object store URL {url!r} is neither s3://bucket/prefix nor file:///folder"
            )
