"""An access control rule as the commands read and print it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule, or a filter of rules: None matches everything. Words as in Kafka, in small letters.

    `pattern` is literal or prefixed; in a filter also match, for those that match the name.
    """

    kind: str | None = None
    name: str | None = None
    pattern: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: str | None = None
    permission: str | None = None
