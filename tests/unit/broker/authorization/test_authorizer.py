"""Who may do what: super users, rules, and what is remembered of them."""

from __future__ import annotations

import pytest

from strandline.broker.authorization import authorizer as authorizers
from strandline.broker.authorization.authorizer import EVERY_RIGHT, Denial
from strandline.broker.authorization.config import AuthorizerConfig
from strandline.broker.security.acl import (
    EVERYONE,
    AclOperation,
    AclPermission,
    PatternType,
    ResourceKind,
)
from strandline.storage.config.definition import keys_of
from strandline.storage.errors import InvalidConfig
from tests.unit.broker.authorization.ruled import (
    ALICE,
    HOST,
    authorizer_of,
    follow,
    image_of,
    rule,
)

READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
TOPIC = ResourceKind.TOPIC


def test_nobody_may_do_what_no_rule_allows() -> None:
    access = authorizer_of().access(ALICE, HOST)
    assert not any(access.may(one, TOPIC, "t") for one in AclOperation)


def test_a_super_user_may_do_everything_even_what_is_denied() -> None:
    denied = rule(AclOperation.ALL, "*", principal=EVERYONE, permission=AclPermission.DENY)
    authorizer = authorizer_of([denied], super_users=frozenset({ALICE}))
    assert all(authorizer.access(ALICE, HOST).may(one, TOPIC, "t") for one in AclOperation)
    assert not authorizer.access("User:bob", HOST).may(READ, TOPIC, "t")
    assert authorizer.access(ALICE, HOST).may_somewhere(WRITE, TOPIC)


def test_without_any_rule_of_a_resource_the_setting_decides() -> None:
    of_another = rule(READ, "t", principal="User:bob")
    access = authorizer_of([of_another], allows_without_acl=True).access(ALICE, HOST)
    assert access.may(READ, TOPIC, "other")
    assert access.may_somewhere(WRITE, TOPIC)
    # The topic has a rule, if of another principal.
    assert not access.may(READ, TOPIC, "t")


def test_changed_rules_decide_at_once_and_also_for_who_was_decided_on() -> None:
    authorizer, kept = authorizer_of(), authorizer_of().access(ALICE, HOST)
    before, after = image_of([]), image_of([rule(WRITE, "t")])
    kept = authorizer.access(ALICE, HOST)
    assert not kept.may(WRITE, TOPIC, "t")
    follow(authorizer, before, after)
    assert kept.may(WRITE, TOPIC, "t")
    assert kept.may(DESCRIBE, TOPIC, "t")
    follow(authorizer, after, before)
    assert not kept.may(WRITE, TOPIC, "t")
    assert not authorizer.access(ALICE, HOST).may(WRITE, TOPIC, "t")


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorizers, "DECISIONS_MAX", 10)
    authorizer = authorizer_of([rule(READ, "t", pattern=PatternType.PREFIXED)])
    access = authorizer.access(ALICE, HOST)
    for number in range(100):
        assert access.may(READ, TOPIC, f"t{number}")
        assert not authorizer.access(f"User:{number}", HOST).may(READ, TOPIC, "t")
        assert len(access._known) <= 11
        assert len(authorizer._accesses) <= 11
    for number in range(100):
        access.may(READ, TOPIC, "t" * 192 + str(number))
        assert sum(len(name) for _, name in access._known) < 1000
    long_name = "t" * 1000
    assert access.may(READ, TOPIC, long_name)
    assert (TOPIC, long_name) not in access._known


def test_a_denial_is_told_and_counted_and_a_look_is_not() -> None:
    told: list[Denial] = []
    denied = rule(WRITE, "t", permission=AclPermission.DENY)
    authorizer = authorizer_of([denied], told=told)
    access = authorizer.access(ALICE, HOST)
    assert not access.shows(WRITE, TOPIC, "t")
    assert told == []
    assert not access.may(WRITE, TOPIC, "t")
    assert not access.may_cluster(AclOperation.ALTER)
    cluster = ResourceKind.CLUSTER
    assert told == [
        Denial(principal=ALICE, host=HOST, operation=WRITE, kind=TOPIC, name="t"),
        Denial(ALICE, HOST, operation=AclOperation.ALTER, kind=cluster, name="kafka-cluster"),
    ]
    assert [authorizer.rule_of(one) for one in told] == [denied, None]
    assert authorizer.denied_counts == {(TOPIC, WRITE): 1, (cluster, AclOperation.ALTER): 1}


def test_without_an_authorizer_everything_is_allowed() -> None:
    assert all(EVERY_RIGHT.may(one, TOPIC, "t") for one in AclOperation)


def parsed(name: str, text: str) -> object:
    (key,) = [one for one in keys_of(AuthorizerConfig) if one.name == name]
    return key.parse(text)


def test_super_users_are_separated_by_semicolons_as_their_names_have_commas() -> None:
    assert parsed("super.users", "User:CN=a,O=b; User:c ;") == {"User:CN=a,O=b", "User:c"}
    for wrong in ("alice", "User:", ":alice", "User:a;b"):
        with pytest.raises(InvalidConfig, match=r"super\.users"):
            parsed("super.users", wrong)


def test_another_authorizer_is_refused_by_name() -> None:
    assert parsed("authorizer.class.name", "") == ""
    with pytest.raises(InvalidConfig, match="StandardAuthorizer"):
        parsed("authorizer.class.name", "kafka.security.authorizer.AclAuthorizer")


def test_super_users_of_no_authorizer_are_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"authorizer\.class\.name"):
        AuthorizerConfig(super_users=frozenset({ALICE})).check()
    AuthorizerConfig(allows_without_acl=True).check()
