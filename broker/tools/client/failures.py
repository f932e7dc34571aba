"""What went wrong, in one line, and what to do about it, in the next."""

from __future__ import annotations

from strandline.storage.errors import StrandlineError


class ToolFailure(StrandlineError):
    """The cluster, or the way to it, did not do what was asked; exit code 1."""

    def __init__(self, what: str, *, remedy: str = "") -> None:
        super().__init__(f"{what}\n  {remedy}" if remedy else what)


class WrongUse(ToolFailure):
    """The command line asks for something that cannot be meant; exit code 2."""
