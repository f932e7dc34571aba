"""The index of rules answers as a look at every rule does, whatever is added and removed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from strandline.broker.authorization.index import AclIndex
from strandline.broker.security.acl import (
    EVERYONE,
    WILDCARD,
    Acl,
    AclOperation,
    AclPermission,
    PatternType,
    ResourceKind,
)
from tests.unit.broker.authorization.ruled import ALICE, HOST, judged, rule, verdict

NAMES = ("a", "ab", "abc", "b", "*", "abd")
OPERATIONS = [one for one in AclOperation if one is not AclOperation.ANY]
RULES = st.builds(
    Acl,
    st.sampled_from([ResourceKind.TOPIC, ResourceKind.GROUP]),
    st.sampled_from(NAMES),
    st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    st.sampled_from([ALICE, "User:bob", EVERYONE]),
    st.sampled_from([HOST, "10.0.0.2", WILDCARD]),
    st.sampled_from(OPERATIONS),
    st.sampled_from([AclPermission.ALLOW, AclPermission.DENY]),
)


def indexed(rules: list[Acl]) -> AclIndex:
    index = AclIndex()
    for acl in rules:
        index.add(acl)
    return index


@given(st.lists(RULES, max_size=12, unique=True), st.sampled_from(["a", "ab", "abc", "x", "*"]))
def test_the_index_says_what_all_rules_say(rules: list[Acl], name: str) -> None:
    index = indexed(rules)
    for kind in (ResourceKind.TOPIC, ResourceKind.GROUP):
        found = index.find(ALICE, HOST, kind, name)
        for operation in OPERATIONS[1:]:
            expected = judged(rules, ALICE, HOST, operation, kind, name)
            assert bool(found.operations >> operation & 1) is expected, (operation, kind)


@given(st.lists(RULES, max_size=12, unique=True), st.data())
def test_removed_rules_leave_nothing_behind(rules: list[Acl], data: st.DataObject) -> None:
    gone = data.draw(st.lists(st.sampled_from(rules), unique=True)) if rules else []
    index = indexed(rules)
    for acl in gone:
        index.remove(acl)
    fresh = indexed([acl for acl in rules if acl not in gone])
    for kind in (ResourceKind.TOPIC, ResourceKind.GROUP):
        for name in NAMES:
            assert index.find(ALICE, HOST, kind, name) == fresh.find(ALICE, HOST, kind, name)
    for acl in rules:
        index.remove(acl)
    assert (index._by_pattern, index._by_holder, +index._length_counts) == ({}, {}, {})
    assert not any(index._lengths.values())


def _somewhere(rules: list[Acl], operation: AclOperation) -> bool:
    """Kafka's Authorizer.authorizeByResourceType, by looking at every rule."""
    mine = [
        acl
        for acl in rules
        if acl.kind == ResourceKind.TOPIC
        and acl.operation in (operation, AclOperation.ALL)
        and verdict(acl, ALICE, HOST, operation) is not None
    ]
    denied = {(acl.pattern, acl.name) for acl in mine if acl.permission == AclPermission.DENY}
    if (PatternType.LITERAL, WILDCARD) in denied:
        return False
    for acl in mine:
        if acl.permission == AclPermission.DENY:
            continue
        if (acl.pattern, acl.name) == (PatternType.LITERAL, WILDCARD):
            return True
        if acl.pattern == PatternType.LITERAL and (acl.pattern, acl.name) in denied:
            continue
        prefixes = [name for pattern, name in denied if pattern == PatternType.PREFIXED]
        if not any(acl.name.startswith(prefix) for prefix in prefixes):
            return True
    return False


@given(st.lists(RULES, max_size=10, unique=True))
def test_a_right_somewhere_is_one_that_is_not_denied_everywhere(rules: list[Acl]) -> None:
    index = indexed(rules)
    for operation in (AclOperation.WRITE, AclOperation.READ):
        found = index.may_somewhere(ALICE, HOST, ResourceKind.TOPIC, operation)
        assert found is _somewhere(rules, operation)


def test_a_denial_is_explained_by_the_rule_that_denies() -> None:
    allowed = rule(AclOperation.READ, "ab")
    denied = rule(
        AclOperation.ALL,
        "a",
        pattern=PatternType.PREFIXED,
        principal=EVERYONE,
        permission=AclPermission.DENY,
    )
    index = indexed([allowed, denied])
    topic = ResourceKind.TOPIC
    assert index.deciding_rule(ALICE, HOST, topic, "ab", AclOperation.READ) == denied
    assert indexed([allowed]).deciding_rule(ALICE, HOST, topic, "ab", AclOperation.READ) == allowed
    assert indexed([]).deciding_rule(ALICE, HOST, topic, "ab", AclOperation.READ) is None
