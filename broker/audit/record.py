"""The record: JSON, an object a line (`line.py`), which a file takes (`file.py`).

    login      a client logged in, renewed its login, or failed to
    denied     a client asked for something that it may not do, and the rule that says so
    change     a client changed topics, configurations, quotas, users or rules, or tried to
    traffic    what a user read of a topic and wrote to it in a minute
    lost       lines that could not be written

Good logins and changes that are in force are each a line. What is refused is limited, since clients
cause it as fast as they can (`events.py`): failed logins, changes that failed, and denials, which
are limited before they come here (`authorization/denials.py`).

It is no logger, so no client can set its level (KIP-412). Nobody gives a secret to a method of this
file.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping

from strandline.broker.audit.events import NAME_MAX, LimitedEvents
from strandline.broker.audit.line import cut, line_of
from strandline.broker.audit.login import Login
from strandline.broker.security.identity import ClientIdentity
from strandline.storage.clock import Clock
from strandline.storage.concurrency.turns import Turn

MINUTE_S = 60.0
# Pairs of user and topic in one minute; what is read and written beyond is one line.
PAIRS_MAX = 10_000
OTHERS = "other"
DONE = "NONE"
COUNT = "not_recorded"

# Names and values of a line.
Fields = Mapping[str, object]


class AuditRecord:
    """The record of one broker. Used on the event loop only."""

    def __init__(
        self, add_line: Callable[[str], None], clock: Clock, *, topic: str | None = None
    ) -> None:
        """`add_line` takes a line, at once; `topic` has the record, and no client may write it."""
        self.topic = topic
        self._add_line = add_line
        self._now_ms = clock.now_ms
        # By address; listener and mechanism.
        self._failed_logins = LimitedEvents[str, tuple[str, str]]()
        # By principal, address, request and error, and by what the change was about.
        self._failed_changes = LimitedEvents[tuple[str, str, str, str], tuple[str, str]]()
        # Bytes by user and topic.
        self._read: Counter[tuple[str, str]] = Counter()
        self._written: Counter[tuple[str, str]] = Counter()
        # Lines of the minutes that ended.
        self._due: deque[tuple[str, Fields]] = deque()

    def logged_in(self, login: Login) -> None:
        """Records a login that was accepted."""
        self._say("login", {"result": "accepted", **_login_fields(login)})

    def login_failed(self, login: Login, reason: str) -> None:
        """Records a login that was refused, unless one of this address was lately."""
        if self._failed_logins.is_told(
            login.address, (login.listener, cut(login.mechanism, NAME_MAX))
        ):
            self._say("login", {"result": "refused", **_login_fields(login), "reason": reason})

    def denied(
        self,
        *,
        principal: str,
        address: str,
        operation: str,
        resource: str,
        rule: str = "",
        count: int = 0,
    ) -> None:
        """Records what a client may not do; `count` is how many such denials were not recorded.

        `resource` is KIND:name. `rule` is the rule that denies it; empty if none allows it.
        """
        fields: dict[str, object] = {
            "principal": principal,
            "address": address,
            "operation": operation,
            "resource": resource,
            "rule": rule,
        }
        if count:
            fields[COUNT] = count
        self._say("denied", fields)

    def changed(self, caller: ClientIdentity, request: str, what: Fields, error: str) -> None:
        """Records a change, or what was refused of it, unless the same was lately; `error` is
        Kafka's name, DONE if it is in force.
        """
        if error != DONE:
            name, value = next(iter(what.items()))
            asked = caller.principal, caller.address, request, error
            if not self._failed_changes.is_told(asked, (name, cut(str(value), NAME_MAX))):
                return
        self._say(
            "change",
            {
                "principal": caller.principal,
                "address": caller.address,
                "listener": caller.listener,
                "request": request,
                **what,
                "error": error,
            },
        )

    def read(self, principal: str, topic: str, byte_count: int) -> None:
        """Adds bytes that a user was sent of a topic."""
        self._read[self._pair(principal, topic)] += byte_count

    def wrote(self, principal: str, topic: str, byte_count: int) -> None:
        """Adds bytes that a user appended to a topic."""
        self._written[self._pair(principal, topic)] += byte_count

    def _pair(self, principal: str, topic: str) -> tuple[str, str]:
        pair = principal, topic
        is_known = pair in self._read or pair in self._written
        if not is_known and len(self._read) + len(self._written) >= PAIRS_MAX:
            return OTHERS, OTHERS
        return pair

    async def run(self) -> None:
        """Tells of each minute when it ends, in turns."""
        while True:
            await asyncio.sleep(MINUTE_S)
            self._end_minute()
            turn = Turn()
            while self._due:
                self._say(*self._due.popleft())
                await turn.pass_if_over()

    def tell(self) -> None:
        """Tells at once of the minute that is not over yet."""
        self._end_minute()
        while self._due:
            self._say(*self._due.popleft())

    def _end_minute(self) -> None:
        for address, login, count in self._failed_logins.turn():
            about = (
                {} if login is None else dict(zip(("listener", "mechanism"), login, strict=True))
            )
            fields = {"result": "refused", "address": address or "", **about, COUNT: count}
            self._due.append(("login", fields))
        for asked, what, count in self._failed_changes.turn():
            principal, address, request, error = asked or ("", "", "", "")
            fields = {"principal": principal, "address": address, "request": request}
            if what is not None:
                name, value = what
                fields[name] = value
            self._due.append(("change", {**fields, "error": error, COUNT: count}))
        self._due.extend(("traffic", fields) for fields in self._traffic())

    def _traffic(self) -> Iterator[Fields]:
        read, written = self._read, self._written
        self._read, self._written = Counter(), Counter()
        for principal, topic in dict.fromkeys((*read, *written)):
            yield {
                "principal": principal,
                "topic": topic,
                "read_bytes": read[principal, topic],
                "written_bytes": written[principal, topic],
            }

    def _say(self, event: str, fields: Fields) -> None:
        self._add_line(line_of(self._now_ms(), event, fields))


def _login_fields(login: Login) -> dict[str, object]:
    return {
        "principal": f"User:{login.user}" if login.user else "",
        "address": login.address,
        "listener": login.listener,
        "mechanism": login.mechanism,
        "renewal": login.is_renewal,
    }
