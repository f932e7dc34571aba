"""The client's half of SASL, against our server's half and against hostile servers."""

from __future__ import annotations

import hashlib

import pytest

from strandline.broker.security.client import (
    CLIENT_ITERATIONS_MAX,
    ClientExchange,
    OAuthClient,
    PlainClient,
    ScramClient,
)
from strandline.broker.security.jwks import read_keys
from strandline.broker.security.mechanism import AuthenticationFailed, Exchange
from strandline.broker.security.oauth import OAuthExchange
from strandline.broker.security.oauth_config import OAuthConfig
from strandline.broker.security.plain import PlainExchange
from strandline.broker.security.scram import DIGESTS, ScramCredential, ScramExchange
from tests.support.tokens import AUDIENCE, NOW_S, claims, key_set, rsa_key, token

USER, PASSWORD = "a,b=c", "pass word"


def log_in(client: ClientExchange, server: Exchange) -> str | None:
    """Returns the user that is in at the end, on both sides."""
    message: bytes | None = client.first()
    user = None
    while message is not None:
        step = server.step(message)
        user = step.user
        message = client.step(step.answer)
    return user


def scram_server(mechanism: str, password: str = PASSWORD) -> ScramExchange:
    digest = DIGESTS[mechanism]
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), b"salt", 4096)
    made = ScramCredential.of_salted(salted, salt=b"salt", iterations=4096, digest=digest)
    return ScramExchange(digest, lambda _user: made, "server")


@pytest.mark.parametrize("mechanism", DIGESTS)
def test_scram_lets_both_know_each_other(mechanism: str) -> None:
    client = ScramClient(mechanism, USER, PASSWORD, "nonce")
    assert log_in(client, scram_server(mechanism)) == USER
    with pytest.raises(AuthenticationFailed, match="password is wrong"):
        log_in(ScramClient(mechanism, USER, "wrong", "nonce"), scram_server(mechanism))


def test_the_example_of_rfc_7677_is_a_login() -> None:
    client = ScramClient("SCRAM-SHA-256", "user", "pencil", "rOprNGfwEbeRWgbNEkqO")
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert client.step(
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    ) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert client.step(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=") is None


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"e=unknown-user",
        b"r=other,s=c2FsdA==,i=4096",
        b"r=nonce,s=c2FsdA==,i=4096",
        b"r=nonceX,s=c2FsdA==,i=1",
        b"r=nonceX,s=c2FsdA==,i=%d" % (CLIENT_ITERATIONS_MAX + 1),
        b"r=nonceX,s=c2F,i=4096",
        b"\xff",
    ],
)
def test_a_hostile_first_answer_gets_no_proof(answer: bytes) -> None:
    client = ScramClient("SCRAM-SHA-256", USER, PASSWORD, "nonce")
    with pytest.raises(AuthenticationFailed):
        client.step(answer)


@pytest.mark.parametrize("answer", [b"", b"v=", b"v=AAAA", b"e=other-error", b"\xff"])
def test_a_server_that_does_not_know_the_password_is_found_out(answer: bytes) -> None:
    client = ScramClient("SCRAM-SHA-256", USER, PASSWORD, "nonce")
    client.step(b"r=nonceX,s=c2FsdA==,i=4096")
    with pytest.raises(AuthenticationFailed):
        client.step(answer)


def test_plain_and_tokens_log_in() -> None:
    server = PlainExchange({USER: PASSWORD})
    assert log_in(PlainClient(USER, PASSWORD), server) == USER
    with pytest.raises(AuthenticationFailed):
        PlainClient(USER, PASSWORD).step(b"more")

    class Keys:
        current = read_keys(key_set(rsa_key()))

        def fetched(self) -> None:
            return None

    def tokens() -> OAuthExchange:
        return OAuthExchange(OAuthConfig(audiences=(AUDIENCE,)), Keys(), lambda: NOW_S * 1000)

    assert log_in(OAuthClient(token()), tokens()) == "alice"
    refused = OAuthClient(token(said=claims(aud="else")))
    with pytest.raises(AuthenticationFailed, match="another audience"):
        log_in(refused, tokens())
    with pytest.raises(AuthenticationFailed, match="the server refuses the token"):
        refused.step(b"")
