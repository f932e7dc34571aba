"""Presigned URLs for many objects of one bucket.

The SDK resolves the endpoint again for each URL, which takes seconds for ten thousand. So the SDK
creates the first URL, and its signer signs the others for the same host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, quote, urlsplit

if TYPE_CHECKING:
    from botocore.credentials import ReadOnlyCredentials


def urls_like(
    first: str,
    keys: Sequence[str],
    credentials: ReadOnlyCredentials | None,
    *,
    valid_s: int,
) -> list[str] | None:
    """Presigned URLs of `keys`; `first` is the SDK's URL of the first key.

    None if `first` was not signed with `credentials`: then the SDK has to sign each URL.
    """
    from botocore.auth import S3SigV4QueryAuth
    from botocore.awsrequest import AWSRequest

    access_key, *scope = parse_qs(urlsplit(first).query).get("X-Amz-Credential", [""])[0].split("/")
    if credentials is None or access_key != credentials.access_key:
        return None
    _, region, service, _ = scope
    auth = S3SigV4QueryAuth(credentials, service, region, expires=valid_s)
    quoted = [quote(key, safe="/~") for key in keys]
    base = first.partition("?")[0].removesuffix(quoted[0])
    requests = [AWSRequest(method="GET", url=base + one) for one in quoted[1:]]
    for request in requests:
        auth.add_auth(request)
    return [first, *(str(request.url) for request in requests)]
