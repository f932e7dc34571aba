"""Signed URLs of many objects: the first by s3fs, and those like it without (`s3_signing`).

A plan has one for each object that tasks read, and the SDK takes a quarter of a millisecond for
each: it was the larger half of planning. What a URL has to look like is still the SDK's to say:
where the same key, time and credentials do not give its URL to the last byte, it signs them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strandline.storage.clock import SystemClock
from strandline.storage.remote.s3.signing import Secrets, UrlSigner


def signed_urls(file_system: Any, paths: Sequence[str], valid_s: int) -> list[str]:
    """URLs of objects of one bucket, in the order of `paths`; raises what s3fs raises.

    Everything is done in the thread of its loop: one way there and back for all.
    """
    from fsspec.asyn import sync

    urls: list[str] = sync(file_system.loop, _all_signed, file_system, paths, valid_s)
    return urls


async def _all_signed(file_system: Any, paths: Sequence[str], valid_s: int) -> list[str]:
    first: str = await file_system._url(paths[0], expires=valid_s)  # noqa: SLF001
    keys = [file_system.split_path(path)[1] for path in paths]
    secrets = await _secrets(file_system, paths[0]) if len(paths) > 1 else None
    signer = None if secrets is None else UrlSigner.like(first, keys[0], secrets)
    if secrets is None or signer is None:
        rest = [
            await file_system._url(path, expires=valid_s)  # noqa: SLF001
            for path in paths[1:]
        ]
    else:
        now_ms = SystemClock().now_ms()
        rest = [signer.url(key, secrets, now_ms) for key in keys[1:]]
    return [first, *rest]


async def _secrets(file_system: Any, path: str) -> Secrets | None:
    """What s3fs signs with now. None without credentials, or where the SDK keeps them elsewhere."""
    client = await file_system.get_s3(file_system.split_path(path)[0])
    credentials = getattr(getattr(client, "_request_signer", None), "_credentials", None)
    if credentials is None:
        return None
    secrets: Secrets = await credentials.get_frozen_credentials()
    return secrets
