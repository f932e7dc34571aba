"""Maps S3's error codes to the store's errors: one table, no I/O.

The code takes precedence over the status, because statuses mislead: InvalidObjectState is a 403
but no permission problem, NoSuchUpload is a 404 but says nothing about the object. The response to
a HEAD has no body, so only its status is available.
"""

from __future__ import annotations

from http import HTTPStatus

from strandline.storage.errors import (
    AccessDenied,
    ObjectArchived,
    ObjectCorrupt,
    ObjectNotFound,
    PreconditionFailed,
    StoreFull,
    TierError,
    TierUnavailable,
)
from strandline.storage.remote.s3.attempts import Failure

_DENIED_CODES = frozenset(
    {
        "AccessDenied",
        "AccountProblem",
        "AllAccessDisabled",
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidToken",
        "SignatureDoesNotMatch",
    }
)
_PASSING_CODES = frozenset(
    {
        # Another conditional write is in progress: this one has neither won nor lost.
        "ConditionalRequestConflict",
        "IncompleteBody",
        "InternalError",
        "OperationAborted",
        "RequestTimeout",
        "RequestTimeoutException",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
    }
)
_PASSING_STATUSES = frozenset(
    {
        HTTPStatus.REQUEST_TIMEOUT,
        HTTPStatus.CONFLICT,
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.INTERNAL_SERVER_ERROR,
        HTTPStatus.BAD_GATEWAY,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.GATEWAY_TIMEOUT,
    }
)
# The received body does not match its checksum: it was damaged in transit, so it is sent again.
# The source itself was verified before.
_DAMAGED_CODES = frozenset({"BadDigest", "InvalidDigest", "XAmzContentChecksumMismatch"})

HOW_TO_THAW = (
    "it lies in an archive class: have S3 restore it (RestoreObject), and readers go on by"
    " themselves"
)
HOW_TO_MEND_A_CLOCK = (
    "the clock of this machine and the store's are too far apart: put it right, and it goes on"
)
# A file system's limit for one name; S3 only limits the whole key, to 1024 bytes.
FILE_NAME_BYTES_MAX = 255


def _hint_of_long_name(key: str, operation: str) -> str:
    """A hint for servers that store objects as files and report long names as internal errors."""
    longest = max(len(name.encode()) for name in key.split("/"))
    if operation != "put" or longest <= FILE_NAME_BYTES_MAX:
        return ""
    return (
        f"; a server that keeps objects as files may take no names of {longest} bytes in a key:"
        " there, topics that are archived may have names of 218 characters"
    )


def failure_of_code(code: str, status: int, key: str, operation: str, detail: str) -> Failure:
    """Classifies an error response; `status` is 0 for a code listed inside a 200 response."""
    if code == "InvalidObjectState":
        return Failure(ObjectArchived(key, operation, f"{detail}; {HOW_TO_THAW}"))
    if code == "PreconditionFailed" or status == HTTPStatus.PRECONDITION_FAILED:
        return Failure(PreconditionFailed(key, operation, detail))
    if code == "NoSuchUpload":
        # Another process aborted it, or our own attempt completed it and the response was lost.
        return Failure(TierUnavailable(key, operation, detail))
    if code in _DAMAGED_CODES:
        return Failure(ObjectCorrupt(key, operation, detail), is_worth_repeating=True)
    if code in _PASSING_CODES or status in _PASSING_STATUSES:
        detail += _hint_of_long_name(key, operation)
        return Failure(TierUnavailable(key, operation, detail), is_worth_repeating=True)
    if code == "InvalidRange" or status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        return Failure(ObjectCorrupt(key, operation, f"shorter than asked for ({detail})"))
    if code == "NoSuchKey" or status == HTTPStatus.NOT_FOUND:
        return Failure(ObjectNotFound(key, operation, detail))
    if code == "RequestTimeTooSkewed":
        return Failure(AccessDenied(key, operation, f"{detail}; {HOW_TO_MEND_A_CLOCK}"))
    if code in _DENIED_CODES or status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return Failure(AccessDenied(key, operation, detail))
    if status == HTTPStatus.INSUFFICIENT_STORAGE:
        return Failure(StoreFull(key, operation, detail))
    return Failure(TierError(key, operation, detail + _hint_of_long_name(key, operation)))
