"""The keys of a provider: when they are fetched, and what stays when they are not."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from strandline.broker.security import provider_request
from strandline.broker.security.oauth_config import OAuthConfig
from strandline.broker.server.logins.key_fetcher import UNKNOWN_KEY_S, KeyFetcher, reader_of
from strandline.storage.clock import SystemClock
from tests.support.manual_clock import ManualClock
from tests.support.tokens import WEAK_KEY_SET, key_set, rsa_key, running_provider

ONE, TWO = key_set(rsa_key()), key_set(rsa_key(), rsa_key("rsa-2"))


class Source:
    """What a fetch reads; None fails."""

    def __init__(self, *answers: bytes | None) -> None:
        self.answers = list(answers)
        self.reads = 0

    def __call__(self) -> bytes:
        self.reads += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            raise OSError("refused")
        return answer


def run(source: Source, test: Callable[[KeyFetcher, ManualClock], Awaitable[None]]) -> None:
    async def main() -> None:
        clock = ManualClock()
        config = OAuthConfig(keys_url="https://x/", backoff_ms=1, backoff_ms_max=2)
        with ThreadPoolExecutor(1) as worker:
            keys = KeyFetcher(config, worker, clock, source, listener="CLIENTS")
            task = asyncio.create_task(keys.run())
            try:
                await asyncio.wait_for(test(keys, clock), 60)
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())


def names(keys: KeyFetcher) -> list[str]:
    return [key.key_id for key in keys.current.keys]


async def fetched(keys: KeyFetcher) -> None:
    coming = keys.fetched()
    assert coming is not None
    await coming


def test_a_login_at_the_start_waits_for_the_first_keys() -> None:
    async def test(keys: KeyFetcher, _clock: ManualClock) -> None:
        await fetched(keys)
        assert names(keys) == ["rsa-1"]

    run(Source(ONE), test)


def test_unknown_keys_cause_one_fetch_in_a_while_however_many_ask() -> None:
    source = Source(ONE, ONE, TWO)

    async def test(keys: KeyFetcher, clock: ManualClock) -> None:
        await fetched(keys)
        await asyncio.sleep(0)
        before = source.reads
        await asyncio.gather(*(fetched(keys) for _ in range(50)))
        assert source.reads == before + 1
        assert [keys.fetched() for _ in range(50)] == [None] * 50
        clock.advance_ms(int(UNKNOWN_KEY_S * 1000))
        await fetched(keys)
        assert source.reads == before + 2

    run(source, test)


def test_the_last_good_keys_stay_while_the_provider_is_away() -> None:
    source = Source(ONE, None, b"<html>", WEAK_KEY_SET, None, TWO)

    async def test(keys: KeyFetcher, _clock: ManualClock) -> None:
        await fetched(keys)
        await asyncio.sleep(0)
        await fetched(keys)
        assert names(keys) == ["rsa-1"]
        # Without a question it goes on asking, with pauses, until there are keys.
        while names(keys) != ["rsa-1", "rsa-2"]:
            await asyncio.sleep(0.001)
        assert source.reads == 6

    run(source, test)


def test_keys_come_from_a_file_and_over_http(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_bytes(ONE)
    assert reader_of(OAuthConfig(keys_url=f"file://{file}"), "", ManualClock())() == ONE
    with running_provider(ONE) as provider:
        read = reader_of(OAuthConfig(keys_url=provider.url), "", ManualClock())
        assert read() == ONE
        provider.keys = None
        with pytest.raises(OSError, match="500"):
            read()
    with pytest.raises(OSError, match="refused"):
        read()


def test_a_provider_over_https_has_to_show_the_certificate_of_the_given_authority(
    tmp_path: Path,
) -> None:
    with running_provider(ONE, tmp_path) as provider:
        config = OAuthConfig(keys_url=provider.url)
        assert reader_of(config, (tmp_path / "ca.pem").read_text(), ManualClock())() == ONE
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            reader_of(config, "", ManualClock())()


def test_an_answer_that_comes_byte_by_byte_ends_in_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also its head: each byte would be a new wait on the socket."""
    monkeypatch.setattr(provider_request, "REQUEST_S", 0.2)
    with running_provider(ONE) as provider:
        provider.trickles = True
        with pytest.raises(OSError, match=r"no whole answer|timed out"):
            reader_of(OAuthConfig(keys_url=provider.url), "", SystemClock())()


def test_a_redirect_is_followed_but_never_out_of_tls(tmp_path: Path) -> None:
    with running_provider(ONE) as plain, running_provider(TWO, tmp_path) as sealed:
        authority = (tmp_path / "ca.pem").read_text()

        def read(url: str) -> bytes:
            return reader_of(OAuthConfig(keys_url=url), authority, ManualClock())()

        sealed.redirects_to = plain.url
        with pytest.raises(OSError, match="redirect from https to http"):
            read(sealed.url)
        assert not plain.asked
        sealed.redirects_to, plain.redirects_to = None, sealed.url
        assert read(plain.url) == TWO
        plain.redirects_to = f"ftp{sealed.url.removeprefix('https')}"
        with pytest.raises(OSError, match="redirect from http to ftp"):
            read(plain.url)


def test_the_address_of_a_file_that_has_become_a_pipe_holds_up_nobody(tmp_path: Path) -> None:
    pipe = tmp_path / "keys.json"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="a pipe"):
        reader_of(OAuthConfig(keys_url=f"file://{pipe}"), "", ManualClock())()
