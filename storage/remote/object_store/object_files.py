"""The interface of stores whose objects are local files, which a reader can open directly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from strandline.storage.files import OpenFile


@runtime_checkable
class KeepsFiles(Protocol):
    """A store whose objects are local files, each written once and never changed."""

    @property
    def opens_files(self) -> bool:
        """Whether `open_file` works: a wrapper knows this only from the store inside."""

    def open_file(self, key: str) -> OpenFile:
        """The object's file. Blocks. Raises ObjectNotFound, AccessDenied or TierUnavailable."""
