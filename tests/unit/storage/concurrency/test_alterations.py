"""A sleep goes by the limit of the moment, and keeps since when it lasts."""

from __future__ import annotations

import asyncio

from strandline.storage.concurrency.alterations import Alterations

HOUR_S = 3600.0


def test_a_sleep_ends_when_its_limit_is_lowered_to_what_has_passed() -> None:
    async def main() -> None:
        alterations, limits_s = Alterations(), [HOUR_S]
        sleeping = asyncio.ensure_future(alterations.sleep(lambda: limits_s[0]))
        await asyncio.sleep(0)
        # What others alter changes nothing.
        alterations.note()
        await asyncio.sleep(0.01)
        assert not sleeping.done()
        limits_s[0] = 0.01
        alterations.note()
        await asyncio.wait_for(sleeping, 60)

    asyncio.run(main())


def test_a_raised_limit_counts_from_the_beginning_of_the_sleep() -> None:
    async def main() -> None:
        alterations, limits_s = Alterations(), [0.02]
        sleeping = asyncio.ensure_future(alterations.sleep(lambda: limits_s[0]))
        await asyncio.sleep(0)
        limits_s[0] = HOUR_S
        # Asked at its end, too: not every limit has somebody who notes its alteration.
        await asyncio.sleep(0.05)
        assert not sleeping.done()
        sleeping.cancel()

    asyncio.run(main())


def test_every_sleep_is_told() -> None:
    async def main() -> None:
        alterations, limits_s = Alterations(), [HOUR_S]
        sleeping = [alterations.sleep(lambda: limits_s[0]) for _ in range(3)]
        all_of_them = asyncio.gather(*sleeping)
        await asyncio.sleep(0)
        limits_s[0] = 0.0
        alterations.note()
        await asyncio.wait_for(all_of_them, 60)

    asyncio.run(main())


def test_a_limit_of_0_lets_others_run() -> None:
    async def main() -> None:
        alterations, turns = Alterations(), 0

        async def hurry() -> None:
            nonlocal turns
            while True:
                await alterations.sleep(lambda: 0.0)
                turns += 1

        hurrying = asyncio.ensure_future(hurry())
        await asyncio.sleep(0.01)
        assert turns > 1
        hurrying.cancel()

    asyncio.run(main())
