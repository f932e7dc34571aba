"""The record: JSON, an object a line (`line.py`), which a file takes (`file.py`).

    login      a client logged in, renewed its login, or failed to
    denied     a client asked for something that it may not do, and the rule that says so
    change     a client changed topics, configurations, quotas, users or rules, or tried to
    traffic    what a user read of a topic and wrote to it in a minute
    lost       lines that could not be written

Good logins and changes that are in force are each a line. What is refused is limited, since clients
cause it as fast as they can (`events.py`): failed logins, denials, and changes that failed.

It is no logger, so no client can set its level (KIP-412). Nobody gives a secret to a method of this
file.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Mapping
from functools import partial

from strandline.broker.audit.events import LimitedEvents
from strandline.broker.audit.line import cut, line_of
from strandline.broker.audit.login import Login
from strandline.broker.security.identity import ClientIdentity
from strandline.storage.clock import Clock
from strandline.storage.concurrency.turns import Turn

MINUTE_S = 60.0
# Pairs of user and topic in one minute; what is read and written beyond is one line.
PAIRS_MAX = 10_000
OTHERS = "other"
# Of what is told a second time: one of each kind is kept for a minute.
NAME_MAX = 256
DONE = "NONE"


class AuditRecord:
    """The record of one broker. Used on the event loop only."""

    def __init__(self, add_line: Callable[[str], None], clock: Clock) -> None:
        """`add_line` takes a line, at once."""
        self._add_line = add_line
        self._now_ms = clock.now_ms
        self._limited = {
            event: LimitedEvents(partial(self._say, event))
            for event in ("login", "denied", "change")
        }
        # Bytes by user and topic.
        self._read: Counter[tuple[str, str]] = Counter()
        self._written: Counter[tuple[str, str]] = Counter()
        # Lines of the minutes that ended.
        self._due: deque[tuple[str, Mapping[str, object]]] = deque()

    def logged_in(self, login: Login) -> None:
        """Records a login that was accepted."""
        self._say("login", {"result": "accepted", **_login_fields(login)})

    def login_failed(self, login: Login, reason: str) -> None:
        """Records a login that was refused, unless one of this address was lately."""
        fields = {"result": "refused", **_login_fields(login), "reason": reason}
        client = {"result": "refused", "address": login.address}
        about = {"listener": login.listener, "mechanism": cut(login.mechanism, NAME_MAX)}
        self._limited["login"].note(client, about, fields)

    def denied(
        self, *, principal: str, address: str, operation: str, resource: str, rule: str = ""
    ) -> None:
        """Records what a client may not do, unless it was recorded lately.

        `resource` is KIND:name. `rule` is the rule that denies it; empty if none allows it.
        """
        client = {"principal": principal, "address": address}
        about = {
            "operation": operation,
            "resource": cut(resource, NAME_MAX),
            "rule": cut(rule, NAME_MAX),
        }
        self._limited["denied"].note(client, about, {**client, **about})

    def changed(
        self, caller: ClientIdentity, request: str, what: Mapping[str, object], error: str
    ) -> None:
        """Records a change, or what was refused of it, unless the same was lately; `error` is
        Kafka's name, DONE if it is in force.
        """
        client = {"principal": caller.principal, "address": caller.address}
        fields = {
            **client,
            "listener": caller.listener,
            "request": request,
            **what,
            "error": error,
        }
        if error == DONE:
            self._say("change", fields)
            return
        name, value = next(iter(what.items()))
        about = {"request": request, name: cut(str(value), NAME_MAX), "error": error}
        self._limited["change"].note(client, about, fields)

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
        for event, limited in self._limited.items():
            self._due.extend((event, fields) for fields in limited.turn())
        read, written = self._read, self._written
        self._read, self._written = Counter(), Counter()
        for principal, topic in dict.fromkeys((*read, *written)):
            fields = {
                "principal": principal,
                "topic": topic,
                "read_bytes": read[principal, topic],
                "written_bytes": written[principal, topic],
            }
            self._due.append(("traffic", fields))

    def _say(self, event: str, fields: Mapping[str, object]) -> None:
        self._add_line(line_of(self._now_ms(), event, fields))


def _login_fields(login: Login) -> dict[str, object]:
    return {
        "principal": f"User:{login.user}" if login.user else "",
        "address": login.address,
        "listener": login.listener,
        "mechanism": login.mechanism,
        "renewal": login.is_renewal,
    }
