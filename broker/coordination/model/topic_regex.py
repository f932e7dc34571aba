"""Regular expressions over topic names, with RE2's syntax and guarantees.

Expressions come from clients. RE2 takes linear time and bounded memory for any expression; a
backtracking engine could be made to hang for ever. Look-around and back references do not exist for
the same reason, here as in Kafka (RE2/J).

An expression must match the whole name, as in Kafka. Internal topics match like others.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

from strandline.broker.coordination.model.classic_messages import CoordinatorFault
from strandline.broker.protocol.schema.errors import ErrorCode

# Memory of one compiled expression. RE2's own default is 8 MiB; topic names are short.
REGEX_MEMORY_BYTES_MAX = 1 << 20
# The longest expression worth compiling on the event loop.
REGEX_CHARACTERS_MAX = 4096


if TYPE_CHECKING:
    import re2


@cache
def _options() -> re2.Options:
    import re2

    options = re2.Options()
    options.max_mem = REGEX_MEMORY_BYTES_MAX
    options.log_errors = False
    return options


def check_regex(regex: str) -> None:
    """Raises CoordinatorFault unless it can be compiled; takes well under a millisecond."""
    if len(regex) > REGEX_CHARACTERS_MAX:
        raise CoordinatorFault(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"The regular expression is longer than {REGEX_CHARACTERS_MAX} characters.",
        )
    # The engine and its C++ library take 3 MiB, and most brokers see no expression.
    import re2

    try:
        re2.compile(regex, _options())
    except re2.error as error:
        reason = error.args[0].decode("utf-8", "replace") if error.args else "?"
        raise CoordinatorFault(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {reason}.",
        ) from error


def find_topics(regexes: Iterable[str], names: Iterable[str]) -> dict[str, frozenset[str]]:
    """Returns the names that each expression matches as a whole. Unbounded time: use a thread.

    An expression that cannot be compiled (from a log of an older version) matches nothing.
    """
    import re2

    known = tuple(names)
    topics_by_regex: dict[str, frozenset[str]] = {}
    for regex in regexes:
        try:
            pattern = re2.compile(regex, _options())
        except re2.error:
            topics_by_regex[regex] = frozenset()
            continue
        topics_by_regex[regex] = frozenset(
            name for name in known if pattern.fullmatch(name) is not None
        )
    return topics_by_regex
