"""The rules by type, pattern, name and principal: the time of a look-up does not grow with them.

    (TOPIC, LITERAL, "orders")   ->  {("User:a", "*"): allowed and denied operations, ...}
    (TOPIC, PREFIXED, "ord")     ->  ...
    (TOPIC, LITERAL, "*")        ->  ...

A resource is matched by its own name, by the wildcard, and by those of its prefixes that some rule
has: as many look-ups as rules have lengths of prefixes. Kafka's StandardAuthorizerData walks a
sorted set instead, and passes all rules of a name (KAFKA-20667).

Operations are bits: operation n of AclOperation is `1 << n`, as in KIP-430.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

from strandline.broker.security.acl import (
    EVERYONE,
    WILDCARD,
    Acl,
    AclOperation,
    AclPermission,
    PatternType,
)

Pattern: TypeAlias = tuple[int, int, str]
# A principal and a host, as a rule has them.
Holder: TypeAlias = tuple[str, str]

EVERY_OPERATION: Final = (1 << max(AclOperation) + 1) - 1
_LITERAL, _PREFIXED = int(PatternType.LITERAL), int(PatternType.PREFIXED)
_ALL: Final = 1 << AclOperation.ALL
_DESCRIBE: Final = 1 << AclOperation.DESCRIBE
_DESCRIBE_CONFIGS: Final = 1 << AclOperation.DESCRIBE_CONFIGS
_IMPLY_DESCRIBE: Final = sum(
    1 << one
    for one in (AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER)
)
_IMPLY_DESCRIBE_CONFIGS: Final = 1 << AclOperation.ALTER_CONFIGS


class _Bits:
    """What the rules of one pattern and holder allow and deny."""

    __slots__ = ("allowed", "denied")

    def __init__(self) -> None:
        self.allowed = 0
        self.denied = 0


class Found(NamedTuple):
    """What rules say of a resource: operations, and whether there is any rule of it."""

    operations: int
    has_rules: bool


class AclIndex:
    """All rules of an image. It is changed in place, by what a delta adds and removes."""

    def __init__(self) -> None:
        self._by_pattern: dict[Pattern, dict[Holder, _Bits]] = {}
        # The same, by type and holder: what a principal may do anywhere.
        self._by_holder: dict[tuple[int, Holder], dict[tuple[int, str], _Bits]] = {}
        # By type: the lengths of prefixes, and how many patterns have each.
        self._lengths: dict[int, list[int]] = {}
        self._length_counts: Counter[tuple[int, int]] = Counter()

    def add(self, acl: Acl) -> None:
        """Adds a rule; it may be there already."""
        pattern, holder = (acl.kind, acl.pattern, acl.name), (acl.principal, acl.host)
        holders = self._by_pattern.get(pattern)
        if holders is None:
            holders = self._by_pattern[pattern] = {}
            if acl.pattern == _PREFIXED:
                self._note_length(acl.kind, len(acl.name))
        bits = holders.get(holder)
        if bits is None:
            bits = holders[holder] = _Bits()
            of_holder = self._by_holder.setdefault((acl.kind, holder), {})
            of_holder[acl.pattern, acl.name] = bits
        if acl.permission == AclPermission.ALLOW:
            bits.allowed |= 1 << acl.operation
        else:
            bits.denied |= 1 << acl.operation

    def remove(self, acl: Acl) -> None:
        """Removes a rule, if it is there."""
        pattern, holder = (acl.kind, acl.pattern, acl.name), (acl.principal, acl.host)
        holders = self._by_pattern.get(pattern, {})
        bits = holders.get(holder)
        if bits is None:
            return
        if acl.permission == AclPermission.ALLOW:
            bits.allowed &= ~(1 << acl.operation)
        else:
            bits.denied &= ~(1 << acl.operation)
        if bits.allowed or bits.denied:
            return
        del holders[holder]
        of_holder = self._by_holder[acl.kind, holder]
        del of_holder[acl.pattern, acl.name]
        if not of_holder:
            del self._by_holder[acl.kind, holder]
        if not holders:
            del self._by_pattern[pattern]
            if acl.pattern == _PREFIXED:
                self._drop_length(acl.kind, len(acl.name))

    def _note_length(self, kind: int, length: int) -> None:
        self._length_counts[kind, length] += 1
        if self._length_counts[kind, length] == 1:
            insort(self._lengths.setdefault(kind, []), length)

    def _drop_length(self, kind: int, length: int) -> None:
        self._length_counts[kind, length] -= 1
        if not self._length_counts[kind, length]:
            del self._length_counts[kind, length]
            self._lengths[kind].remove(length)

    def _patterns(self, kind: int, name: str) -> Iterator[Pattern]:
        """Yields the patterns that would match the resource."""
        yield kind, _LITERAL, name
        yield kind, _LITERAL, WILDCARD
        for length in self._lengths.get(kind, ()):
            if length > len(name):
                break
            yield kind, _PREFIXED, name[:length]

    def find(self, principal: str, host: str, kind: int, name: str) -> Found:
        """Returns what the principal may do to the resource.

        A denial wins over every allowance. READ, WRITE, DELETE and ALTER that are allowed allow
        DESCRIBE too, and ALTER_CONFIGS allows DESCRIBE_CONFIGS; denials imply nothing.
        """
        holders = _holders(principal, host)
        allowed = denied = 0
        has_rules = False
        for pattern in self._patterns(kind, name):
            rules = self._by_pattern.get(pattern)
            if rules is None:
                continue
            has_rules = True
            for holder in holders:
                bits = rules.get(holder)
                if bits is not None:
                    allowed |= bits.allowed
                    denied |= bits.denied
        if denied & _ALL:
            return Found(0, has_rules)
        if allowed & _ALL:
            allowed = EVERY_OPERATION
        if allowed & _IMPLY_DESCRIBE:
            allowed |= _DESCRIBE
        if allowed & _IMPLY_DESCRIBE_CONFIGS:
            allowed |= _DESCRIBE_CONFIGS
        return Found(allowed & ~denied, has_rules)

    def deciding_rule(
        self, principal: str, host: str, kind: int, name: str, operation: int
    ) -> Acl | None:
        """Returns a rule that denies the operation, else one that allows it, for the record."""
        found: Acl | None = None
        for _, pattern, of_rule in self._patterns(kind, name):
            rules = self._by_pattern.get((kind, pattern, of_rule), {})
            for holder in _holders(principal, host):
                bits = rules.get(holder)
                if bits is None:
                    continue
                for said in (operation, AclOperation.ALL):
                    if bits.denied >> said & 1:
                        return Acl(kind, of_rule, pattern, *holder, said, AclPermission.DENY)
                    if bits.allowed >> said & 1:
                        found = Acl(kind, of_rule, pattern, *holder, said, AclPermission.ALLOW)
        return found

    def may_somewhere(self, principal: str, host: str, kind: int, operation: int) -> bool:
        """Returns whether an allowance of the operation on any resource is not denied for all of it
        (Authorizer.authorizeByResourceType).
        """
        wanted = 1 << operation | _ALL
        allowed: list[tuple[int, str]] = []
        denied: set[tuple[int, str]] = set()
        for holder in _holders(principal, host):
            for pattern, bits in self._by_holder.get((kind, holder), {}).items():
                if bits.denied & wanted:
                    denied.add(pattern)
                if bits.allowed & wanted:
                    allowed.append(pattern)
        if (_LITERAL, WILDCARD) in denied:
            return False
        return any(not _is_denied(pattern, denied) for pattern in allowed)


def _is_denied(pattern: tuple[int, str], denied: set[tuple[int, str]]) -> bool:
    """Returns whether denials cover all that the pattern matches."""
    how, name = pattern
    if how == _LITERAL and name == WILDCARD:
        return False
    if how == _LITERAL and pattern in denied:
        return True
    return any((_PREFIXED, name[:length]) in denied for length in range(1, len(name) + 1))


def _holders(principal: str, host: str) -> tuple[Holder, ...]:
    return (principal, host), (principal, WILDCARD), (EVERYONE, host), (EVERYONE, WILDCARD)
