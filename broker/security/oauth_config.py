"""Properties of OAUTHBEARER, with Kafka's names and defaults (KIP-768)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from strandline.storage.config.definition import INT, LIST, LONG, STRING, key
from strandline.storage.errors import InvalidConfig

_URL = re.compile(r"https?://[^\s/@?#]+([/?]\S*)?|file:///\S+")


def check_url(url: str) -> str:
    """Returns the address of keys. Raises InvalidConfig."""
    if not _URL.fullmatch(url):
        # Without the value: it may have a password.
        raise InvalidConfig(
            "sasl.oauthbearer.jwks.endpoint.url: expected https://host/path, http://host/path or"
            " file:///path, without a user in it"
        )
    return url


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthConfig:
    """Whose tokens are accepted, and where their keys are."""

    keys_url: str | None = key(
        "sasl.oauthbearer.jwks.endpoint.url",
        STRING,
        None,
        "Where the keys are that sign tokens of OAUTHBEARER (JWKS): https://, http:// or file://."
        " This property, and each other of sasl.oauthbearer, may be set for one listener:"
        " listener.name.<name>.oauthbearer.sasl.oauthbearer.jwks.endpoint.url.",
        convert=check_url,
    )
    refresh_ms: int = key(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        LONG,
        3_600_000,
        "Ms after which the broker fetches the keys again. It looks at a file every 10 s.",
        minimum=1000,
    )
    backoff_ms: int = key(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        LONG,
        100,
        "Ms before the broker asks again for keys that it did not get; doubled each time.",
        minimum=1,
    )
    backoff_ms_max: int = key(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        LONG,
        10_000,
        "Longest pause between two requests for keys that the broker did not get, in ms.",
        minimum=1,
    )
    issuer: str | None = key(
        "sasl.oauthbearer.expected.issuer",
        STRING,
        None,
        "The `iss` that a token must have; unset: any.",
    )
    audiences: tuple[str, ...] | None = key(
        "sasl.oauthbearer.expected.audience",
        LIST,
        None,
        "The `aud` of which a token must have one. Unset: a token with an `aud` is refused, as in"
        " Kafka.",
    )
    skew_s: int = key(
        "sasl.oauthbearer.clock.skew.seconds",
        INT,
        30,
        "Seconds by which the clocks of broker and provider may differ.",
        minimum=0,
    )
    user_claim: str = key(
        "sasl.oauthbearer.sub.claim.name",
        STRING,
        "sub",
        "The claim of a token that names the user.",
    )
    scope_claim: str = key(
        "sasl.oauthbearer.scope.claim.name",
        STRING,
        "scope",
        "The claim of a token that has its scopes; a token with a malformed one is refused.",
    )
