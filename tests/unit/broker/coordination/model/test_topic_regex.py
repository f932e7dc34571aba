"""Regular expressions of clients: RE2's syntax, whole names, and never more than little time."""

from __future__ import annotations

import threading

import pytest

from strandline.broker.coordination.model.classic_messages import CoordinatorFault
from strandline.broker.coordination.model.topic_regex import (
    REGEX_CHARACTERS_MAX,
    check_regex,
    find_topics,
)
from strandline.broker.protocol.schema.errors import ErrorCode

NAMES = ("orders", "orders-eu", "orders-us", "other", "ORDERS", "__consumer_offsets")


@pytest.mark.parametrize(
    ("regex", "found"),
    [
        ("orders", {"orders"}),
        ("orders.*", {"orders", "orders-eu", "orders-us"}),
        ("orders-(eu|us)", {"orders-eu", "orders-us"}),
        ("(?i)orders", {"orders", "ORDERS"}),
        ("^o[^-]+$", {"orders", "other"}),
        ("rder", set()),
        (".*", set(NAMES)),
        (r"\Aorders\z", {"orders"}),
    ],
)
def test_an_expression_matches_whole_names(regex: str, found: set[str]) -> None:
    check_regex(regex)
    assert find_topics([regex], NAMES) == {regex: found}


@pytest.mark.parametrize(
    "regex",
    ["(", "a{2", "[", "*", "(?=a)", "(?<!a)b", r"(a)\1", "a{2000}", "x" * 4097, "(x{999}){999}"],
)
def test_what_re2_does_not_know_or_would_cost_too_much_is_refused(regex: str) -> None:
    if regex == "a{2":
        # RE2 takes an unfinished repetition literally.
        check_regex(regex)
        return
    with pytest.raises(CoordinatorFault) as caught:
        check_regex(regex)
    assert caught.value.error_code is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert caught.value.message


def test_an_expression_that_makes_other_engines_hang_is_matched_like_any() -> None:
    """A backtracking engine needs 2 to the power of 200 steps here."""
    names = ["a" * 200 + "!"] * 1000
    done = threading.Event()

    def search() -> None:
        for evil in ("(a+)+", "(a|aa)+", "(a|a?)+$", "(.*)*x"):
            check_regex(evil)
            assert find_topics([evil], names)[evil] == frozenset()
        done.set()

    threading.Thread(target=search, daemon=True).start()
    assert done.wait(60)


def test_an_expression_from_a_log_that_cannot_be_compiled_finds_nothing() -> None:
    assert find_topics(["(", "other"], NAMES) == {"(": frozenset(), "other": {"other"}}


def test_the_longest_expression_is_compiled() -> None:
    check_regex("x" * REGEX_CHARACTERS_MAX)
