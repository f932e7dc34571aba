"""The policies in docs/how-to/bucket.md allow each request that our S3 client makes, no others."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.support.page_blocks import ROOT, runnable

S3 = ROOT / "storage" / "remote" / "s3"
PAGE = ROOT / "docs" / "how-to" / "bucket.md"

# As Amazon's documentation says, operation by operation.
ACTIONS = {
    "abort_multipart_upload": "s3:AbortMultipartUpload",
    "complete_multipart_upload": "s3:PutObject",
    "create_multipart_upload": "s3:PutObject",
    "delete_object": "s3:DeleteObject",
    "delete_objects": "s3:DeleteObject",
    "get_bucket_lifecycle_configuration": "s3:GetLifecycleConfiguration",
    "get_object": "s3:GetObject",
    "head_bucket": "s3:ListBucket",
    "head_object": "s3:GetObject",
    "list_multipart_uploads": "s3:ListBucketMultipartUploads",
    "list_object_versions": "s3:ListBucketVersions",
    "list_objects_v2": "s3:ListBucket",
    "list_parts": "s3:ListMultipartUploadParts",
    "put_bucket_lifecycle_configuration": "s3:PutLifecycleConfiguration",
    "put_object": "s3:PutObject",
    "upload_part": "s3:PutObject",
}


def requests() -> set[str]:
    """Methods of boto3's client that our code calls or hands over."""
    text = "\n".join(path.read_text() for path in sorted(Path(S3).glob("*.py")))
    called = re.findall(r"client(?:\(\))?\.([a-z0-9_]+)", text)
    return {name for name in called if re.match(r"[a-z]+_", name)}


def policies() -> list[set[str]]:
    found = []
    for block in runnable(PAGE, "json"):
        given = [one["Action"] for one in json.loads(block.text)["Statement"]]
        found.append(
            {action for one in given for action in ([one] if isinstance(one, str) else one)}
        )
    return found


def test_the_brokers_policy_allows_what_its_client_asks_for_and_nothing_else() -> None:
    readers, readers_of_one_topic, broker = sorted(policies(), key=len)
    assert {ACTIONS[name] for name in requests()} == broker
    assert readers == readers_of_one_topic < broker
    assert len(requests()) > 10, "the requests are not found any more"


def test_the_page_names_the_right_that_tags_of_objects_need() -> None:
    """A broker without tags does not need it, so it is in no policy."""
    assert '"Tagging"' in (S3 / "uploads.py").read_text()
    assert "`s3:PutObjectTagging`" in PAGE.read_text()
