"""Work that goes on side by side ends together."""

from __future__ import annotations

import asyncio

import pytest

from strandline.storage.concurrency.tasks import side_by_side


async def for_ever(ended: list[str], name: str) -> None:
    try:
        await asyncio.sleep(3600)
    finally:
        ended.append(name)


async def fail() -> None:
    await asyncio.sleep(0)
    raise ValueError("the first one")


def test_what_fails_ends_the_others_and_is_what_is_raised() -> None:
    """Who begins it again has nobody of the first time beside it."""
    ended: list[str] = []

    async def whole() -> None:
        for _ in range(3):
            with pytest.raises(ValueError, match="the first one"):
                await side_by_side(for_ever(ended, "a"), fail(), for_ever(ended, "b"))
            assert len(asyncio.all_tasks()) == 1

    asyncio.run(whole())
    assert sorted(ended) == ["a", "a", "a", "b", "b", "b"]


def test_being_cancelled_ends_all() -> None:
    ended: list[str] = []

    async def whole() -> None:
        working = asyncio.ensure_future(side_by_side(for_ever(ended, "a"), for_ever(ended, "b")))
        await asyncio.sleep(0.01)
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working

    asyncio.run(whole())
    assert sorted(ended) == ["a", "b"]
