"""Converts records to text and back: a line for people, a JSON object for programs.

The JSON of a record is what `consume --json` writes and `produce --json` reads, so a topic can be
copied through a pipe. Bytes that are not UTF-8 have their own member, so nothing is lost:

    {"key": "k", "value": "v", "headers": [{"name": "h", "value": "x"}]}
    {"key": null, "value_base64": "/wA="}

Lines for people have no control characters: a record must not control a terminal.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from strandline.broker.tools.client.failures import WrongUse
from strandline.broker.tools.client.printing import Json, is_utf8, printable, utc_text
from strandline.broker.tools.client.timestamps import LAST_MOMENT_MS
from strandline.storage.model import NO_TIMESTAMP, TimestampMs
from strandline.storage.plurals import counted

# The members that `consume --json` writes.
_RECORD_MEMBERS = (
    *("topic", "partition", "offset", "timestamp", "headers"),
    *("key", "key_base64", "value", "value_base64"),
)
_HEADER_MEMBERS = ("name", "value", "value_base64")
# How many bytes of a binary value are shown.
HEX_BYTES_SHOWN = 32
_DIM, _CYAN, _YELLOW, _RESET = "\x1b[2m", "\x1b[36m", "\x1b[33m", "\x1b[0m"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRecord:
    """A record to be written; `timestamp_ms` None is the time of sending.

    `partition` is where its line says that it was: the target is chosen by options.
    """

    value: bytes | None
    partition: int | None = None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: TimestampMs | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRecord:
    """A record that was read."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: TimestampMs | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


# --- writing -----------------------------------------------------------------------------------


def line_of(record: ReadRecord, *, colours: bool) -> str:
    """Formats `flights-0@7  2013-01-01 05:17:00.000  key → value  {header=value}`."""
    dim, cyan, yellow, reset = (_DIM, _CYAN, _YELLOW, _RESET) if colours else ("", "", "", "")
    place = f"{record.topic}-{record.partition}@{record.offset}"
    when = "-" if record.timestamp_ms is None else utc_text(record.timestamp_ms)
    line = f"{cyan}{place}{reset}  {dim}{when}{reset}  "
    if record.key is not None:
        line += f"{yellow}{shown(record.key)}{reset} → "
    line += shown(record.value)
    if record.headers:
        listed = ", ".join(f"{shown(n.encode())}={shown(v)}" for n, v in record.headers)
        line += f"  {dim}{{{listed}}}{reset}"
    return line


def shown(content: bytes | None) -> str:
    """Text without control characters; `null`; the first bytes in hex if it is not text."""
    if content is None:
        return "null"
    try:
        text = content.decode()
    except UnicodeDecodeError:
        more = "…" if len(content) > HEX_BYTES_SHOWN else ""
        return f"<{counted(len(content), 'byte')} {content[:HEX_BYTES_SHOWN].hex()}{more}>"
    return printable(text)


def json_of(record: ReadRecord) -> str:
    """Formats one line of JSON."""
    document: dict[str, Json] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        **_member("key", record.key),
        **_member("value", record.value),
        "headers": [{"name": name, **_member("value", value)} for name, value in record.headers],
    }
    return json.dumps(document, ensure_ascii=False)


def _member(name: str, content: bytes | None) -> dict[str, Json]:
    if content is None:
        return {name: None}
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content).decode()}


# --- reading -----------------------------------------------------------------------------------


def record_of_json(line: bytes) -> NewRecord:
    """Parses a line, without its topic and offset. Raises WrongUse."""
    try:
        document = json.loads(line, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise WrongUse(f"a line is no JSON: {error}") from None
    if not isinstance(document, dict):
        raise WrongUse("a line is JSON, but no object with key and value")
    _check_members(document, _RECORD_MEMBERS)
    if not document.keys() & {"value", "value_base64"}:
        raise WrongUse('a line without a value; a tombstone is written as "value": null')
    timestamp = document.get("timestamp")
    headers = document.get("headers") or []
    if not isinstance(headers, list) or not all(isinstance(h, dict) for h in headers):
        raise WrongUse('headers are a list of {"name": ..., "value": ...}')
    for header in headers:
        _check_members(header, _HEADER_MEMBERS)
    if timestamp is not None and type(timestamp) is not int:
        raise WrongUse("a timestamp is a number of milliseconds")
    if timestamp is not None and timestamp > LAST_MOMENT_MS:
        raise WrongUse(f"a timestamp of {timestamp} ms is later than Kafka can tell")
    if timestamp is not None and timestamp < NO_TIMESTAMP:
        raise WrongUse(f"a timestamp of {timestamp} ms is before 1970, which Kafka cannot tell")
    return NewRecord(
        partition=_partition(document.get("partition")),
        key=_content(document, "key"),
        value=_content(document, "value"),
        headers=tuple((_checked(str(h.get("name", ""))), _content(h, "value")) for h in headers),
        timestamp_ms=None if timestamp == NO_TIMESTAMP else timestamp,
    )


def _unique(members: Sequence[tuple[str, object]]) -> dict[str, object]:
    """An object of JSON. Raises WrongUse for a member given twice, of which one would be lost."""
    document = dict(members)
    if len(document) < len(members):
        names = [name for name, _ in members]
        twice = next(name for name in names if names.count(name) > 1)
        raise WrongUse(f"the member {printable(twice)!r} is given twice")
    return document


def _partition(member: object) -> int | None:
    if member is not None and (type(member) is not int or member < 0):
        raise WrongUse(f"a partition is a number from 0, not {printable(json.dumps(member))}")
    return member


def _check_members(document: Mapping[str, object], known: Collection[str]) -> None:
    """Raises WrongUse for a member that has no meaning: a misspelt value would be no value."""
    for name in document:
        if name not in known:
            near = get_close_matches(name, known, 1)
            meant = f"; is {near[0]!r} meant?" if near else f"; there are {', '.join(known)}"
            raise WrongUse(f"unknown member {printable(name)!r}{meant}")


def _content(document: Mapping[str, object], name: str) -> bytes | None:
    if f"{name}_base64" in document:
        encoded = document[f"{name}_base64"]
        if document.get(name) is not None:
            raise WrongUse(f"both {name} and {name}_base64: write one of them")
        if not isinstance(encoded, str):
            raise WrongUse(f"{name}_base64 is no text")
        try:
            return base64.b64decode(encoded, validate=True)
        # Non-ASCII is a ValueError, and so is the library's own error.
        except ValueError:
            raise WrongUse(f"{name}_base64 is no base64") from None
    text = document.get(name)
    if text is None:
        return None
    # Users type numbers and objects for values; they are stored as their JSON.
    return _checked(text if isinstance(text, str) else json.dumps(text)).encode()


def _checked(text: str) -> str:
    if not is_utf8(text):
        raise WrongUse(f"{printable(text)} is not UTF-8: it has half of a pair of UTF-16")
    return text


def record_of_line(
    line: bytes, *, key_separator: bytes | None, parse_headers: bool, null_text: bytes | None
) -> NewRecord:
    """Parses `value`, `key SEP value` or `h1:v1,h2:v2 TAB ...`, as Kafka's console producer.

    Raises WrongUse when a separator is missing.
    """
    headers: tuple[tuple[str, bytes | None], ...] = ()
    key = None
    if parse_headers:
        head, tab, line = line.partition(b"\t")
        if not tab:
            raise WrongUse(f"no TAB behind the headers in {shown(head)!r}")
        headers = tuple(_header(part) for part in head.split(b",") if part)
    if key_separator is not None:
        key, found, line = line.partition(key_separator)
        if not found:
            raise WrongUse(f"no {shown(key_separator)!r} between key and value in {shown(key)!r}")
    if null_text is not None and key == null_text:
        key = None
    return NewRecord(key=key, value=None if line == null_text else line, headers=headers)


def _header(text: bytes) -> tuple[str, bytes | None]:
    name, colon, value = text.partition(b":")
    if not colon:
        raise WrongUse(f"header {shown(text)!r} is no name:value")
    return name.decode(errors="replace"), value
