"""The interface to the figures of fetch sessions."""

from __future__ import annotations

from typing import Protocol


class SessionFigures(Protocol):
    """The cache of fetch sessions as an exporter sees it."""

    @property
    def session_count(self) -> int: ...

    @property
    def partition_count(self) -> int: ...

    @property
    def evictions_total(self) -> int: ...
