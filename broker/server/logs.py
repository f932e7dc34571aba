"""Format of log lines: one event per line, constant text first, fields after it.

    2026-01-31T12:00:00.123Z WARNING storage.tiering.manager segment not archived partition=a-0 ...

Modules write `log.warning("event", extra={"fields": {...}})`. Values with spaces are quoted, and
unprintable characters are escaped, so that data from a client or a bucket cannot forge a line or
steer a terminal. Very long values are cut: a group's name may have 32,767 characters.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping

_PACKAGE = "strandline."

# Longer than every reason that is worth reading, with its request and the store's own words.
FIELD_CHARACTERS_MAX = 2000


class FieldFormatter(logging.Formatter):
    """Renders `extra={"fields": {...}}` as key=value pairs."""

    def __init__(self, process: str = "") -> None:
        super().__init__()
        self._process = f" [{process}]" if process else ""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        parts = [
            f"{stamp}.{int(record.msecs):03d}Z{self._process}",
            record.levelname,
            record.name.removeprefix(_PACKAGE),
            record.getMessage(),
        ]
        fields = getattr(record, "fields", None)
        if isinstance(fields, Mapping):
            parts += [f"{name}={_quoted(value)}" for name, value in fields.items()]
        line = " ".join(parts)
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


# Characters that a value has only in quotes.
_QUOTED_FOR = frozenset(' "=')


def _quoted(value: object) -> str:
    text = str(value)
    if len(text) > FIELD_CHARACTERS_MAX:
        text = f"{text[:FIELD_CHARACTERS_MAX]}... ({len(text)} characters)"
    if text and text.isprintable() and _QUOTED_FOR.isdisjoint(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    if not escaped.isprintable():
        escaped = "".join(one if one.isprintable() else _escaped(one) for one in escaped)
    return f'"{escaped}"'


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def set_up_logging(level: str, *, process: str = "") -> None:
    """Sends everything to standard error; standard output belongs to the ready line.

    `process` is told after the time, where several write to one log.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(FieldFormatter(process))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("strandline").setLevel(level)
