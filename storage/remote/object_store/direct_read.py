"""How ranges of an object are read past the store: by another process, or out of its file.

A `DirectRead` says where the bytes lie and how long to wait for them, to somebody without a store,
an SDK or credentials. It is good for the case in which all goes well; whatever else happens is left
to the store, which knows what errors mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from strandline.storage.files import OpenFile


class DirectRead(NamedTuple):
    """An http or https URL that carries its own authorization, or the path of a file.

    `ca_file` is what an https server's certificate is checked against; empty for the system's own.
    `connect_s` and `read_s` are silence on a socket, `request_s` is the whole of one range.
    """

    url: str = ""
    path: str = ""
    ca_file: str = ""
    connect_s: float = 2.0
    read_s: float = 10.0
    request_s: float = 30.0


@runtime_checkable
class ReadsDirectly(Protocol):
    """A store whose objects can be read by another process."""

    def direct_read(self, key: str) -> DirectRead | None:
        """None if only the store itself can read this object. Blocks; contacts nobody but those
        who give credentials. Raises what they raise.
        """
        ...

    def note_direct_read(self, size_bytes: int) -> None:
        """Counts a request that was made on the store's behalf."""
        ...


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
