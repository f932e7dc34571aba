"""Java properties files, as Kafka's `server.properties` is written.

    # comment            ! comment
    key=value            key: value           key value
    key = one, \\
          two            a backslash at the end joins the next line, without its indentation
    key=a\\tb\\u00e9       \\t \\n \\r \\f \\uXXXX; any other escaped character stands for itself

Differences from Java, both on purpose: the file is UTF-8 (Java reads Latin-1 and asks for \\u
escapes), and each entry remembers its line, so that an error can name it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from strandline.storage.errors import InvalidConfig

# A settings file is a few KiB; a larger one is a different file given by mistake.
PROPERTIES_BYTES_MAX = 1024 * 1024

_BLANKS = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_UNICODE = re.compile(r"[0-9a-fA-F]{4}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Property:
    """One entry; `origin` is where it was read, for messages."""

    key: str
    value: str
    origin: str


def read_properties(path: Path) -> list[Property]:
    """Returns all entries of a file in order, repeated keys included. Raises InvalidConfig."""
    try:
        with path.open("rb") as file:
            content = file.read(PROPERTIES_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidConfig(f"cannot read configuration {path}: {error.strerror}") from error
    if len(content) > PROPERTIES_BYTES_MAX:
        raise InvalidConfig(
            f"configuration {path} is larger than {PROPERTIES_BYTES_MAX} bytes: is it the right"
            " file?"
        )
    try:
        # Editors of Windows begin a file with a byte order mark.
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidConfig(f"configuration {path} is not UTF-8: {error.reason}") from error
    if text.lstrip().startswith(("{", "[")):
        raise InvalidConfig(f"configuration {path} is JSON; expected lines of key=value")
    return parse_properties(text, name=str(path))


def parse_properties(text: str, *, name: str) -> list[Property]:
    """Parses the entries of `text`; `name` is the source in messages. Raises InvalidConfig."""
    return [
        _parse_entry(line, origin=f"{name} line {number}") for number, line in _logical_lines(text)
    ]


def parse_override(text: str) -> Property:
    """Parses a `key=value` of the command line: without escapes, as a shell has its own.

    Raises InvalidConfig if there is no `=` or no key.
    """
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise InvalidConfig(f"--set {text!r}: expected key=value")
    return Property(key=key.strip(), value=value.strip(), origin="--set")


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Joined lines with the number of their first one, without comments and blank lines."""
    joined, first_number = "", 0
    for number, raw in enumerate(re.split(r"\r\n|\r|\n", text), start=1):
        line = raw.lstrip(_BLANKS)
        if not joined:
            # A comment never continues, whatever it ends with.
            if not line or line[0] in "#!":
                continue
            first_number = number
        if _ends_in_open_backslash(line):
            joined += line[:-1]
            # An entry of a single backslash must still count as started.
            joined = joined or " "
            continue
        yield first_number, joined + line
        joined = ""
    if joined.strip(_BLANKS):
        yield first_number, joined


def _ends_in_open_backslash(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _parse_entry(line: str, *, origin: str) -> Property:
    line = line.lstrip(_BLANKS)
    end = 0
    while end < len(line) and line[end] not in "=:" + _BLANKS:
        end += 2 if line[end] == "\\" else 1
    rest = line[end:].lstrip(_BLANKS)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANKS)
    key = _unescape(line[:end], origin)
    if not key:
        raise InvalidConfig(f"{origin}: an entry without a key: {line!r}")
    value = _unescape(rest, origin)
    if "\0" in key or "\0" in value:
        raise InvalidConfig(f"{origin}: a NUL, which no name and no number holds")
    return Property(key=key, value=value, origin=origin)


def _unescape(text: str, origin: str) -> str:
    if "\\" not in text:
        return text
    parts, position = [], 0
    while position < len(text):
        character = text[position]
        if character != "\\":
            parts.append(character)
            position += 1
            continue
        escaped = text[position + 1 : position + 2]
        if escaped == "u":
            digits = _UNICODE.match(text, position + 2)
            if digits is None:
                raise InvalidConfig(f"{origin}: \\u needs four hexadecimal digits")
            parts.append(chr(int(digits.group(), 16)))
            position += 6
        else:
            parts.append(_ESCAPES.get(escaped, escaped))
            position += 2
    try:
        # Java escapes characters beyond 16 bits as two surrogates.
        return "".join(parts).encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError as error:
        raise InvalidConfig(f"{origin}: half of a pair of surrogates escaped with \\u") from error
