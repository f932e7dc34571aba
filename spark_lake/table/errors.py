"""Errors of tables, by what the caller does about them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from strandline.storage.errors import InvalidConfig, StorageError, StrandlineError


class TableUnavailable(StorageError):
    """The catalog or the table's store does not answer; a later run goes on from there."""


class TaskFailed(StorageError):
    """A task of Spark failed as often as Spark repeats it; nothing of its round is committed."""


class TableRefused(InvalidConfig):
    """The table cannot take these rows: another topic, schema or layout. Nothing was written."""


class CommitConflict(Exception):
    """Another commit came first: this one did not land, unless a retry below hides that it did."""


class CommitUnknown(Exception):
    """The answer to a commit was lost; it landed, or did not, or may land yet."""


class FilesOutdated(Exception):
    """The table's partitioning changed after the files were written; they must be made anew."""


@contextmanager
def naming_table(name: str, what: str) -> Iterator[None]:
    """Turns the errors of libraries, catalogs and stores into one that names the table."""
    try:
        yield
    except StrandlineError:
        raise
    except Exception as error:
        raise TableUnavailable(
            f"cannot {what} table {name}: {type(error).__name__}: {error}"
        ) from error
