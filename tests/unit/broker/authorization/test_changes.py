"""Rules are created once, found by filters, and deleted together or not at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.broker.authorization import changes
from strandline.broker.authorization.changes import AclResult
from strandline.broker.cluster.metadata.controller_messages import Refusal
from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.security.acl import (
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    PatternType,
    ResourceKind,
)
from tests.unit.broker.authorization.ruled import ALICE, image_of, rule
from tests.unit.broker.authorization.test_index import RULES

READ = rule(AclOperation.READ, "t")


def test_a_rule_is_created_once() -> None:
    decision = changes.create(MetadataImage(), [READ, READ])
    assert decision.results == (AclResult(), AclResult())
    image = MetadataImage().apply_entry(decision.records)
    assert list(image.acls.values()) == [READ]
    again = changes.create(image, [READ])
    assert (again.results, again.records) == ((AclResult(),), ())


@pytest.mark.parametrize(
    "wrong",
    [
        READ._replace(kind=0),
        READ._replace(kind=ResourceKind.ANY),
        READ._replace(kind=99),
        READ._replace(pattern=PatternType.MATCH),
        READ._replace(pattern=PatternType.ANY),
        READ._replace(operation=AclOperation.ANY),
        READ._replace(operation=0),
        READ._replace(permission=AclPermission.ANY),
        READ._replace(name=""),
        READ._replace(host=""),
        READ._replace(principal="alice"),
        READ._replace(kind=ResourceKind.CLUSTER, name="mine"),
    ],
)
def test_what_is_no_rule_is_refused_and_the_others_are_created(wrong: Acl) -> None:
    decision = changes.create(MetadataImage(), [wrong, READ])
    refused, created = decision.results
    assert refused.error_code is ErrorCode.INVALID_REQUEST
    assert created == AclResult()
    assert len(decision.records) == 1


def test_rules_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "ACLS_MAX", 2)
    wanted = [rule(AclOperation.READ, name) for name in "abc"]
    *_, refused = changes.create(MetadataImage(), wanted).results
    assert refused.error_code is ErrorCode.POLICY_VIOLATION


FILTERS = st.builds(
    AclFilter,
    st.sampled_from([ResourceKind.ANY, ResourceKind.TOPIC, ResourceKind.GROUP]),
    st.sampled_from([None, "a", "ab", "*", "abcd"]),
    st.sampled_from(PatternType),
    st.sampled_from([None, ALICE]),
    st.sampled_from([None, "*"]),
    st.sampled_from([AclOperation.ANY, AclOperation.READ, AclOperation.ALL]),
    st.sampled_from(AclPermission),
)


@given(st.lists(RULES, max_size=8, unique=True), st.lists(FILTERS, max_size=4))
def test_each_filter_finds_what_it_matches_also_if_that_can_be_only_one(
    rules: list[Acl], filters: list[AclFilter]
) -> None:
    image = image_of(rules)
    assert changes.find(image, filters) == [
        [acl for acl in rules if wanted.matches(acl)] for wanted in filters
    ]
    exact = [AclFilter(*acl) for acl in rules]
    assert changes.find(image, exact) == [[acl] for acl in rules]


def test_many_filters_with_names_do_not_look_at_each_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = [rule(AclOperation.READ, f"t{number}") for number in range(1000)]
    rules += [
        rule(AclOperation.READ, f"p{number}.", pattern=PatternType.PREFIXED)
        for number in range(1000)
    ]
    image = image_of(rules)
    looks: list[Acl] = []
    matches = AclFilter.matches

    def counted(self: AclFilter, acl: Acl) -> bool:
        looks.append(acl)
        return matches(self, acl)

    monkeypatch.setattr(AclFilter, "matches", counted)
    filters = [
        AclFilter(name=name, pattern=pattern)
        for number in range(500)
        for name, pattern in (
            (f"t{number}", PatternType.ANY),
            (f"p{number}.x", PatternType.MATCH),
            (f"none{number}", PatternType.MATCH),
        )
    ]
    found = changes.find(image, filters)
    assert sum(map(len, found)) == 1000
    assert len(looks) == 1000


def test_a_match_finds_the_patterns_of_a_resource() -> None:
    prefix = rule(AclOperation.READ, "ab", pattern=PatternType.PREFIXED)
    every, other = rule(AclOperation.READ, "*"), rule(AclOperation.READ, "abd")
    wanted = AclFilter(kind=ResourceKind.TOPIC, name="abc", pattern=PatternType.MATCH)
    assert [acl for acl in (prefix, every, other) if wanted.matches(acl)] == [prefix, every]


def test_found_rules_are_deleted_and_said_for_each_filter() -> None:
    other = rule(AclOperation.WRITE, "t")
    image = image_of([READ, other])
    decision = changes.delete(image, [[READ], [READ, other], []])
    assert [one.deleted for one in decision.results] == [[READ], [READ, other], []]
    assert not image.apply_entry(decision.records).acls
    # One that another request deleted meanwhile is not deleted twice.
    assert changes.delete(MetadataImage(), [[READ]]).results == (AclResult(deleted=[]),)


def test_too_many_deletions_delete_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "DELETIONS_MAX", 1)
    other = rule(AclOperation.WRITE, "t")
    decision = changes.delete(image_of([READ, other]), [[READ], [other]])
    assert decision.records == ()
    assert {one.error_code for one in decision.results} == {ErrorCode.INVALID_REQUEST}
    assert not any(one.deleted for one in decision.results)


def test_a_filter_with_numbers_that_nothing_has_is_refused() -> None:
    for wrong in (AclFilter(kind=0), AclFilter(pattern=0), AclFilter(operation=99)):
        with pytest.raises(Refusal):
            changes.check_filter(wrong)
    changes.check_filter(AclFilter())
