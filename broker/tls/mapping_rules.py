"""`ssl.principal.mapping.rules`: from the name of a certificate to the user, as Kafka's
SslPrincipalMapper (KIP-371).

    RULE:^CN=(.*?),OU=Services.*$/$1/L, RULE:^CN=([^,]+),.*$/$1@$0/, DEFAULT

The first rule counts whose pattern matches the whole name; as in Java's `replaceAll`, each match
within it is then replaced, L and U change the case of the result. RE2 takes time in proportion to
the name, and has no look-around and no back references in patterns. Names with line breaks match no
rule: what `.` and `$` mean there depends on the library, and a name may be hostile. Nor do very
long ones, of which each match would be looked for anew.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from strandline.storage.errors import InvalidConfig

_KEY = "ssl.principal.mapping.rules"
_RULE = re.compile(
    r"\s*(?:(?P<default>DEFAULT)|RULE:(?P<pattern>(?:\\.|[^\\/])+)/"
    r"(?P<replacement>(?:\\.|[^\\/])*)/(?P<case>[LU]?))?\s*(?:,\s*|$)"
)
NAME_LENGTH_MAX = 8192
_LINE_BREAKS = re.compile("[\n\r\x85\u2028\u2029]")


class NoRuleMatches(Exception):
    """A name that none of the rules maps: its client is nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    # A text, or the number of a group.
    replacement: tuple[str | int, ...]
    case: str
    # A compiled expression; None: DEFAULT.
    pattern: Any

    def apply(self, name: str) -> str | None:
        if self.pattern is None:
            return name
        is_odd = len(name) > NAME_LENGTH_MAX or _LINE_BREAKS.search(name) is not None
        if is_odd or self.pattern.fullmatch(name) is None:
            return None
        parts, end = [], 0
        for match in self.pattern.finditer(name):
            parts.append(name[end : match.start()])
            parts += [
                part if isinstance(part, str) else match.group(part) or ""
                for part in self.replacement
            ]
            end = match.end()
        result = "".join([*parts, name[end:]])
        return {"L": result.lower, "U": result.upper}.get(self.case, result.__str__)()


class MappingRules:
    """The rules of one listener."""

    def __init__(self, text: str) -> None:
        """Raises InvalidConfig for a text that has no rules, or patterns that RE2 has not."""
        self._text = text
        self._rules = tuple(_parse(text))

    def user_of(self, name: str) -> str:
        """Raises NoRuleMatches."""
        for rule in self._rules:
            user = rule.apply(name)
            if user is not None:
                return user
        raise NoRuleMatches(f"{_KEY}={self._text} has no rule for {name!r}")


def _parse(text: str) -> Sequence[_Rule]:
    rules = []
    position = 0
    while position < len(text):
        match = _RULE.match(text, position)
        if match is None or match.end() == position:
            raise InvalidConfig(
                f"{_KEY}: {text[position:]!r} is no rule; expected RULE:pattern/replacement/, with"
                " L or U behind it if wanted, or DEFAULT, with commas between"
            )
        position = match.end()
        if match["default"]:
            rules.append(_Rule(pattern=None, replacement=(), case=""))
        elif match["pattern"]:
            pattern = _compile(match["pattern"])
            replacement = tuple(_parts(match["replacement"], pattern.groups))
            rules.append(_Rule(pattern=pattern, replacement=replacement, case=match["case"]))
    return rules


def _compile(pattern: str) -> Any:
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else "syntax error"
        reason = reason.decode(errors="replace") if isinstance(reason, bytes) else reason
        raise InvalidConfig(f"{_KEY}: RE2 refuses the pattern {pattern!r}: {reason}") from None


def _parts(replacement: str, group_count: int) -> Sequence[str | int]:
    """Parses the replacement by Java's rules: $1 is a group, as far as there is one; \\$ is a $."""
    parts: list[str | int] = []
    position = 0
    while position < len(replacement):
        character = replacement[position]
        following = replacement[position + 1 : position + 2]
        position += 1
        if character == "\\":
            parts.append(following)
            position += 1
        elif character == "$" and following.isascii() and following.isdigit():
            end = position + 1
            if int(following) > group_count:
                parts.append(character)
                continue
            while replacement[end : end + 1].isdigit() and (
                int(replacement[position : end + 1]) <= group_count
            ):
                end += 1
            parts.append(int(replacement[position:end]))
            position = end
        elif character == "$":
            raise InvalidConfig(
                f"{_KEY}: {replacement!r}: expected the number of a group behind $, or \\$"
            )
        else:
            parts.append(character)
    return parts
