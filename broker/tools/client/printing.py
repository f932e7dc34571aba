"""Prints lines for people and JSON for programs: one document, indented."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeAlias

from strandline.storage.model import TimestampMs

Json: TypeAlias = "str | int | float | bool | Sequence[Json] | Mapping[str, Json] | None"


def print_json(document: Json) -> None:
    """Prints JSON on standard output."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def say(line: str) -> None:
    """Prints one line of plain text on standard output."""
    sys.stdout.write("\n".join(map(printable, line.split("\n"))) + "\n")


def remark(line: str) -> None:
    """Prints one line on standard error, which pipes do not carry."""
    sys.stderr.write("\n".join(map(printable, line.split("\n"))) + "\n")


def utc_text(timestamp_ms: TimestampMs) -> str:
    """Formats `2013-01-01 10:00:00.000` in UTC; the bare number outside the calendar."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, tz=UTC)
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms} ms"
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{timestamp_ms % 1000:03d}"


def is_utf8(text: str) -> bool:
    """False if it has surrogates: from invalid UTF-8 of the command line, or from JSON."""
    return not any("\ud800" <= one <= "\udfff" for one in text)


def printable(value: object) -> str:
    """The text of a value without control characters: names of groups and clients are foreign."""
    text = str(value)
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one == "\t" else repr(one)[1:-1] for one in text)
