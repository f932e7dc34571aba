"""SCRAM as a server: who is let in, and what is refused."""

from __future__ import annotations

import base64
import hashlib
import hmac
import random
import re
from collections.abc import Callable

import pytest

from strandline.broker.security.mechanism import AuthenticationFailed
from strandline.broker.security.scram import (
    DIGESTS,
    ScramCredential,
    ScramExchange,
    mimic_credential,
)

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")


def credential(password: str, mechanism: str = "SCRAM-SHA-256") -> ScramCredential:
    digest = DIGESTS[mechanism]
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), SALT, 4096)
    return ScramCredential.of_salted(salted, salt=SALT, iterations=4096, digest=digest)


def client_final(first: bytes, answer: bytes, password: str, digest: str) -> bytes:
    """What a client sends to the server's first answer."""
    fields = dict(part.split("=", 1) for part in answer.decode().split(","))
    salted = hashlib.pbkdf2_hmac(
        digest, password.encode(), base64.b64decode(fields["s"]), int(fields["i"])
    )
    client_key = hmac.digest(salted, b"Client Key", digest)
    bare = f"c=biws,r={fields['r']}"
    signed = b",".join([first.removeprefix(b"n,,"), answer, bare.encode()])
    signature = hmac.digest(hashlib.new(digest, client_key).digest(), signed, digest)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return f"{bare},p={base64.b64encode(proof).decode()}".encode()


SECRET = b"secret of the broker"


def known(
    users: dict[str, ScramCredential], secret: bytes = SECRET
) -> Callable[[str], ScramCredential]:
    def find(user: str) -> ScramCredential:
        like = next(iter(users.values()), None)
        return users.get(user) or mimic_credential(user, like, secret)

    return find


def test_the_example_of_rfc_7677_is_a_login() -> None:
    exchange = ScramExchange(
        "sha256", known({"user": credential("pencil")}), "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    )
    first = exchange.step(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert first.answer == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    assert first.user is None
    last = exchange.step(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert (last.answer, last.user) == (b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=", "user")


@pytest.mark.parametrize("mechanism", DIGESTS)
@pytest.mark.parametrize(("password", "is_right"), [("secret", True), ("Secret", False)])
def test_only_the_right_password_lets_in(mechanism: str, password: str, is_right: bool) -> None:
    digest = DIGESTS[mechanism]
    exchange = ScramExchange(digest, known({"a,b=c": credential("secret", mechanism)}), "srv")
    # A comma and an equals sign in a name are written so.
    first = b"n,,n=a=2Cb=3Dc,r=cli"
    final = client_final(first, exchange.step(first).answer, password, digest)
    if is_right:
        assert exchange.step(final).user == "a,b=c"
    else:
        with pytest.raises(AuthenticationFailed, match="password is wrong"):
            exchange.step(final)


def test_a_recorded_login_lets_nobody_in_again() -> None:
    def begun(nonce: str) -> ScramExchange:
        return ScramExchange("sha256", known({"user": credential("secret")}), nonce)

    first = b"n,,n=user,r=cli"
    recorded = begun("one")
    final = client_final(first, recorded.step(first).answer, "secret", "sha256")
    assert recorded.step(final).user == "user"
    # The server's nonce is another one; and the recorded proof does not fit the new one either.
    for replayed in (final, final.replace(b"r=clione", b"r=clitwo")):
        again = begun("two")
        again.step(first)
        with pytest.raises(AuthenticationFailed):
            again.step(replayed)


def test_a_login_by_a_delegation_token_is_refused_by_name() -> None:
    exchange = ScramExchange("sha256", known({"token": credential("secret")}), "srv")
    with pytest.raises(AuthenticationFailed, match="a login by a delegation token"):
        exchange.step(b"n,,n=token,r=cli,tokenauth=true")


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n,,n=,r=x",
        b"n,,n=user",
        b"p=tls-unique,,n=user,r=x",
        b"y,,n=user,r=x",
        b"n,a=other,n=user,r=x",
        b"\xff",
    ],
)
def test_a_bad_beginning_ends_the_login(first: bytes) -> None:
    exchange = ScramExchange("sha256", known({"user": credential("x")}), "srv")
    with pytest.raises(AuthenticationFailed):
        exchange.step(first)


def answered(user: str, users: dict[str, ScramCredential], secret: bytes = SECRET) -> str:
    """Salt and iterations of the first answer."""
    exchange = ScramExchange("sha256", known(users, secret), "srv")
    answer = exchange.step(f"n,,n={user},r=cli".encode()).answer
    return answer.decode().removeprefix("r=clisrv,")


@pytest.mark.parametrize("users", [{}, {"user": credential("x")}], ids=["no user", "one user"])
def test_an_unknown_user_is_answered_as_a_known_one(users: dict[str, ScramCredential]) -> None:
    first = answered("nobody", users)
    assert re.fullmatch(r"s=[A-Za-z0-9+/]+=*,i=[0-9]+", first)
    assert answered("nobody", users) == first
    assert answered("nobody", users, b"other") != first != answered("someone", users)
    for user in users:
        real = answered(user, users)
        assert len(first) == len(real)
        assert first.rpartition("i=")[2] == real.rpartition("i=")[2]


@pytest.mark.parametrize("password", ["", "x"])
def test_an_unknown_user_fails_after_the_proof_and_is_named(password: str) -> None:
    first = b"n,,n=nobody,r=cli"
    exchange = ScramExchange("sha256", known({"user": credential("x")}), "srv")
    final = client_final(first, exchange.step(first).answer, password, "sha256")
    with pytest.raises(AuthenticationFailed, match="no such user") as failed:
        exchange.step(final)
    assert failed.value.user == "nobody"


def test_a_proof_for_another_nonce_or_channel_is_refused() -> None:
    first = b"n,,n=user,r=cli"
    for change in ((b"r=clisrv", b"r=clisrw"), (b"c=biws", b"c=eSws")):
        exchange = ScramExchange("sha256", known({"user": credential("x")}), "srv")
        final = client_final(first, exchange.step(first).answer, "x", "sha256")
        with pytest.raises(AuthenticationFailed):
            exchange.step(final.replace(*change))


@pytest.mark.parametrize("seed", range(20))
def test_hostile_bytes_are_refused_and_nothing_else_happens(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(200):
        exchange = ScramExchange("sha512", known({"user": credential("x")}), "srv")
        first = bytearray(b"n,,n=user,r=cli")
        first[chance.randrange(len(first))] = chance.randrange(256)
        try:
            answer = exchange.step(bytes(first)).answer
        except AuthenticationFailed:
            continue
        with pytest.raises(AuthenticationFailed):
            exchange.step(chance.randbytes(40) + answer)


def test_a_credential_is_kept_as_text_that_has_no_password_in_it() -> None:
    kept = credential("pencil")
    assert ScramCredential.parse(str(kept)) == kept
    assert "pencil" not in str(kept) + repr(kept)
    for damaged in ("", "salt=x", "salt=%,stored_key=YQ==,server_key=YQ==,iterations=1"):
        with pytest.raises(ValueError, match="SCRAM"):
            ScramCredential.parse(damaged)
