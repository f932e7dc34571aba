"""Our rule joins what a bucket has of rules, and takes nothing away from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import boto3.session
from botocore.stub import Stubber

from strandline.storage.clock import SystemClock
from strandline.storage.errors import TierError
from strandline.storage.remote.object_store.interface import Deadlines
from strandline.storage.remote.s3.access import S3Access
from strandline.storage.remote.s3.attempts import Attempts, Failure
from strandline.storage.remote.s3.lacks import Lacks
from strandline.storage.remote.s3.lifecycle import RULE_ID, S3Lifecycle
from strandline.storage.remote.silence import Silence

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

BUCKET, PREFIX = "bucket", "archive/"
ABORT = {"DaysAfterInitiation": 1}


def applied(found: dict[str, Any], written: dict[str, Any] | None) -> bool:
    """The result of `apply` on a bucket that has `found`, and is to be given `written`."""
    client = boto3.session.Session().client("s3", region_name="us-east-1")
    clock = SystemClock()
    deadlines = Deadlines()
    access = S3Access(
        bucket=BUCKET,
        prefix=PREFIX,
        client=lambda: cast("S3Client", client),
        attempts=Attempts(
            deadlines=deadlines,
            clock=clock,
            silence=Silence("s3://bucket", clock),
            classify=_refused,
        ),
        deadlines=deadlines,
        clock=clock,
        lacks=Lacks("s3://bucket"),
    )
    with Stubber(client) as stub:
        stub.add_response("get_bucket_lifecycle_configuration", found, {"Bucket": BUCKET})
        if written is not None:
            stub.add_response(
                "put_bucket_lifecycle_configuration", {}, {"Bucket": BUCKET, **written}
            )
        result = S3Lifecycle(access).apply()
        stub.assert_no_pending_responses()
    return result


def _refused(error: Exception, key: str, operation: str) -> Failure:
    return Failure(TierError(key, operation, str(error)))


def rule(**place: object) -> dict[str, object]:
    return {
        "ID": RULE_ID,
        "Status": "Enabled",
        "AbortIncompleteMultipartUpload": ABORT,
        **place,
    }


def test_rules_of_the_older_kind_get_one_of_their_kind() -> None:
    """S3 refuses a configuration that has both kinds."""
    theirs = {"ID": "logs", "Status": "Enabled", "Prefix": "logs/", "Expiration": {"Days": 3}}
    wanted = {"LifecycleConfiguration": {"Rules": [theirs, rule(Prefix=PREFIX)]}}
    assert applied({"Rules": [theirs]}, wanted)
    assert not applied({"Rules": [theirs, rule(Prefix=PREFIX)]}, None)


def test_what_belongs_to_the_configuration_beside_its_rules_is_kept() -> None:
    theirs = {
        "ID": "old",
        "Status": "Enabled",
        "Filter": {"Prefix": ""},
        "Transitions": [{"Days": 30, "StorageClass": "GLACIER"}],
    }
    size = {"TransitionDefaultMinimumObjectSize": "varies_by_storage_class"}
    wanted = {
        "LifecycleConfiguration": {"Rules": [theirs, rule(Filter={"Prefix": PREFIX})]},
        **size,
    }
    assert applied({"Rules": [theirs], **size}, wanted)


def test_a_rule_of_ours_that_somebody_changed_is_made_again() -> None:
    off = {**rule(Filter={"Prefix": PREFIX}), "Status": "Disabled"}
    wanted = {"LifecycleConfiguration": {"Rules": [rule(Filter={"Prefix": PREFIX})]}}
    assert applied({"Rules": [off]}, wanted)
