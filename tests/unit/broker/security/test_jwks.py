"""Keys of a provider, and signatures: every way in which a token picks its own key fails."""

from __future__ import annotations

import base64
import hmac
import json

import pytest

from strandline.broker.security.jwks import KEYS_BYTES_MAX, NoKeys, check_signature, read_keys
from strandline.broker.security.jwt import read_token
from strandline.broker.security.mechanism import AuthenticationFailed
from tests.support.tokens import WEAK_KEY_SET, claims, ec_key, key_set, part, rsa_key, token

KEYS = key_set(rsa_key(), ec_key())


def check(text: str, keys: bytes = KEYS) -> None:
    read = read_token(text.encode())
    key = read_keys(keys).find(read)
    if key is None:
        raise AuthenticationFailed("no such key")
    check_signature(read, key)


@pytest.mark.parametrize("key", [rsa_key(), ec_key()])
def test_a_token_is_verified_by_the_key_that_it_names(key: object) -> None:
    check(token(key))  # type: ignore[arg-type]
    check(token(key, kid=None))  # type: ignore[arg-type]
    # Headers of providers that say nothing here.
    check(token(key, typ="at+jwt", nonce="n" * 3000))  # type: ignore[arg-type]


def test_a_large_token_is_verified_too() -> None:
    check(token(said=claims(groups=["g" * 30] * 500)))


def test_none_is_no_algorithm() -> None:
    for name in ("none", "None", "NONE", ""):
        forged = part({"alg": name, "kid": "rsa-1"}) + b"." + part(claims()) + b"."
        with pytest.raises(AuthenticationFailed, match="neither by RS256 nor"):
            check(forged.decode())


def test_a_public_key_is_no_secret_of_an_hmac() -> None:
    public = rsa_key().as_pem(private=False)
    for secret in (public, public.strip(), json.dumps(rsa_key().as_dict(private=False)).encode()):
        signed = part({"alg": "HS256", "kid": "rsa-1"}) + b"." + part(claims())
        signature = base64.urlsafe_b64encode(hmac.digest(secret, signed, "sha256")).rstrip(b"=")
        forged = (signed + b"." + signature).decode()
        with pytest.raises(AuthenticationFailed, match="neither by RS256 nor"):
            check(forged)


def test_a_key_verifies_its_own_algorithm_alone() -> None:
    for forged in (
        token(ec_key(), kid="rsa-1"),
        token(rsa_key(), kid="ec-1"),
        token(rsa_key(), algorithm="RS512"),
        token(rsa_key(), algorithm="PS256"),
    ):
        with pytest.raises(AuthenticationFailed):
            check(forged)


def test_another_key_by_the_same_name_is_refused() -> None:
    stranger = type(rsa_key()).generate_key(2048, {"kid": "rsa-1"})
    with pytest.raises(AuthenticationFailed, match="signature is wrong"):
        check(token(stranger))
    # Nor does a key in the token's own header count.
    with pytest.raises(AuthenticationFailed, match="signature is wrong"):
        check(token(stranger, jwk=stranger.as_dict(private=False)))


def test_a_changed_token_is_refused() -> None:
    head, _, signature = token().split(".")
    with pytest.raises(AuthenticationFailed, match="signature is wrong"):
        check(f"{head}.{part(claims(sub='root')).decode()}.{signature}")
    with pytest.raises(AuthenticationFailed, match="signature is wrong"):
        check(f"{token()[:-8]}AAAAAAAA")
    with pytest.raises(AuthenticationFailed):
        check(token().rpartition(".")[0] + ".")


def test_without_a_name_the_key_has_to_be_the_only_one() -> None:
    several = key_set(rsa_key(), rsa_key("rsa-2"))
    check(token(rsa_key("rsa-2")), several)
    with pytest.raises(AuthenticationFailed, match="no such key"):
        check(token(rsa_key("rsa-2"), kid=None), several)


def test_keys_of_other_kinds_and_uses_are_left_out() -> None:
    for left_out in (
        key_set(rsa_key(), use="enc"),
        key_set(rsa_key(), alg="RS512"),
        key_set(rsa_key(), key_ops=["encrypt"]),
        WEAK_KEY_SET,
        key_set(ec_key("large", "P-384")),
        json.dumps({"keys": [{"kty": "oct", "k": "AAAA", "kid": "rsa-1"}, 5, {}]}).encode(),
        json.dumps({"keys": [{"kty": "RSA", "n": "!", "e": "AQAB"}]}).encode(),
        json.dumps({"keys": [{"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}]}).encode(),
    ):
        with pytest.raises(NoKeys, match="no key for RS256 or ES256"):
            read_keys(left_out)


@pytest.mark.parametrize(
    "text",
    [b"", b"<html>", b"[]", b'{"keys":{}}', b"[" * 50_000, b" " * (KEYS_BYTES_MAX + 1)],
)
def test_what_is_no_key_set_is_refused(text: bytes) -> None:
    with pytest.raises(NoKeys):
        read_keys(text)


def test_a_private_key_in_a_set_does_not_come_in() -> None:
    found = read_keys(json.dumps({"keys": [rsa_key().as_dict(private=True)]}).encode())
    assert not found.keys[0].public.is_private
