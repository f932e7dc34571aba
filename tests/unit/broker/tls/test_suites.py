"""Suites are chosen by the names that Java's users know."""

from __future__ import annotations

import ssl

import pytest

from strandline.broker.tls.suites import OF_TLS_1_3, choose_suites, openssl_name
from strandline.storage.errors import InvalidConfig


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
        ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "ECDHE-ECDSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-RSA-CHACHA20-POLY1305"),
        ("TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384", "ECDHE-RSA-AES256-SHA384"),
        ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA", "ECDHE-RSA-AES128-SHA"),
        ("TLS_DHE_RSA_WITH_AES_256_GCM_SHA384", "DHE-RSA-AES256-GCM-SHA384"),
        ("TLS_RSA_WITH_AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("TLS_RSA_WITH_AES_256_CBC_SHA256", "AES256-SHA256"),
        ("TLS_ECDHE_ECDSA_WITH_AES_128_CCM_8", "ECDHE-ECDSA-AES128-CCM8"),
    ],
)
def test_openssl_has_the_suite_under_another_name(name: str, expected: str) -> None:
    assert openssl_name(name) == expected
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("ALL:@SECLEVEL=0")
    assert expected in {suite["name"] for suite in context.get_ciphers()}


@pytest.mark.parametrize("name", ["ECDHE-RSA-AES128-GCM-SHA256", "TLS_RSA_WITH_RC4_128_MD5", "x"])
def test_what_is_no_suite_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(InvalidConfig, match=name):
        choose_suites([name])


@pytest.mark.parametrize("names", [OF_TLS_1_3[:1], OF_TLS_1_3[1:], ("TLS_AES_128_CCM_SHA256",)])
def test_a_choice_among_suites_of_tls_1_3_is_refused_and_never_ignored(
    names: tuple[str, ...],
) -> None:
    with pytest.raises(InvalidConfig, match=f"{names[0]}.*cannot choose"):
        choose_suites(["TLS_RSA_WITH_AES_128_GCM_SHA256", *names])


def test_all_suites_of_tls_1_3_or_none_can_be_chosen() -> None:
    assert choose_suites(OF_TLS_1_3[::-1]).has_tls_1_3
    assert not choose_suites(["TLS_RSA_WITH_AES_128_GCM_SHA256"]).has_tls_1_3
