"""Work in threads, a bounded number of pieces ahead of who takes the results."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice

import pytest

from strandline.storage.concurrency.maps import map_ahead


def test_results_come_in_order_whichever_ends_first() -> None:
    later = threading.Event()

    def work(number: int) -> int:
        if number == 0:
            assert later.wait(60)
        elif number == 2:
            later.set()
        return number * 10

    with ThreadPoolExecutor(3) as executor:
        assert list(map_ahead(executor, work, range(5), ahead_max=3)) == [0, 10, 20, 30, 40]


def test_no_more_is_begun_than_may_wait_to_be_taken() -> None:
    with ThreadPoolExecutor(2) as executor:
        asked = count()
        results = map_ahead(executor, str, asked, ahead_max=4)
        assert list(islice(results, 3)) == ["0", "1", "2"]
        assert next(asked) == 6
        results.close()  # type: ignore[attr-defined]  # it is a generator


def test_what_fails_ends_it_and_what_has_not_begun_is_given_up() -> None:
    begun: list[int] = []
    gate = threading.Event()

    def work(number: int) -> int:
        begun.append(number)
        if number == 1:
            raise ValueError("it failed")
        if number == 2:
            assert gate.wait(60)
        return number

    with ThreadPoolExecutor(1) as executor:
        results = map_ahead(executor, work, range(100), ahead_max=10)
        assert next(results) == 0
        with pytest.raises(ValueError, match="it failed"):
            next(results)
        gate.set()
    assert len(begun) <= 4
