"""Client of a schema registry with Confluent's interface.

    value   0x00 | schema id u32 | payload

    GET /subjects/<subject>/versions/latest        the reader's schema
    GET /schemas/ids/<id>                          the writer's schema of a value
    GET /subjects/<subject>/versions/<version>     a schema that they refer to

The schema of an id or of a version never changes, so each process fetches it once.
"""

from __future__ import annotations

import base64
import binascii
import http
import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from functools import lru_cache
from typing import IO

from strandline.storage.clock import SystemClock
from strandline.storage.errors import AccessDenied, InvalidConfig, TierUnavailable

# Limits of each wait for bytes, and of a whole answer: a slow trickle would block a task forever.
TIMEOUT_S = 10.0
ANSWER_S_MAX = 30.0
ATTEMPTS_MAX = 3
# No schema is larger.
ANSWER_BYTES_MAX = 16 * 1024 * 1024
FRAME_BYTES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A reference of a schema to another one of the registry, with its name there."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredSchema:
    """A schema of the registry; `kind` is AVRO, PROTOBUF or JSON."""

    kind: str
    text: str
    references: tuple[Reference, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """Client of one registry; picklable."""

    url: str
    auth: str | None = field(default=None, repr=False)  # user:password

    def latest(self, subject: str, *, serialized: bool = False) -> RegisteredSchema:
        """The latest schema. Raises InvalidConfig if unknown, TierUnavailable, AccessDenied."""
        return self.fetch(_version_path(subject, "latest"), serialized=serialized)

    def version(self, subject: str, version: int, *, serialized: bool = False) -> RegisteredSchema:
        """Returns a given version of a subject, kept for this process; raises the same."""
        return _fetch_once(self, _version_path(subject, str(version)), serialized=serialized)

    def by_id(self, schema_id: int, *, serialized: bool = False) -> RegisteredSchema:
        """Returns the schema with this id, kept for this process; raises the same."""
        return _fetch_once(self, f"/schemas/ids/{schema_id}", serialized=serialized)

    def fetch(self, path: str, *, serialized: bool) -> RegisteredSchema:
        """Fetches a schema, with retries; raises the same."""
        url = self.url.rstrip("/") + path + ("?format=serialized" if serialized else "")
        request = urllib.request.Request(url, headers={"Accept": "application/json"})
        if self.auth:
            credentials = base64.b64encode(self.auth.encode()).decode()
            request.add_header("Authorization", f"Basic {credentials}")
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                with _OPENER.open(request, timeout=TIMEOUT_S) as response:
                    return _registered(json.loads(_body(response)))
            except urllib.error.HTTPError as error:
                if error.code in (401, 403):
                    raise AccessDenied(
                        url, "read", "set option schemaRegistry.userPassword to user:password"
                    ) from error
                if error.code == 404:
                    raise InvalidConfig(
                        f"the schema registry has no {path}: see the options schemaRegistry.url"
                        " and valueSubject"
                    ) from error
                if serialized and error.code == http.HTTPStatus.INTERNAL_SERVER_ERROR:
                    # Apicurio fails to serialize a file that was registered in this form, and
                    # returns it so to whoever does not ask for a form.
                    registered = self.fetch(path, serialized=False)
                    if _is_serialized(registered.text):
                        return registered
                if attempt == ATTEMPTS_MAX:
                    raise TierUnavailable(url, "read", f"HTTP {error.code}") from error
            except _NO_ANSWER as error:
                if attempt == ATTEMPTS_MAX:
                    raise TierUnavailable(
                        url, "read", f"{type(error).__name__}: {error}"
                    ) from error
        raise AssertionError(url)


class _SameHost(urllib.request.HTTPRedirectHandler):
    """Redirect handler that stays within a host: another would get the password."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        """Raises InvalidConfig for another host."""
        if urllib.parse.urlsplit(newurl)[:2] != urllib.parse.urlsplit(req.full_url)[:2]:
            raise InvalidConfig(
                f"the schema registry sends {req.full_url} on to {newurl}: give what answers there"
                " as schemaRegistry.url"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


_OPENER = urllib.request.build_opener(_SameHost)
# Errors of a registry that is away or cut off, or of a server that is no registry.
_NO_ANSWER = (OSError, http.client.HTTPException, ValueError, TypeError, RecursionError)
_READ_BYTES = 64 * 1024


def _body(response: http.client.HTTPResponse) -> bytes:
    """The whole body. Raises TimeoutError, ValueError if it is too long, or a socket's error."""
    clock = SystemClock()
    deadline_s = clock.monotonic_s() + ANSWER_S_MAX
    content = bytearray()
    while part := response.read1(_READ_BYTES):
        content += part
        if len(content) > ANSWER_BYTES_MAX:
            raise ValueError(f"the answer is longer than {ANSWER_BYTES_MAX} bytes")
        if clock.monotonic_s() > deadline_s:
            raise TimeoutError(f"the answer did not end within {ANSWER_S_MAX:.0f} s")
    if response.length:
        raise http.client.IncompleteRead(bytes(content), response.length)
    return bytes(content)


def _version_path(subject: str, version: str) -> str:
    return f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/{version}"


def _registered(answer: object) -> RegisteredSchema:
    """Parses an answer. Raises ValueError or TypeError if it is no registry's."""
    if not isinstance(answer, dict) or not isinstance(answer.get("schema"), str):
        raise ValueError("the answer has no schema: is this a schema registry?")
    return RegisteredSchema(
        kind=answer.get("schemaType") or "AVRO",
        text=answer["schema"],
        references=tuple(map(_reference, answer.get("references") or ())),
    )


def _is_serialized(text: str) -> bool:
    """Whether a schema of Protobuf is a file in base64, and not its source."""
    try:
        return bool(base64.b64decode(text, validate=True))
    except binascii.Error:
        return False


def _reference(one: object) -> Reference:
    match one:
        case {"name": str(name), "subject": str(subject), "version": int(version)}:
            return Reference(name=name, subject=subject, version=version)
    raise ValueError(f"the answer refers to {one!r}: is this a schema registry?")


# Schemas are few and small; beyond this number they are fetched again.
@lru_cache(maxsize=1000)
def _fetch_once(registry: Registry, path: str, *, serialized: bool) -> RegisteredSchema:
    return registry.fetch(path, serialized=serialized)
