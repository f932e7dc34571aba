"""Rows of values that do not parse, in a second table, each once like those of the first.

    1 write the files of both tables
    2 commit the first table: its files, its offsets, and the names of the second table's files
    3 commit the second table: these files, and the number that the first one gave them

Step 2 decides for both tables. After a death behind it, the next sync does step 3 before all else:
the first table names files with a number that the second table lacks. Numbers grow by one, and no
commit of the first table replaces names that the second table lacks. So whoever does step 3, and
however often, the second table takes the files of a number once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from strandline.spark_lake.table.commit import CommitOutcome, commit_files
from strandline.spark_lake.table.errors import TableUnavailable
from strandline.spark_lake.table.offsets import COMMITS_KEPT, RejectedFiles, TableOffsets
from strandline.spark_lake.table.store import TableStore, WrittenFile

# A table's name and this is the name of its second table.
SUFFIX = "_rejected"


def settle(first: TableOffsets, second: TableStore, *, wait: Callable[[float], None]) -> None:
    """Step 3, if it was not done. Raises TableUnavailable.

    Does nothing if somebody has dropped the second table.
    """
    if not first.rejected.paths:
        return
    known = second.load()
    if known is None or known.rejected.number >= first.rejected.number:
        return
    number = first.rejected.number
    claimed = replace(
        known,
        rejected=RejectedFiles(number=number),
        commits=(f"rejected-{number}", *known.commits)[:COMMITS_KEPT],
    )
    files = second.reopen(first.rejected.paths)
    outcome = commit_files(second, files, base=known, claimed=claimed, wait=wait, discard=_keep)
    if outcome is CommitOutcome.LOST:
        raise TableUnavailable(
            f"table {second.name} changed while rejected rows were added: run again"
        )


def _keep(files: Sequence[WrittenFile]) -> None:
    """The first table names these files: they are not ours to delete."""
