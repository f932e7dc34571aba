"""The one lifecycle rule that an archive wants: the bucket itself aborts unfinished uploads.

The broker aborts what it left behind, but only while it runs. Parts of an upload whose broker never
came back are paid for until somebody aborts them, and no listing of objects shows them.

A bucket's rules are replaced as a whole, so the others are read first and written back as they
were.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast

from strandline.storage.errors import ObjectNotFound
from strandline.storage.remote.s3_access import S3Access

if TYPE_CHECKING:
    from types_boto3_s3.type_defs import LifecycleRuleTypeDef

RULE_ID = "strandline-abort-unfinished-uploads"
# Longer than any upload may take, and what S3 counts in.
DAYS_AFTER_BEGIN = 1


def abort_rule(prefix: str) -> LifecycleRuleTypeDef:
    """The rule for everything under `prefix` (empty, or ending in `/`)."""
    return {
        "ID": RULE_ID,
        "Status": "Enabled",
        "Filter": {"Prefix": prefix},
        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": DAYS_AFTER_BEGIN},
    }


def rule_text(prefix: str) -> str:
    """The configuration as `aws s3api put-bucket-lifecycle-configuration` takes it."""
    return json.dumps({"Rules": [abort_rule(prefix)]}, indent=2)


class S3Lifecycle:
    """The rules of one bucket."""

    def __init__(self, access: S3Access) -> None:
        self._access = access

    @property
    def text(self) -> str:
        """What `apply` would add."""
        return rule_text(self._access.prefix)

    def apply(self) -> bool:
        """Adds the rule; False if it was there. Raises what a store raises."""
        access = self._access
        rule = abort_rule(access.prefix)
        try:
            found = access.attempts.run(
                "",
                "lifecycle",
                lambda _: access.client().get_bucket_lifecycle_configuration(Bucket=access.bucket),
            )
            rules = cast("list[LifecycleRuleTypeDef]", list(found.get("Rules", [])))
        except ObjectNotFound:
            rules = []
        if any(known.get("ID") == RULE_ID and _is_same(known, rule) for known in rules):
            return False
        kept = [known for known in rules if known.get("ID") != RULE_ID]
        access.attempts.run(
            "",
            "lifecycle",
            lambda _: access.client().put_bucket_lifecycle_configuration(
                Bucket=access.bucket, LifecycleConfiguration={"Rules": [*kept, rule]}
            ),
        )
        return True


def _is_same(known: LifecycleRuleTypeDef, rule: LifecycleRuleTypeDef) -> bool:
    names = ("Status", "Filter", "AbortIncompleteMultipartUpload")
    return all(known.get(name) == rule.get(name) for name in names)
