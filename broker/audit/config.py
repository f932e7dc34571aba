"""Properties of the record."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.storage.config.definition import STRING, key


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditConfig:
    """Where the record goes."""

    file: str | None = key(
        "strandline.audit.file",
        STRING,
        None,
        "File to which the broker appends the record of logins, denials, changes, and the bytes"
        " that each user read and wrote: JSON, an object a line. `-`: standard error. A file that"
        " was renamed is made again, as logrotate wants it. Unset: no record.",
    )
