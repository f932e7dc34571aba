"""The archive's one lifecycle rule: the bucket aborts incomplete multipart uploads.

A broker aborts its own incomplete uploads, but only while it runs. If it never restarts, S3 bills
the parts until the upload is aborted, and no listing of objects shows them.

S3 replaces a bucket's lifecycle configuration as a whole, so the broker reads the other rules and
settings and writes them back unchanged. A rule has either a `Filter` or the older `Prefix`, and S3
rejects a mixture: the new rule takes the form of the existing ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, TypedDict, TypeVar, cast

from strandline.storage.errors import AccessDenied, ObjectNotFound, TierError, TierUnavailable
from strandline.storage.remote.s3.access import S3Access

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client
    from types_boto3_s3.literals import TransitionDefaultMinimumObjectSizeType
    from types_boto3_s3.type_defs import LifecycleRuleTypeDef

T = TypeVar("T")

RULE_ID = "strandline-abort-unfinished-uploads"
# Longer than any upload may take; S3 counts in days.
DAYS_AFTER_BEGIN = 1


def abort_rule(prefix: str, *, is_old_kind: bool = False) -> LifecycleRuleTypeDef:
    """Returns the rule for everything under `prefix` (empty, or ending in `/`)."""
    rule: LifecycleRuleTypeDef = {
        "ID": RULE_ID,
        "Status": "Enabled",
        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": DAYS_AFTER_BEGIN},
    }
    if is_old_kind:
        rule["Prefix"] = prefix
    else:
        rule["Filter"] = {"Prefix": prefix}
    return rule


class _Others(TypedDict, total=False):
    """The settings of a lifecycle configuration besides its rules."""

    TransitionDefaultMinimumObjectSize: TransitionDefaultMinimumObjectSizeType


class S3Lifecycle:
    """The lifecycle rules of one bucket."""

    def __init__(self, access: S3Access) -> None:
        self._access = access

    @property
    def text(self) -> str:
        """The rule that `apply` adds, as JSON for `aws s3api`."""
        return json.dumps({"Rules": [abort_rule(self._access.prefix)]}, indent=2)

    def apply(self) -> bool:
        """Adds the rule; False if it already exists. Raises TierError."""
        access = self._access
        rules: list[LifecycleRuleTypeDef] = []
        others: _Others = {}
        try:
            found = self._ask(
                "s3:GetLifecycleConfiguration",
                lambda client: client.get_bucket_lifecycle_configuration(Bucket=access.bucket),
            )
        except ObjectNotFound:
            pass
        else:
            rules = cast("list[LifecycleRuleTypeDef]", list(found.get("Rules", [])))
            size = found.get("TransitionDefaultMinimumObjectSize")
            if size is not None:
                # S3 resets this setting to its default if the request omits it.
                others["TransitionDefaultMinimumObjectSize"] = size
        kept = [known for known in rules if known.get("ID") != RULE_ID]
        rule = abort_rule(access.prefix, is_old_kind=any("Prefix" in known for known in kept))
        if any(known.get("ID") == RULE_ID and _is_same(known, rule) for known in rules):
            return False
        self._ask(
            "s3:PutLifecycleConfiguration",
            lambda client: client.put_bucket_lifecycle_configuration(
                Bucket=access.bucket,
                LifecycleConfiguration={"Rules": [*kept, rule]},
                **others,
            ),
        )
        return True

    def _ask(self, permission: str, request: Callable[[S3Client], T]) -> T:
        """Sends one request. Raises TierError with advice for the operator."""
        access = self._access
        try:
            return access.send("", "lifecycle", request)
        except (ObjectNotFound, TierUnavailable):
            raise
        except AccessDenied as error:
            detail = f"{error.detail}; it takes {permission} on the bucket"
            raise AccessDenied(access.bucket, "lifecycle rules of", detail) from error
        except TierError as error:
            detail = f"{error.detail}; nothing was changed. A store without such rules may have a"
            detail += " setting of its own for unfinished uploads; the broker aborts its own"
            raise TierError(access.bucket, "lifecycle rules of", detail) from error


def _is_same(known: LifecycleRuleTypeDef, rule: LifecycleRuleTypeDef) -> bool:
    names = ("Status", "Filter", "Prefix", "AbortIncompleteMultipartUpload")
    return all(known.get(name) == rule.get(name) for name in names)
