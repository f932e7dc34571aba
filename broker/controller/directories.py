"""Log folders of brokers, by their ids (KIP-858): which are online, and which holds a replica."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from strandline.broker.protocol.formats.metadata_records import (
    LOST_DIRECTORY,
    MIGRATING_DIRECTORY,
    UNASSIGNED_DIRECTORY,
    RegisterBrokerRecord,
)

# Kafka reserves the first hundred ids.
_RESERVED = 100


def is_reserved(directory: uuid.UUID) -> bool:
    """Whether no folder may have that id."""
    return directory.int < _RESERVED


def is_online(broker: RegisterBrokerRecord | None, directory: uuid.UUID) -> bool:
    """Whether a replica in that folder can be reached; one whose folder is not known yet, can."""
    if broker is None:
        return False
    if not broker.log_dirs or directory in (UNASSIGNED_DIRECTORY, MIGRATING_DIRECTORY):
        return directory != LOST_DIRECTORY
    return directory in broker.log_dirs


def without(log_dirs: Iterable[uuid.UUID], gone: Iterable[uuid.UUID]) -> list[uuid.UUID]:
    """Returns the folders that are left."""
    offline = set(gone)
    return [directory for directory in log_dirs if directory not in offline]
