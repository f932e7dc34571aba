"""What is read of certificates is what another library reads of them."""

from __future__ import annotations

import contextlib

import pytest
from cryptography import x509

from strandline.broker.tls.certificate import parse_certificate
from strandline.broker.tls.der import MalformedDer
from tests.support.certificates import Authority


def test_names_and_times_are_those_of_the_certificate() -> None:
    issued = Authority().issue("broker", hosts=["localhost", "a.example", "127.0.0.1"])
    found = parse_certificate(issued.der)
    assert found.subject == "CN=broker,O=Example\\, Inc."
    assert found.valid_from_s == issued.certificate.not_valid_before_utc.timestamp()
    assert found.valid_until_s == issued.certificate.not_valid_after_utc.timestamp()
    assert len(found.alternative_names) == 3
    assert b"\x82\x09localhost" in found.alternative_names


@pytest.mark.parametrize("days", [(-20_000, 365 * 23), (-1, 365 * 24), (-1, 365 * 100)])
def test_times_before_and_after_2050_are_read(days: tuple[float, float]) -> None:
    issued = Authority().issue("broker", valid_days=days, hosts=())
    found = parse_certificate(issued.der)
    assert found.valid_from_s == issued.certificate.not_valid_before_utc.timestamp()
    assert found.valid_until_s == issued.certificate.not_valid_after_utc.timestamp()
    assert found.alternative_names == frozenset()


def test_a_certificate_that_is_cut_anywhere_is_refused() -> None:
    encoded = Authority().issue("broker").der
    for end in range(0, len(encoded), 7):
        with pytest.raises(MalformedDer):
            parse_certificate(encoded[:end])


def test_an_altered_certificate_raises_nothing_else() -> None:
    """OpenSSL has looked at it before; but no client may end the broker's loop by one."""
    encoded = Authority().issue("broker").der
    for at in range(len(encoded)):
        altered = bytearray(encoded)
        altered[at] ^= 0xFF
        with contextlib.suppress(MalformedDer):
            parse_certificate(bytes(altered))


def test_the_text_of_a_name_is_that_of_rfc_4514_for_usual_names() -> None:
    issued = Authority().issue("a+b", hosts=())
    theirs = x509.load_der_x509_certificate(issued.der).subject.rfc4514_string()
    assert parse_certificate(issued.der).subject == theirs
