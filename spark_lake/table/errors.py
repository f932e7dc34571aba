"""Errors of tables, by what the caller does about them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from strandline.storage.errors import AccessDenied, InvalidConfig, StorageError, StrandlineError

# Refused credentials: of pyiceberg and boto3 by class; in the text of pyarrow, deltalake, AWS, and
# the drivers of Postgres, whose errors have no code before there is a connection.
_DENIED_CLASSES = (
    "UnauthorizedError",
    "ForbiddenError",
    "OAuthError",
    "NoCredentialsError",
    "PartialCredentialsError",
)
_DENIED_TEXTS = (
    "ACCESS_DENIED",
    "401 Unauthorized",
    "403 Forbidden",
    "AccessDenied",
    "UnrecognizedClient",
    "password authentication failed",
    "no password supplied",
    "InsufficientPrivilege",
)
# deltalake colours its errors.
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


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


def failed(what: str, place: str, error: Exception) -> StorageError:
    """The error for what a library, a catalog or a store raised, in one line.

    AccessDenied, which no waiting makes better, or TableUnavailable.
    """
    said = f"{type(error).__name__}: {' '.join(_COLOUR.sub('', str(error)).split())}"
    is_denied = type(error).__name__ in _DENIED_CLASSES or any(one in said for one in _DENIED_TEXTS)
    if is_denied or isinstance(error, PermissionError):
        return AccessDenied(place, what, f"{said}; check the credentials and their rights")
    return TableUnavailable(f"cannot {what} {place}: {said}")


@contextmanager
def naming_table(name: str, what: str) -> Iterator[None]:
    """Turns the errors of libraries, catalogs and stores into one that names the table."""
    try:
        yield
    except StrandlineError:
        raise
    except Exception as error:
        raise failed(what, f"table {name}", error) from error
