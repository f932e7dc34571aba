"""Errors of tables, by what the caller does about them."""

from __future__ import annotations

from strandline.storage.errors import InvalidConfig, StorageError


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
