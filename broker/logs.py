"""How log lines look: one event per line, constant text first, facts after it.

    2026-01-31T12:00:00.123Z WARNING storage.tiering.manager segment not archived partition=a-0 ...

Modules write `log.warning("event", extra={"fields": {...}})`. Values with spaces are quoted, and
line breaks are escaped, so that whatever a client or a bucket sent cannot forge a line.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping

_PACKAGE = "strandline."


class FieldFormatter(logging.Formatter):
    """Renders `extra={"fields": {...}}` as key=value pairs."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        parts = [
            f"{stamp}.{int(record.msecs):03d}Z",
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


def _quoted(value: object) -> str:
    text = str(value)
    if not text or any(character in text for character in ' "\n\r\t='):
        escaped = text.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + escaped.replace("\n", "\\n").replace("\r", "\\r") + '"'
    return text


def set_up_logging(level: str) -> None:
    """Sends everything to standard error; standard output belongs to the ready line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(FieldFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("strandline").setLevel(level)
