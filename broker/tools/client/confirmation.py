"""Asks for confirmation before an action that cannot be undone."""

from __future__ import annotations

import sys

from strandline.broker.tools.client.failures import ToolFailure, WrongUse

# A whole word, so that a slip of the finger confirms nothing.
WORD = "yes"


def confirm(what: str, *, yes: bool) -> None:
    """Returns if the action shown as `what` is confirmed: by --yes, or by an answer.

    Raises WrongUse where no terminal can be asked, ToolFailure if the answer is another.
    """
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise WrongUse(f"nothing was done yet: {what}", remedy="add --yes to do it")
    sys.stderr.write(f"{what}; type {WORD} to do it: ")
    sys.stderr.flush()
    if sys.stdin.readline().strip() != WORD:
        raise ToolFailure("nothing was done")
