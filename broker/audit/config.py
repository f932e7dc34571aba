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
    topic: str | None = key(
        "strandline.audit.topic",
        STRING,
        None,
        "Topic to which the broker appends the same record, a line a record. It makes the topic,"
        " with one partition, and no client can write it. Unset: none.",
    )

    @property
    def is_enabled(self) -> bool:
        return self.file is not None or self.topic is not None
