"""The record: JSON, an object a line, of a logger of its own.

    {"time":"2026-01-31T12:00:00.123Z","event":"login","result":"accepted","principal":"User:alice",...}

    login      a client logged in, renewed its login, or failed to
    denied     a client asked for something that it may not do, and the rule that says so
    change     a client changed topics, configurations, quotas, users or rules, or tried to
    traffic    what a user read of a topic and wrote to it in a minute

Changes and good logins are each a line. Failed logins and denials are limited, since clients cause
them as fast as they can: the same one once a minute at most, and `not_recorded` counts the others.

The logger is in no registry, so no client can set its level (KIP-412). Nobody gives a secret to a
method of this file.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler

from strandline.broker.audit.login import Login
from strandline.broker.security.identity import ClientIdentity
from strandline.storage.clock import Clock
from strandline.storage.errors import InvalidConfig
from strandline.storage.quiet_log import QuietLog

STANDARD_ERROR = "-"
QUIET_S = 60.0
# Subjects of denials and failed logins that are told apart: names that clients invent are many.
SUBJECTS_MAX = 1000
# Denied names that are told apart, of each principal, address and operation.
NAMES_TOLD_MAX = 64
TRAFFIC_S = 60.0
# Pairs of user and topic in one minute; what is read and written beyond is one line.
PAIRS_MAX = 10_000
OTHERS = "other"
# A group's name may have 32,767 characters.
TEXT_MAX = 2000


class AuditRecord:
    """The record of one broker. Used on the event loop only."""

    def __init__(self, handler: logging.Handler, clock: Clock) -> None:
        self._clock = clock
        handler.setFormatter(_JsonLines(clock))
        # In no registry: no client can set its level.
        self._log = logging.Logger("strandline.audit", logging.INFO)  # noqa: LOG001
        self._log.addHandler(handler)
        self._quiet_log = QuietLog(self._log, clock, quiet_s=QUIET_S, subjects_max=SUBJECTS_MAX)
        # Bytes by user and topic.
        self._read: Counter[tuple[str, str]] = Counter()
        self._written: Counter[tuple[str, str]] = Counter()

    def logged_in(self, login: Login) -> None:
        """Records a login that was accepted."""
        self._say("login", {"result": "accepted", **_login_fields(login)})

    def login_failed(self, login: Login, reason: str) -> None:
        """Records a login that was refused, unless one of this address was lately."""
        fields = {"result": "refused", **_login_fields(login), "reason": reason}
        self._limited("login", (login.address, login.listener, login.mechanism), fields)

    def denied(
        self,
        *,
        principal: str,
        address: str,
        operation: str,
        resource: str,
        rule: str = "",
        request: str = "",
    ) -> None:
        """Records what a client may not do, unless it was recorded lately.

        `resource` is KIND:name. `rule` is the rule that denies it; empty if none allows it.
        """
        fields = {
            "principal": principal,
            "address": address,
            "operation": operation,
            "resource": resource,
            "rule": rule,
            "request": request,
        }
        # Clients make up names.
        number = zlib.crc32(resource.encode("utf-8", "replace")) % NAMES_TOLD_MAX
        self._limited("denied", (principal, address, operation, number), fields)

    def changed(
        self, caller: ClientIdentity, request: str, what: Mapping[str, object], error: str
    ) -> None:
        """Records a change, or what was refused of it; `error` is Kafka's name, NONE if it is in
        force.
        """
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
        """Records the traffic of each minute, and of the last one at its end."""
        try:
            while True:
                await asyncio.sleep(TRAFFIC_S)
                self.tell_traffic()
        finally:
            self.tell_traffic()

    def tell_traffic(self) -> None:
        """Records what was read and written since the last call."""
        read, written = self._read, self._written
        self._read, self._written = Counter(), Counter()
        for principal, topic in dict.fromkeys((*read, *written)):
            self._say(
                "traffic",
                {
                    "principal": principal,
                    "topic": topic,
                    "read_bytes": read[principal, topic],
                    "written_bytes": written[principal, topic],
                },
            )

    def close(self) -> None:
        for handler in self._log.handlers:
            handler.close()

    def _say(self, event: str, fields: Mapping[str, object]) -> None:
        self._log.info(event, extra={"fields": fields})

    def _limited(self, event: str, subject: object, fields: Mapping[str, object]) -> None:
        self._quiet_log.say(logging.INFO, event, (event, subject), fields)


def _login_fields(login: Login) -> dict[str, object]:
    return {
        "principal": f"User:{login.user}" if login.user else "",
        "address": login.address,
        "listener": login.listener,
        "mechanism": login.mechanism,
        "renewal": login.is_renewal,
    }


class _JsonLines(logging.Formatter):
    """Renders a record as a JSON object; what is no printable ASCII is escaped."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._now_ms: Callable[[], int] = clock.now_ms

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(self._now_ms() / 1000, UTC)
        fields = getattr(record, "fields", {})
        line: dict[str, object] = {
            "time": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "event": record.getMessage(),
        }
        for name, value in fields.items():
            line["not_recorded" if name == "not_logged" else name] = _cut(value)
        return json.dumps(line, separators=(",", ":"), default=str)


def _cut(value: object) -> object:
    if isinstance(value, str) and len(value) > TEXT_MAX:
        return f"{value[:TEXT_MAX]}... ({len(value)} characters)"
    if isinstance(value, Mapping):
        return {_cut(name): _cut(one) for name, one in value.items()}
    return value


def open_record(file: str, clock: Clock) -> AuditRecord:
    """Opens the record. Raises InvalidConfig if its file cannot be written."""
    handler: logging.Handler
    try:
        if file == STANDARD_ERROR:
            handler = logging.StreamHandler(sys.stderr)
        else:
            # A file that logrotate moved away is made anew.
            handler = WatchedFileHandler(file, encoding="ascii")
    except OSError as error:
        raise InvalidConfig(f"strandline.audit.file={file!r}: {error.strerror}") from error
    return AuditRecord(handler, clock)
