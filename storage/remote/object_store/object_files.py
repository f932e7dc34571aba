"""Stores whose objects are files of this machine: a reader may have the file itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from strandline.storage.files import OpenFile


@runtime_checkable
class KeepsFiles(Protocol):
    """A store whose objects are files of this machine, each written once and never changed."""

    @property
    def opens_files(self) -> bool:
        """Whether `open_file` is any use: a store around another may not know before."""
        ...

    def open_file(self, key: str) -> OpenFile:
        """The object's file. Blocks. Raises ObjectNotFound, AccessDenied or TierUnavailable."""
        ...
