"""Tokens of OAUTHBEARER: a JWT in its compact form (RFC 7519), and what its claims must say.

    base64url(header) . base64url(claims) . base64url(signature)

The text is hostile until the signature is checked (`jwks.py`): its size is bounded, its JSON is
read strictly, and of its header only algorithm and key id are used. A name given twice is refused,
so that no other reader can see another token here. Claims are checked as Kafka's BrokerJwtValidator
checks them, which follows jose4j.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strandline.broker.security.mechanism import AuthenticationFailed
from strandline.broker.security.oauth_config import OAuthConfig

# Tokens with all groups of their user have some 20 KB; reading JSON takes 20 ns a byte.
TOKEN_BYTES_MAX = 64 * 1024
_SURROGATES = re.compile("[\ud800-\udfff]")
# The end of the year 9999, in seconds since 1970.
_TIME_S_MAX = 253_402_300_799


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token as its client sent it; the signature is not checked."""

    text: bytes
    algorithm: str
    # Empty if the token does not name its key.
    key_id: str
    claims: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Whom a valid token names, and until when, in ms since 1970."""

    user: str
    expires_ms: int


def read_token(text: bytes) -> Token:
    """Reads a token, of which nothing is proven. Raises AuthenticationFailed."""
    if len(text) > TOKEN_BYTES_MAX:
        raise AuthenticationFailed(f"the token has more than {TOKEN_BYTES_MAX} bytes")
    parts = text.split(b".")
    if len(parts) != 3:
        raise AuthenticationFailed("the token is no JWT of three parts")
    header, claims = _read_object(parts[0], "header"), _read_object(parts[1], "claims")
    algorithm, key_id = header.get("alg"), header.get("kid", "")
    if not isinstance(algorithm, str) or not isinstance(key_id, str):
        raise AuthenticationFailed("the token's header has no algorithm, or a malformed key id")
    if "crit" in header:
        raise AuthenticationFailed("the token's header has extensions that must be understood")
    return Token(text=text, algorithm=algorithm, key_id=key_id, claims=claims)


def _read_object(part: bytes, what: str) -> dict[str, Any]:
    try:
        text = base64.b64decode(part + b"=" * (-len(part) % 4), altchars=b"-_", validate=True)
        found = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (binascii.Error, ValueError, RecursionError):
        raise AuthenticationFailed(f"the token's {what} are no JSON") from None
    if not isinstance(found, dict):
        raise AuthenticationFailed(f"the token's {what} are no object")
    return found


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is given twice")
    return found


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no number")


def check_claims(claims: Mapping[str, Any], config: OAuthConfig, now_ms: int) -> Subject:
    """Returns whom the claims of a signed token name. Raises AuthenticationFailed."""
    user = claims.get(config.user_claim)
    user = user.strip() if isinstance(user, str) else ""
    # Half of a pair of surrogates is text in JSON, and in nothing that has the name afterwards.
    if not user or _SURROGATES.search(user):
        raise AuthenticationFailed(f"the token's claim {config.user_claim} names no user")
    expires_s = _time_s(claims, "exp", user)
    issued_s = _time_s(claims, "iat", user)
    now_s = now_ms / 1000
    if expires_s <= now_s - config.skew_s:
        raise AuthenticationFailed("the token has expired", user)
    if expires_s < issued_s:
        raise AuthenticationFailed("the token ends before it was issued", user)
    if "nbf" in claims and _time_s(claims, "nbf", user) > now_s + config.skew_s:
        raise AuthenticationFailed("the token is not valid yet", user)
    if config.issuer is not None and claims.get("iss") != config.issuer:
        raise AuthenticationFailed("the token is of another issuer", user)
    audiences = _texts(claims.get("aud"))
    if ("aud" in claims or config.audiences) and not audiences.intersection(config.audiences or ()):
        raise AuthenticationFailed("the token is for another audience", user)
    _check_scopes(claims.get(config.scope_claim), user)
    return Subject(user=user, expires_ms=int(expires_s * 1000))


def _time_s(claims: Mapping[str, Any], name: str, user: str) -> float:
    value = claims.get(name)
    # A bool is an int in Python, and a number of many digits may be infinite.
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _TIME_S_MAX:
        return float(value)
    raise AuthenticationFailed(f"the token's claim {name} is missing or no time", user)


def _texts(value: object) -> frozenset[str]:
    if isinstance(value, str):
        return frozenset({value})
    if isinstance(value, list):
        return frozenset(one for one in value if isinstance(one, str))
    return frozenset()


def _check_scopes(value: object, user: str) -> None:
    """Refuses scopes that Kafka refuses; it does nothing else with them either."""
    scopes = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    texts = [one.strip() if isinstance(one, str) else "" for one in scopes]
    if not all(texts) or len(set(texts)) != len(texts):
        raise AuthenticationFailed("a scope of the token is empty, or given twice", user)
