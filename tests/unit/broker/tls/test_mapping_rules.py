"""Rules map names to users as Kafka's own class maps them."""

from __future__ import annotations

import pytest

from strandline.broker.tls.mapping_rules import NAME_LENGTH_MAX, MappingRules, NoRuleMatches
from strandline.storage.errors import InvalidConfig

# Rules, a name, and what `SslPrincipalMapper` of Kafka 4.4 returns.
OF_KAFKA = [
    ("DEFAULT", "CN=a,O=b", "CN=a,O=b"),
    ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", "CN=kafka,OU=ServiceUsers,O=x", "kafka"),
    (
        "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L",
        "CN=Duke,OU=JavaSoft,O=Sun,L=x,ST=y,C=z",
        "duke@javasoft",
    ),
    ("RULE:^cn=(.*?),ou=(.*?)$/$1/L, RULE:^CN=(.*)$/$1/U,DEFAULT", "CN=duke", "DUKE"),
    ("RULE:^cn=(.*)$/$1/L,DEFAULT", "CN=duke", "CN=duke"),
    ("RULE:.*/ANON/", "CN=duke", "ANONANON"),
    ("RULE:CN=(.*?)/$1/", "CN=duke", "duke"),
    ("RULE:CN=(.*?)/x$1/", "CN=duke", "xduke"),
    ("RULE:^CN=(.*)$/$0-$1-$2/", "CN=duke", "CN=duke-duke-$2"),
    ("RULE:^CN=(.*)$/a\\$1/", "CN=duke", "a$1"),
    ("RULE:^CN=(.*)$/a\\/b/", "CN=duke", "a/b"),
    ("RULE:^CN=(.*),O=a\\/b$/$1/", "CN=duke,O=a/b", "duke"),
    ("RULE:^CN=(.*)$/$10/", "CN=duke", "duke0"),
    ("RULE:^CN=(.*?),O=Example\\\\, Inc.$/$1/", "CN=w,O=Example\\, Inc.", "w"),
    ("RULE:^CN=([^,]+),.*$/$1/", "CN=w,O=a,b", "w"),
    ("RULE:^CN=(a|b),.*$/$1/,RULE:^.*CN=(.*)$/$1/", "O=z,CN=c", "c"),
    ("RULE:^CN=(.*)$//", "CN=c", ""),
    ("RULE:^CN=(.*)$/ $1 /L", "CN=C", " c "),
    (" RULE:^CN=(.*)$/$1/L , DEFAULT ", "O=C", "O=C"),
    ("RULE:^CN=(.*?)$/$1/L,,DEFAULT", "O=C", "O=C"),
    ("RULE:^CN=(İI.*)$/$1/L", "CN=İIX", "i̇ix"),
    ("RULE:^CN=(.*)$/$1/U", "CN=straße", "STRASSE"),
]
NO_MATCH = [
    ("RULE:^cn=(.*)$/$1/L", "CN=duke"),
    ("", "CN=Duke"),
    ("RULE:^CN=(.)\\\\1$/$1/", "CN=cc"),
]
NO_RULES = [
    "RULE:^CN=(.*)$/a$b/",
    "RULE:^CN=(.*)$/$1/LU",
    "RULE:^CN=(.*)$/$1/X",
    "RULE:^CN=(.*)$/$1",
    "default",
    "RULE:^CN=(.*)$/$1/L DEFAULT",
    "RULE:^CN=(.*)$/$1/L;DEFAULT",
    "RULE://x/",
    "RULE:^CN=(.*$/$1/",
    "RULE:^CN=(?=a).*$/x/",  # RE2 has no look-around
    "RULE:^CN=(.)\\1$/x/",  # and no back references
    "RULE:^CN=(?P<n>.*)$/${n}/",  # groups have numbers
]


@pytest.mark.parametrize(("rules", "name", "user"), OF_KAFKA)
def test_a_name_becomes_the_user_that_it_is_in_kafka(rules: str, name: str, user: str) -> None:
    assert MappingRules(rules).user_of(name) == user


@pytest.mark.parametrize(("rules", "name"), NO_MATCH)
def test_a_name_without_a_rule_is_nobodys(rules: str, name: str) -> None:
    with pytest.raises(NoRuleMatches):
        MappingRules(rules).user_of(name)


@pytest.mark.parametrize("rules", NO_RULES)
def test_what_is_no_rule_is_refused_before_a_client_comes(rules: str) -> None:
    with pytest.raises(InvalidConfig, match=r"ssl\.principal\.mapping\.rules"):
        MappingRules(rules)


@pytest.mark.parametrize("line_break", ["\n", "\r", "\x85", "\u2028", "\u2029"])
def test_a_line_break_does_not_make_another_user_of_a_name(line_break: str) -> None:
    rules = MappingRules("RULE:^CN=(.*),O=Example$/$1/")
    assert rules.user_of("CN=admin,O=Example") == "admin"
    for hostile in (f"CN=admin,O=Example{line_break}", f"CN=a{line_break}CN=admin,O=Example"):
        with pytest.raises(NoRuleMatches):
            rules.user_of(hostile)


def test_a_hostile_name_takes_no_more_time_than_its_length() -> None:
    """A library that tracks back would take years for the pattern."""
    rules = MappingRules("RULE:^CN=(a*)*b$/$1/, DEFAULT")
    name = "CN=" + "a" * (NAME_LENGTH_MAX - 3)
    assert rules.user_of(name) == name


def test_a_name_above_the_longest_matches_no_rule() -> None:
    rules = MappingRules("RULE:^.*$/x/")
    assert rules.user_of("C" * NAME_LENGTH_MAX) == "x"
    with pytest.raises(NoRuleMatches):
        rules.user_of("C" * (NAME_LENGTH_MAX + 1))
