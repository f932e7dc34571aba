"""Properties of OAUTHBEARER, with Kafka's names and defaults (KIP-768)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from strandline.storage.config.definition import INT, LIST, LONG, PASSWORD, STRING, key
from strandline.storage.errors import InvalidConfig

_URL = re.compile(r"https?://[^\s/@?#]+([/?]\S*)?|file:///\S+")


def _url(name: str) -> Callable[[str], str]:
    def check(url: str) -> str:
        if not _URL.fullmatch(url):
            # Without the value: it may have a password.
            raise InvalidConfig(
                f"{name}: expected https://host/path, http://host/path or file:///path, without a"
                " user in it"
            )
        return url

    return check


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthConfig:
    """Whose tokens are accepted, where their keys are, and where the broker gets its own."""

    keys_url: str | None = key(
        "sasl.oauthbearer.jwks.endpoint.url",
        STRING,
        None,
        "Where the keys are that sign tokens of OAUTHBEARER (JWKS): https://, http:// or file://."
        " This property, and each other of sasl.oauthbearer, may be set for one listener:"
        " listener.name.<name>.oauthbearer.sasl.oauthbearer.jwks.endpoint.url.",
        convert=_url("sasl.oauthbearer.jwks.endpoint.url"),
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
    token_url: str | None = key(
        "sasl.oauthbearer.token.endpoint.url",
        STRING,
        None,
        "Where the broker gets the token by which it logs in at controllers and other brokers:"
        " https:// or http:// of a provider, which is asked with client_credentials, or file:// of"
        " a token that somebody renews.",
        convert=_url("sasl.oauthbearer.token.endpoint.url"),
    )
    client_id: str | None = key(
        "sasl.oauthbearer.client.credentials.client.id",
        STRING,
        None,
        "The client as which the broker asks its provider for a token; before `clientId` of the"
        " login module.",
    )
    client_secret: str | None = key(
        "sasl.oauthbearer.client.credentials.client.secret",
        PASSWORD,
        None,
        "The secret of that client; before `clientSecret` of the login module.",
    )
    scope: str | None = key(
        "sasl.oauthbearer.scope",
        STRING,
        None,
        "The scope of the token that the broker asks for; before `scope` of the login module.",
    )
