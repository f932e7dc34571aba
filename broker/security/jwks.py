"""The keys that sign tokens: a JSON Web Key Set (RFC 7517), and the check of a signature by them.

A key decides what it may verify, never the token: RSA keys RS256, and keys of P-256 ES256. So a
token cannot choose `none`, nor have a public key taken for the secret of an HMAC. A set may hold
keys of other kinds, for other uses; they are left out.

joserfc reads keys and checks signatures. It is loaded with the first set: a broker without
OAUTHBEARER does not have it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from strandline.broker.security.jwt import TOKEN_BYTES_MAX, Token
from strandline.broker.security.mechanism import AuthenticationFailed

if TYPE_CHECKING:
    from joserfc.jwk import ECKey, RSAKey

# Larger answers of a provider are refused; usual ones have a few KB.
KEYS_BYTES_MAX = 1_000_000
KEYS_MAX = 1000
# NIST SP 800-131A, and what jose4j asks of Kafka's.
RSA_BITS_MIN = 2048
# The algorithm of a key, by its type and curve.
_ALGORITHMS = {("RSA", ""): "RS256", ("EC", "P-256"): "ES256"}


class NoKeys(Exception):
    """A text that is no usable key set; says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningKey:
    """One public key; `key_id` is empty if the set does not name it."""

    key_id: str
    algorithm: str
    public: RSAKey | ECKey


@dataclass(frozen=True, slots=True)
class KeySet:
    """The keys of one provider."""

    keys: Sequence[SigningKey]

    def find(self, token: Token) -> SigningKey | None:
        """Returns the key that a token names; one that names none has the only key of its kind.

        Raises AuthenticationFailed for an algorithm that no key verifies.
        """
        if token.algorithm not in _ALGORITHMS.values():
            raise AuthenticationFailed("the token is signed neither by RS256 nor by ES256")
        fitting = [key for key in self.keys if key.algorithm == token.algorithm]
        if token.key_id:
            return next((key for key in fitting if key.key_id == token.key_id), None)
        return fitting[0] if len(fitting) == 1 else None


def check_signature(token: Token, key: SigningKey) -> None:
    """Raises AuthenticationFailed unless `key` signed the token."""
    from joserfc.errors import JoseError
    from joserfc.jws import JWSRegistry, deserialize_compact

    # Its own bounds are below what providers send, and it knows no header of theirs.
    registry = JWSRegistry(algorithms=[key.algorithm], strict_check_header=False)
    registry.max_header_length = registry.max_payload_length = TOKEN_BYTES_MAX
    registry.max_signature_length = TOKEN_BYTES_MAX
    try:
        deserialize_compact(token.text, key.public, registry=registry)
    except (JoseError, ValueError):
        raise AuthenticationFailed("the token's signature is wrong") from None


def read_keys(text: bytes) -> KeySet:
    """Reads a key set. Raises NoKeys, which quotes nothing of it."""
    if len(text) > KEYS_BYTES_MAX:
        raise NoKeys(f"more than {KEYS_BYTES_MAX} bytes")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise NoKeys("no JSON") from None
    entries = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(entries, list):
        raise NoKeys('no object with a list of "keys"')
    if len(entries) > KEYS_MAX:
        raise NoKeys(f"more than {KEYS_MAX} keys")
    keys = [key for entry in entries if (key := _read_key(entry)) is not None]
    if not keys:
        raise NoKeys("no key for RS256 or ES256")
    return KeySet(keys)


def _read_key(entry: object) -> SigningKey | None:
    """Returns a key that signs tokens; None for one of another kind or use, or a malformed one."""
    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey, RSAKey

    if not isinstance(entry, dict):
        return None
    kind, curve, key_id = (entry.get(name, "") for name in ("kty", "crv", "kid"))
    if not (isinstance(kind, str) and isinstance(curve, str) and isinstance(key_id, str)):
        return None
    algorithm = _ALGORITHMS.get((kind, curve))
    if algorithm is None:
        return None
    if entry.get("use", "sig") != "sig" or entry.get("alg", algorithm) != algorithm:
        return None
    operations = entry.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        return None
    try:
        public = _public_part(entry, kind)
        if kind == "RSA" and len(public["n"]) * 6 < RSA_BITS_MIN:
            return None
        made = (RSAKey if kind == "RSA" else ECKey).import_key(public)
        if isinstance(made, RSAKey) and made.public_key.key_size < RSA_BITS_MIN:
            return None
    except (JoseError, ValueError, TypeError, KeyError):
        return None
    return SigningKey(key_id=key_id, algorithm=algorithm, public=made)


def _public_part(entry: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """A set by mistake with private keys must not bring them here."""
    names = ("kty", "n", "e") if kind == "RSA" else ("kty", "crv", "x", "y")
    return {name: entry[name] for name in names}
