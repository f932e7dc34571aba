"""Where a broker gets its own token: a file, or a provider that is a real server here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.broker.security import token_source
from strandline.broker.security.token_source import NoToken, TokenSource
from strandline.storage.clock import SystemClock
from tests.support.manual_clock import ManualClock
from tests.support.token_endpoint import (
    CLIENT_ID,
    CLIENT_SECRET,
    LIFETIME_S,
    SCOPE,
    issued,
    running_token_endpoint,
)
from tests.support.tokens import running_provider


def source(url: str, *, secret: str = CLIENT_SECRET, scope: str | None = SCOPE) -> TokenSource:
    return TokenSource(url, client_id=CLIENT_ID, secret=secret, scope=scope, authority="")


def test_a_token_in_a_file_is_read_anew_for_each_login(tmp_path: Path) -> None:
    file = tmp_path / "token"
    tokens = source(f"file://{file}")
    for text in ("one", "two"):
        file.write_text(f"{text}\n")
        assert tokens.read(SystemClock()) == text
    file.unlink()
    with pytest.raises(NoToken, match=r"no token in file:///.*No such file"):
        tokens.read(SystemClock())


def test_a_provider_is_asked_again_when_most_of_a_tokens_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock(SystemClock().now_ms())
    texts = iter(issued(LIFETIME_S + extra) for extra in range(3))
    asked = []

    def read_url(*_: object, **__: object) -> bytes:
        asked.append(clock.now_ms())
        return b'{"access_token": "%s"}' % next(texts).encode()

    monkeypatch.setattr(token_source, "read_url", read_url)
    tokens = source("https://provider")
    first = tokens.read(clock)
    clock.advance_ms(LIFETIME_S * 500)
    assert tokens.read(clock) == first
    clock.advance_ms(int(LIFETIME_S * 0.4 * 1000))
    assert tokens.read(clock) != first
    assert len(asked) == 2


def test_a_token_that_has_not_ended_serves_while_the_provider_is_away() -> None:
    clock = ManualClock(SystemClock().now_ms())
    with running_token_endpoint() as provider:
        tokens = source(provider.tokens)
        first = tokens.read(clock)
    clock.advance_ms(int(LIFETIME_S * 0.9 * 1000))
    assert tokens.read(clock) == first
    clock.advance_ms(int(LIFETIME_S * 0.2 * 1000))
    with pytest.raises(NoToken, match=r"no token of http.*refused"):
        tokens.read(clock)


def test_logins_do_not_wait_each_for_a_provider_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock(SystemClock().now_ms())
    asked = []

    def read_url(*_: object, **__: object) -> bytes:
        asked.append(clock.now_ms())
        if len(asked) > 1:
            raise TimeoutError("no whole answer within 10 s")
        return b'{"access_token": "%s"}' % issued(10 * LIFETIME_S).encode()

    monkeypatch.setattr(token_source, "read_url", read_url)
    tokens = source("https://provider")
    first = tokens.read(clock)
    clock.advance_ms(9 * LIFETIME_S * 1000)
    assert [tokens.read(clock) for _ in range(3)] == [first] * 3
    assert len(asked) == 2
    clock.advance_ms(LIFETIME_S * 1000)
    with pytest.raises(NoToken):
        tokens.read(clock)


@pytest.mark.parametrize("change", [{"secret": "wrong"}, {"scope": "another"}])
def test_a_provider_that_refuses_the_client_is_named_and_the_secret_is_not(
    change: dict[str, str],
) -> None:
    with (
        running_token_endpoint() as provider,
        pytest.raises(NoToken, match="HTTP Error 400") as refused,
    ):
        source(provider.tokens, **change).read(SystemClock())
    assert "wrong" not in str(refused.value)


@pytest.mark.parametrize(
    "answer",
    [
        b"<html>",
        b"[]",
        b"{}",
        b'{"access_token": 7}',
        b'{"access_token": "opaque"}',
        b'{"access_token": "e30.e30.e30"}',
        b'{"access_token": "%s"}' % (b"x" * 200_000),
    ],
)
def test_an_answer_without_a_token_is_told(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: Callable[..., bytes] = lambda *_, **__: answer  # noqa: E731
    monkeypatch.setattr(token_source, "read_url", reads)
    with pytest.raises(NoToken, match="has no access_token"):
        source("https://provider").read(SystemClock())


def test_a_secret_follows_no_redirect() -> None:
    with running_provider(b"") as provider, running_provider(b"") as elsewhere:
        provider.redirects_to = elsewhere.url
        with pytest.raises(NoToken, match="redirect of a request with a secret"):
            source(provider.url).read(SystemClock())
        assert not elsewhere.asked
