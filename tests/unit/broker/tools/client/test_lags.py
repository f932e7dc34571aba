"""The lag of a group: what its places and the oldest unread records tell."""

from __future__ import annotations

import pytest

from strandline.broker.tools.client.failures import ToolFailure
from strandline.broker.tools.client.lags import PLACES_MAX, GroupLag, chosen, lag_of, places_of
from strandline.broker.tools.client.reading import Place

NOW_MS = 1_000_000
NEAR = Place(("t", 0), 9, 10)
FAR = Place(("t", 1), 0, 50)
DONE = Place(("t", 2), 10, 10)


def test_places_are_those_of_partitions_that_exist_and_the_furthest_behind_is_first() -> None:
    committed = {("t", 0): 9, ("deleted", 0): 4, ("t", 1): 0, ("t", 2): 10}
    ends = {("t", 0): 10, ("t", 1): 50, ("t", 2): 10}
    assert places_of(committed, ends) == [FAR, NEAR, DONE]


def test_an_end_that_is_not_known_makes_no_sum_of_the_others() -> None:
    committed = {("t", 0): 9, ("t", 1): 0}
    with pytest.raises(ToolFailure, match="t-1 has no leader"):
        places_of(committed, {("t", 0): 10, ("t", 1): ToolFailure("t-1 has no leader")})


def test_offsets_that_are_not_known_are_no_lag_of_nothing() -> None:
    with pytest.raises(ToolFailure, match="no right"):
        places_of(ToolFailure("no right"), {})


def test_each_group_has_its_furthest_place_read_before_any_has_all() -> None:
    other = Place(("t", 0), 3, 10)
    assert chosen([[FAR, NEAR, DONE], [other, DONE], [FAR]]) == [FAR, other, NEAR]


def test_the_places_that_are_read_have_a_bound() -> None:
    many = [Place(("t", number), 0, 10) for number in range(PLACES_MAX + 5)]
    assert chosen([many, [FAR]]) == [many[0], FAR, *many[1 : PLACES_MAX - 1]]


def test_the_age_is_that_of_the_oldest_record_wherever_it_is() -> None:
    times = {NEAR: NOW_MS - 90_500, FAR: NOW_MS - 1_000}
    assert lag_of([FAR, NEAR, DONE], times, NOW_MS) == GroupLag(records=51, age_s=90.5)


def test_a_group_at_the_end_is_not_behind_and_one_without_offsets_not_known() -> None:
    assert lag_of([DONE], {}, NOW_MS) == GroupLag(records=0, age_s=0)
    assert lag_of([Place(("t", 0), 12, 10)], {}, NOW_MS) == GroupLag(records=0, age_s=0)
    assert lag_of([], {}, NOW_MS) == GroupLag()


def test_a_record_of_the_future_is_not_old() -> None:
    assert lag_of([NEAR], {NEAR: NOW_MS + 5}, NOW_MS) == GroupLag(records=1, age_s=0)


def test_an_age_is_not_known_before_all_of_its_places_are_read() -> None:
    unread = lag_of([FAR, NEAR], {FAR: NOW_MS, NEAR: ToolFailure("nothing came")}, NOW_MS)
    assert unread == GroupLag(records=51, trouble="nothing came")
    unread = lag_of([FAR, NEAR], {FAR: NOW_MS}, NOW_MS)
    assert unread.age_s is None
    assert "10,000 partitions are behind" in unread.trouble
