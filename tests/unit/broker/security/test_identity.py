"""The identity of a client, in Kafka's texts."""

from __future__ import annotations

import pytest

from strandline.broker.security.identity import ClientIdentity, java_address


@pytest.mark.parametrize(
    ("host", "text"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::1", "0:0:0:0:0:0:0:1"),
        ("2001:db8::a0:7", "2001:db8:0:0:0:0:a0:7"),
        ("2001:DB8:0:0:1::", "2001:db8:0:0:1:0:0:0"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("fe80::1%eth0", "fe80:0:0:0:0:0:0:1"),
    ],
)
def test_an_address_is_written_as_java_writes_it(host: str, text: str) -> None:
    assert java_address(host) == text


@pytest.mark.parametrize(
    ("host", "size"), [("192.0.2.1", 4), ("::ffff:192.0.2.1", 4), ("2001:db8::1", 16)]
)
def test_an_envelope_carries_the_address_in_the_bytes_of_its_family(host: str, size: int) -> None:
    packed = ClientIdentity(address=java_address(host)).address_bytes()
    assert len(packed) == size
    assert packed[-1] == 1


def test_a_principal_without_a_login_is_kafkas_anonymous_user() -> None:
    assert ClientIdentity().principal == "User:ANONYMOUS"
    assert ClientIdentity(user="CN=a,O=b").principal == "User:CN=a,O=b"
