"""Whether a Delta table still has the rows of a commit, by the log of what came after it.

    version   4         5        6 RESTORE to 4   7         8 RESTORE to 5
              ours = 5: its rows are there at 5, not at 6 and 7, and at 8 again

A RESTORE is a commit like any other, and leaves transaction identifiers as they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

# Of others, after our newest commit; each is a request.
COMMITS_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """A RESTORE: the version that it made, and the one whose files it has."""

    version: int
    target: int


def rolled_back(
    head: int, app_id: str, number: int, entry_of: Callable[[int], bytes]
) -> int | None:
    """The version of the commit with this transaction, if the table does not come after it.

    `entry_of` returns a version's commit, as the log has it, or raises FileNotFoundError.

    None also if that cannot be told, because the log was cleaned up, or is too long.
    """
    restored: list[Restored] = []
    for version in range(head, max(-1, head - COMMITS_MAX), -1):
        try:
            lines = entry_of(version).splitlines()
        except FileNotFoundError:
            return None
        # A commit may name thousands of files.
        actions = [json.loads(one) for one in lines if b'"txn"' in one or b'"commitInfo"' in one]
        if any(_is_of(action.get("txn"), app_id, number) for action in actions):
            return version if state_of(head, restored) < version else None
        restored += [
            Restored(version=version, target=_target(action["commitInfo"]))
            for action in actions
            if action.get("commitInfo", {}).get("operation") == "RESTORE"
        ]
    return None


def state_of(head: int, restored: Sequence[Restored]) -> int:
    """The version whose rows `head` has; `restored` is in order, the newest one first."""
    state = head
    for one in restored:
        if one.version <= state:
            state = one.target
    return state


def _is_of(transaction: Any, app_id: str, number: int) -> bool:
    return (
        isinstance(transaction, dict)
        and transaction.get("appId") == app_id
        and transaction.get("version") == number
    )


def _target(info: Any) -> int:
    """Of a RESTORE to a time none: which version that was depends on clocks and time zones."""
    try:
        return int(info["operationParameters"]["version"])
    except (KeyError, TypeError, ValueError):
        return -1
