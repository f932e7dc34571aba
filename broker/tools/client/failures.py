"""Errors of the tools: the reason on one line, the remedy on the next."""

from __future__ import annotations

from strandline.storage.errors import StrandlineError


class ToolFailure(StrandlineError):
    """The cluster, or the connection to it, failed; exit code 1."""

    def __init__(self, what: str, *, remedy: str = "") -> None:
        super().__init__(f"{what}\n  {remedy}" if remedy else what)


class WrongUse(ToolFailure):
    """The command line is invalid; exit code 2."""
