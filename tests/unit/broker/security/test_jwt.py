"""Tokens: what is read of them, and which claims are good."""

from __future__ import annotations

import pytest

from strandline.broker.security.jwt import TOKEN_BYTES_MAX, check_claims, read_token
from strandline.broker.security.mechanism import AuthenticationFailed
from strandline.broker.security.oauth_config import OAuthConfig
from tests.support.tokens import AUDIENCE, ISSUER, NOW_S, claims, part

RULES = OAuthConfig(issuer=ISSUER, audiences=("other", AUDIENCE))
HEADER = {"alg": "RS256", "kid": "1"}


def compact(header: object, body: object) -> bytes:
    return part(header) + b"." + part(body) + b".c2ln"


def test_algorithm_key_and_claims_are_read_of_a_token() -> None:
    found = read_token(compact({**HEADER, "typ": "at+jwt", "x5t": "…"}, {"sub": "alice"}))
    assert (found.algorithm, found.key_id, found.claims) == ("RS256", "1", {"sub": "alice"})
    assert read_token(compact({"alg": "RS256"}, {})).key_id == ""


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"a.b",
        b"a.b.c.d",
        b"!.!.!",
        compact(HEADER, {})[:-5],
        compact([], {}),
        compact(HEADER, "[1]"),
        compact(HEADER, '{"sub":"alice","sub":"root"}'),
        compact('{"alg":"none","alg":"RS256"}', {}),
        compact(HEADER, '{"exp":Infinity}'),
        compact(HEADER, "[" * 20_000),
        compact(HEADER, '{"exp":' + "9" * 5000 + "}"),
        compact({"kid": "1"}, {}),
        compact({"alg": 5}, {}),
        compact({**HEADER, "kid": ["1"]}, {}),
        compact({**HEADER, "crit": ["b64"], "b64": False}, {}),
        compact(HEADER, {"x": "y" * TOKEN_BYTES_MAX}),
    ],
)
def test_what_is_no_token_is_refused(text: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        read_token(text)


def test_good_claims_name_a_user_and_an_end() -> None:
    found = check_claims(claims(sub=" alice "), RULES, NOW_S * 1000)
    assert (found.user, found.expires_ms) == ("alice", (NOW_S + 600) * 1000)


@pytest.mark.parametrize(
    "changes",
    [
        {"aud": [AUDIENCE, "x"], "iat": NOW_S + 20},
        {"scope": None, "nbf": NOW_S + 30},
        {"scope": ["a", "b"], "exp": NOW_S - 29},
        {"scope": 5, "exp": NOW_S + 0.5},
    ],
)
def test_claims_that_kafka_takes_are_taken(changes: dict[str, object]) -> None:
    changes.setdefault("iat", NOW_S - 100)
    assert check_claims(claims(**changes), RULES, NOW_S * 1000).user == "alice"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"exp": NOW_S - 30, "iat": NOW_S - 60}, "has expired"),
        ({"exp": None}, "exp is missing"),
        ({"exp": True}, "exp is missing or no time"),
        ({"exp": str(NOW_S + 60)}, "exp is missing or no time"),
        ({"exp": 1e300}, "exp is missing or no time"),
        ({"exp": 10**4000}, "exp is missing or no time"),
        ({"exp": -1}, "exp is missing or no time"),
        ({"iat": None}, "iat is missing"),
        ({"iat": NOW_S + 700}, "before it was issued"),
        ({"nbf": NOW_S + 31}, "not valid yet"),
        ({"iss": "https://evil.example.org"}, "another issuer"),
        ({"iss": None}, "another issuer"),
        ({"aud": "else"}, "another audience"),
        ({"aud": None}, "another audience"),
        ({"aud": {AUDIENCE: 1}}, "another audience"),
        ({"sub": None}, "sub names no user"),
        ({"sub": " "}, "sub names no user"),
        ({"sub": ["alice"]}, "sub names no user"),
        ({"sub": "ali\ud800ce"}, "sub names no user"),
        ({"scope": ""}, "scope"),
        ({"scope": ["a", "a"]}, "scope"),
        ({"scope": ["a", 1]}, "scope"),
    ],
)
def test_claims_that_kafka_refuses_are_refused(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(AuthenticationFailed, match=reason):
        check_claims(claims(**changes), RULES, NOW_S * 1000)


def test_a_token_for_an_audience_is_refused_by_who_expects_none() -> None:
    with pytest.raises(AuthenticationFailed, match="another audience"):
        check_claims(claims(), OAuthConfig(), NOW_S * 1000)
    assert check_claims(claims(aud=None, iss=None), OAuthConfig(), NOW_S * 1000).user == "alice"


def test_the_user_may_be_in_another_claim() -> None:
    rules = OAuthConfig(user_claim="client_id")
    said = claims(aud=None, client_id="app")
    assert check_claims(said, rules, NOW_S * 1000).user == "app"
