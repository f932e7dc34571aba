"""The server's half of OAUTHBEARER, message by message."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from strandline.broker.security.jwks import KeySet, read_keys
from strandline.broker.security.mechanism import AuthenticationFailed, NotYet
from strandline.broker.security.oauth import INVALID_TOKEN, OAuthExchange
from strandline.broker.security.oauth_config import OAuthConfig
from tests.support.tokens import AUDIENCE, NOW_S, claims, first_message, key_set, rsa_key, token

END = b"\x01"


class Keys:
    """Keys that a fetch replaces, if one is allowed."""

    def __init__(self, current: bytes, coming: bytes | None = None) -> None:
        self.current = read_keys(current)
        self.coming = coming
        self.fetches = 0

    def fetched(self) -> Awaitable[object] | None:
        if self.coming is None:
            return None
        self.fetches += 1
        self.current = read_keys(self.coming)
        return asyncio.sleep(0)


def exchange(keys: Keys | None = None) -> OAuthExchange:
    config = OAuthConfig(audiences=(AUDIENCE,))
    return OAuthExchange(config, keys or Keys(key_set(rsa_key())), lambda: NOW_S * 1000)


def refusal(begun: OAuthExchange, message: bytes) -> AuthenticationFailed:
    """A client sends a bad token, reads the answer, and ends the exchange."""
    answer = begun.step(message)
    assert (answer.answer.decode(), answer.user) == (INVALID_TOKEN, None)
    with pytest.raises(AuthenticationFailed) as caught:
        begun.step(END)
    assert caught.value.told == INVALID_TOKEN
    return caught.value


@pytest.mark.parametrize("user", ["", "alice"])
def test_a_good_token_lets_its_user_in_until_it_ends(user: str) -> None:
    step = exchange().step(first_message(token(), user))
    assert (step.answer, step.user, step.expires_ms) == (b"", "alice", (NOW_S + 600) * 1000)


def test_extensions_are_read_and_ignored() -> None:
    message = first_message(token())[:-1] + b"logicalCluster=lkc-1\x01pool=a b\x01" + END
    assert exchange().step(message).user == "alice"


def test_a_bad_token_is_told_as_kafka_tells_it_and_why_is_for_the_log() -> None:
    failed = refusal(exchange(), first_message(token(said=claims(exp=NOW_S - 100, iat=1))))
    assert (str(failed), failed.user) == ("the token has expired", "alice")


def test_nobody_logs_in_as_another() -> None:
    refusal(exchange(), first_message(token(), "root"))


@pytest.mark.parametrize(
    "message",
    [
        b"",
        END,
        b"n,,",
        b"y,,\x01auth=Bearer abc\x01\x01",
        b"n,,\x01auth=Basic abc\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Bearer a\xffb\x01\x01",
        b"n,,\x01auth=Bearer abc\x01auth=Bearer def\x01\x01",
        b"n,,\x01auth=Bearer abc\x01=x\x01\x01",
        b"n,,\x01auth=Bearer abc\x01",
        first_message("abc") + b"more",
        b"n,a=" + b"x" * 500_000,
    ],
)
def test_a_malformed_message_ends_the_login(message: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        exchange().step(message)


def test_a_token_by_a_new_key_waits_for_one_fetch() -> None:
    keys = Keys(key_set(rsa_key()), coming=key_set(rsa_key(), rsa_key("rsa-2")))
    begun, message = exchange(keys), first_message(token(rsa_key("rsa-2")))

    async def log_in() -> None:
        with pytest.raises(NotYet) as not_yet:
            begun.step(message)
        await not_yet.value.ready
        assert begun.step(message).user == "alice"

    asyncio.run(log_in())
    assert keys.fetches == 1


def test_a_token_by_an_unknown_key_waits_once_and_fails() -> None:
    keys = Keys(key_set(rsa_key()), coming=key_set(rsa_key()))
    begun, message = exchange(keys), first_message(token(rsa_key("rsa-2")))

    async def log_in() -> None:
        with pytest.raises(NotYet) as not_yet:
            begun.step(message)
        await not_yet.value.ready
        assert str(refusal(begun, message)) == "the provider has no such key"

    asyncio.run(log_in())
    assert keys.fetches == 1


def test_without_any_key_nobody_comes_in() -> None:
    keys = Keys(key_set(rsa_key()))
    keys.current = KeySet(())
    refusal(exchange(keys), first_message(token()))
