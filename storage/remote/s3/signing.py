"""Signed URLs of one bucket's objects, without the SDK from the second on. Pure.

A cold read needs two for each segment, and the SDK takes half a millisecond for each: it resolves
the endpoint and runs its events anew. What differs between two URLs is a path, a time and a hash:

    http://host[/bucket]/KEY?X-Amz-Algorithm=..&X-Amz-Credential=..&X-Amz-Date=TIME&X-Amz-Expires=..
                            &X-Amz-SignedHeaders=host[&X-Amz-Security-Token=..]&X-Amz-Signature=HASH

What a URL has to look like is not decided here. The SDK signs the first one, and only if the same
key, time and credentials give the same URL here, to the last byte, are others made here too.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol
from urllib.parse import quote, urlsplit

from strandline.storage.model import TimestampMs

ALGORITHM = "AWS4-HMAC-SHA256"
_DATE = re.compile(r"[?&]X-Amz-Date=(\d{8}T\d{6}Z)")
_SCOPE = re.compile(r"[?&]X-Amz-Credential=[^&]*?%2F\d{8}%2F([^&]*)")
_EXPIRES = re.compile(r"[?&]X-Amz-Expires=(\d+)")


class Secrets(Protocol):
    """Credentials of one moment; the SDK's frozen ones."""

    @property
    def access_key(self) -> str | None: ...
    @property
    def secret_key(self) -> str | None: ...
    @property
    def token(self) -> str | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlSigner:
    """Signs GETs as `example` was signed; see `like`."""

    # Everything before the key.
    base: str
    # What follows the date in the scope of a signature: region, service and a constant.
    scope: tuple[str, ...]
    valid_s: str

    @classmethod
    def like(cls, example: str, key: str, secrets: Secrets) -> UrlSigner | None:
        """A signer of URLs like `example`, which the SDK made for `key`; None if they would not be
        the same.
        """
        url, _, _ = example.partition("?")
        quoted = _quoted_key(key)
        dated, scoped, expires = (found.search(example) for found in (_DATE, _SCOPE, _EXPIRES))
        if not (dated and scoped and expires and url.endswith("/" + quoted)):
            return None
        signer = cls(
            base=url[: -len(quoted)],
            scope=tuple(scoped[1].split("%2F")),
            valid_s=expires[1],
        )
        return signer if signer._signed(key, secrets, dated[1]) == example else None

    def url(self, key: str, secrets: Secrets, now_ms: TimestampMs) -> str:
        """The URL of `key`, good from now on."""
        now = datetime.fromtimestamp(now_ms / 1000, UTC)
        return self._signed(key, secrets, now.strftime("%Y%m%dT%H%M%SZ"))

    def _signed(self, key: str, secrets: Secrets, time: str) -> str:
        scope = (time[:8], *self.scope)
        fields = [
            ("X-Amz-Algorithm", ALGORITHM),
            ("X-Amz-Credential", "/".join((secrets.access_key or "", *scope))),
            ("X-Amz-Date", time),
            ("X-Amz-Expires", self.valid_s),
            ("X-Amz-SignedHeaders", "host"),
        ]
        if secrets.token:
            fields.append(("X-Amz-Security-Token", secrets.token))
        encoded = [f"{name}={quote(value, safe='')}" for name, value in fields]
        url = self.base + _quoted_key(key)
        parts = urlsplit(url)
        request = "\n".join(
            ("GET", parts.path, "&".join(sorted(encoded)), f"host:{parts.netloc}", "", "host")
        )
        digest = hashlib.sha256(f"{request}\nUNSIGNED-PAYLOAD".encode()).hexdigest()
        signing_key = f"AWS4{secrets.secret_key}".encode()
        for part in scope:
            signing_key = _hmac(signing_key, part).digest()
        signature = _hmac(signing_key, "\n".join((ALGORITHM, time, "/".join(scope), digest)))
        return f"{url}?{'&'.join(encoded)}&X-Amz-Signature={signature.hexdigest()}"


def _quoted_key(key: str) -> str:
    return quote(key, safe="/~")


def _hmac(key: bytes, text: str) -> hmac.HMAC:
    return hmac.new(key, text.encode(), hashlib.sha256)
