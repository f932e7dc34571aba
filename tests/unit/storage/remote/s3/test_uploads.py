"""Uploads that nobody has ended, as a server lists them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import boto3.session
import pytest
from botocore.stub import Stubber

from strandline.storage.errors import TierError
from strandline.storage.remote.object_store.interface import Deadlines
from strandline.storage.remote.s3.access import S3Access
from strandline.storage.remote.s3.attempts import Attempts, Failure
from strandline.storage.remote.s3.lacks import Lacks
from strandline.storage.remote.s3.uploads import S3Uploads
from strandline.storage.remote.silence import Silence
from tests.support.manual_clock import ManualClock

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client


@pytest.mark.parametrize("markers", [{}, {"NextUploadIdMarker": "x"}])
def test_a_server_that_lists_more_uploads_and_not_where_is_asked_once(
    markers: dict[str, Any],
) -> None:
    """It ended with a KeyError, and with it all of the tiering, which was begun anew each time."""
    client = boto3.session.Session().client("s3", region_name="us-east-1")
    clock, deadlines = ManualClock(), Deadlines()
    access = S3Access(
        bucket="bucket",
        prefix="archive/",
        client=lambda: cast("S3Client", client),
        attempts=Attempts(
            deadlines=deadlines,
            clock=clock,
            silence=Silence("s3://bucket", clock),
            classify=lambda error, key, operation: Failure(TierError(key, operation, str(error))),
        ),
        deadlines=deadlines,
        clock=clock,
        lacks=Lacks("s3://bucket"),
    )
    with Stubber(client) as stub:
        stub.add_response("list_multipart_uploads", {"IsTruncated": True, **markers})
        assert S3Uploads(access).abort_uploads("topics/", older_than_ms=0) == 0
        stub.assert_no_pending_responses()
