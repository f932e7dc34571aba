"""A bound on the memory of many buffers, under which they cannot wait for each other."""

from __future__ import annotations

from functools import partial

from strandline.broker.network.buffer_pool import BufferPool


def test_those_that_wait_are_granted_their_bytes_in_the_order_of_arrival() -> None:
    pool = BufferPool(100)
    assert pool.take(99)
    assert pool.take(1000)
    assert not pool.take(1)
    granted: list[str] = []
    for name, byte_count in (("first", 60), ("second", 60), ("third", 1)):
        # Each has a callback of its own.
        pool.wait(byte_count, partial(granted.append, name))
    pool.give_back(99)
    assert granted == []
    pool.give_back(1000)
    assert granted == ["first", "second"]
    assert not pool.take(1)
    pool.give_back(60)
    assert granted == ["first", "second", "third"]
    assert pool.taken_bytes == 61


def test_who_leaves_is_not_granted_anything() -> None:
    pool = BufferPool(100)
    pool.take(100)
    granted: list[str] = []
    first, second = partial(granted.append, "first"), partial(granted.append, "second")
    pool.wait(5, first)
    pool.wait(5, second)
    pool.leave(first)
    pool.give_back(100)
    assert granted == ["second"]
    assert pool.taken_bytes == 5


def test_a_pool_without_a_bound_grants_everything() -> None:
    pool = BufferPool()
    assert not pool.is_bounded
    assert all(pool.take(2**40) for _ in range(10))
