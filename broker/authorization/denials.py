"""What clients asked for in vain, for the log and the record: few lines a minute, each one counted.

Kafka writes a line for each request (`kafka.authorizer.logger`). A client that is denied asks again
as fast as it can, makes up names, and may name thousands in one request: most denials only count.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from strandline.broker.audit.events import NAME_MAX, LimitedEvents
from strandline.broker.authorization.authorizer import Denial
from strandline.broker.security.acl import Acl, AclOperation, PatternType, ResourceKind
from strandline.storage.concurrency.turns import Turn

if TYPE_CHECKING:
    from strandline.broker.audit.record import AuditRecord

log = logging.getLogger(__name__)

MINUTE_S: Final = 60.0
_PATTERNS: Final = frozenset(PatternType)
# Principal, host, operation, and kind of resource.
_Asked: TypeAlias = tuple[str, str, int, int]


class Denials:
    """The denials of one broker. Used on the event loop only."""

    def __init__(self, rule_of: Callable[[Denial], Acl | None]) -> None:
        """`rule_of` returns the rule that denies something, if one does."""
        self._rule_of = rule_of
        # By all but the name of the resource, and by that: made up names hide nothing else.
        self._events = LimitedEvents[_Asked, str]()
        # Of minutes that ended.
        self._due: deque[tuple[_Asked | None, str | None, int]] = deque()
        self._record: AuditRecord | None = None

    def record_in(self, record: AuditRecord) -> None:
        """Writes them into the record too."""
        self._record = record

    def note(self, denial: Denial) -> None:
        """Tells of a denial, unless there were the same or many others lately."""
        name = denial.name if len(denial.name) <= NAME_MAX else denial.name[:NAME_MAX]
        if self._events.is_told(denial[:4], name):
            self._tell(denial[:4], name, 0, _text(self._rule_of(denial)))

    async def run(self) -> None:
        """Tells when a minute ends how many were not told, in turns."""
        while True:
            await asyncio.sleep(MINUTE_S)
            self._due.extend(self._events.turn())
            turn = Turn()
            while self._due:
                self._tell(*self._due.popleft())
                await turn.pass_if_over()

    def tell_counts(self) -> None:
        """Tells at once how many were not told by now."""
        self._due.extend(self._events.turn())
        while self._due:
            self._tell(*self._due.popleft())

    def _tell(self, asked: _Asked | None, name: str | None, count: int, rule: str = "") -> None:
        """Without a name it is of several resources; without what was asked, of several clients."""
        principal = host = operation = resource = ""
        if asked is not None:
            principal, host, operation_number, kind = asked
            operation = AclOperation(operation_number).name
            resource = ResourceKind(kind).name
            if name is not None:
                resource = f"{resource}:{name}"
        fields: dict[str, object] = {
            "principal": principal,
            "host": host,
            "operation": operation,
            "resource": resource,
        }
        if rule:
            fields["denied_by"] = rule
        if count:
            fields["not_logged"] = count
        log.info("denied", extra={"fields": fields})
        if self._record is not None:
            self._record.denied(
                principal=principal,
                address=host,
                operation=operation,
                resource=resource,
                rule=rule,
                count=count,
            )


def _text(rule: Acl | None) -> str:
    if rule is None:
        return ""
    pattern = PatternType(rule.pattern).name if rule.pattern in _PATTERNS else rule.pattern
    return f"{pattern}:{rule.name} {rule.principal} from {rule.host}"
