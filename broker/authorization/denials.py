"""What clients asked for in vain, in the log: each thing once a minute, with a count of the rest.

Kafka writes a line for each request (`kafka.authorizer.logger`). A client that is denied asks again
as fast as it can, and may make up names: NAMES_TOLD_MAX of a kind are told each minute.
"""

from __future__ import annotations

import logging

from strandline.broker.authorization.authorizer import Denial
from strandline.broker.security.acl import AclOperation, PatternType, ResourceKind
from strandline.storage.clock import Clock
from strandline.storage.quiet_log import QuietLog

log = logging.getLogger(__name__)

# For each principal, host, operation and kind.
NAMES_TOLD_MAX = 64


class DenialLog:
    """The log of denials of one broker."""

    def __init__(self, clock: Clock) -> None:
        self._quiet_log = QuietLog(log, clock)

    def note(self, denial: Denial) -> None:
        """Writes a line, unless there was one of the same lately."""
        rule = denial.rule
        fields: dict[str, object] = {
            "principal": denial.principal,
            "host": denial.host,
            "operation": AclOperation(denial.operation).name,
            "resource": f"{ResourceKind(denial.kind).name}:{denial.name}",
        }
        if rule is not None:
            pattern = PatternType(rule.pattern).name if rule.pattern in _PATTERNS else rule.pattern
            fields["denied_by"] = f"{pattern}:{rule.name} {rule.principal} from {rule.host}"
        self._quiet_log.say(
            logging.INFO,
            "denied",
            (
                denial.principal,
                denial.host,
                denial.operation,
                denial.kind,
                hash(denial.name) % NAMES_TOLD_MAX,
            ),
            fields,
        )


_PATTERNS = frozenset(PatternType)
