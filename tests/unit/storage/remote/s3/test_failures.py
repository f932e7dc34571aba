"""What S3's codes mean."""

from __future__ import annotations

import pytest

from strandline.storage.errors import (
    AccessDenied,
    ObjectArchived,
    ObjectCorrupt,
    ObjectNotFound,
    PreconditionFailed,
    TierError,
    TierUnavailable,
)
from strandline.storage.remote.s3.failures import failure_of_code


@pytest.mark.parametrize(
    ("code", "status", "error", "is_worth_repeating"),
    [
        ("NoSuchKey", 404, ObjectNotFound, False),
        ("404", 404, ObjectNotFound, False),
        ("AccessDenied", 403, AccessDenied, False),
        ("403", 403, AccessDenied, False),
        ("Unauthorized", 401, AccessDenied, False),
        ("ExpiredToken", 400, AccessDenied, False),
        ("RequestTimeTooSkewed", 403, AccessDenied, False),
        ("InvalidObjectState", 403, ObjectArchived, False),
        ("PreconditionFailed", 412, PreconditionFailed, False),
        ("412", 412, PreconditionFailed, False),
        ("ConditionalRequestConflict", 409, TierUnavailable, True),
        ("SlowDown", 503, TierUnavailable, True),
        ("InternalError", 500, TierUnavailable, True),
        ("500", 500, TierUnavailable, True),
        ("RequestTimeout", 400, TierUnavailable, True),
        ("429", 429, TierUnavailable, True),
        ("NoSuchUpload", 404, TierUnavailable, False),
        ("BadDigest", 400, ObjectCorrupt, True),
        ("InvalidRange", 416, ObjectCorrupt, False),
        ("NotImplemented", 501, TierError, False),
        ("MalformedXML", 400, TierError, False),
        ("SlowDown", 0, TierUnavailable, True),
        ("", 0, TierError, False),
    ],
)
def test_each_code_has_its_own_meaning(
    code: str, status: int, error: type[TierError], is_worth_repeating: bool
) -> None:
    failure = failure_of_code(code, status, "k", "get", "text")
    assert type(failure.error) is error
    assert failure.is_worth_repeating is is_worth_repeating


def test_a_clock_that_is_too_far_off_is_told_with_what_to_do() -> None:
    failure = failure_of_code("RequestTimeTooSkewed", 403, "k", "get", "text")
    assert "put it right" in str(failure.error)
