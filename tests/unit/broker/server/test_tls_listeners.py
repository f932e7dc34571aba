"""TLS of listeners: files that cannot serve are refused, and certificates name users."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.listener_keys import tls_listeners, tls_of
from strandline.broker.config.loading import load_config
from strandline.broker.network.responses import CloseConnectionError
from strandline.broker.server.tls import TlsListeners
from strandline.storage.clock import SystemClock
from strandline.storage.errors import InvalidConfig
from tests.support.certificates import PASSWORD, Authority


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of all kinds, named after what is in them."""
    authority = Authority()
    broker, other = authority.issue("broker"), authority.issue("other")
    authority.write(tmp_path / "authority.pem")
    authority.write_pkcs12(tmp_path / "authority.p12")
    broker.write(tmp_path / "broker.pem")
    broker.write(tmp_path / "sealed.pem", password=PASSWORD)
    broker.write_pkcs12(tmp_path / "broker.p12")
    (tmp_path / "mixed.pem").write_text(other.key_pem() + broker.chain_pem)
    (tmp_path / "key.pem").write_text(broker.key_pem())
    (tmp_path / "broker.jks").write_bytes(bytes.fromhex("feedfeed00000002"))
    (tmp_path / "junk.p12").write_bytes(bytes(100))
    (tmp_path / "none.crl").write_text(authority.revocations())
    return tmp_path


def load(folder: Path, *overrides: str) -> BrokerConfig:
    filled = [one.replace("=@", f"={folder}/") for one in overrides]
    return load_config(None, ("listeners=SSL://127.0.0.1:0", *filled))


PEM = ("ssl.keystore.type=PEM", "ssl.keystore.location=@broker.pem")
TRUST = ("ssl.truststore.type=PEM", "ssl.truststore.location=@authority.pem")


@pytest.mark.parametrize(
    "settings",
    [
        PEM,
        ("ssl.keystore.type=pem", "ssl.keystore.location=@broker.pem"),
        (
            "ssl.keystore.type=PEM",
            "ssl.keystore.location=@sealed.pem",
            f"ssl.key.password={PASSWORD}",
        ),
        (
            "ssl.keystore.type=PKCS12",
            "ssl.keystore.location=@broker.p12",
            f"ssl.keystore.password={PASSWORD}",
        ),
        # Java's default, which reads such a file too.
        ("ssl.keystore.location=@broker.p12", f"ssl.keystore.password={PASSWORD}"),
        (*PEM, *TRUST, "ssl.client.auth=required"),
        (*PEM, *TRUST, "ssl.client.auth=required", "strandline.ssl.crl.location=@none.crl"),
        (
            *PEM,
            "ssl.truststore.location=@authority.p12",
            f"ssl.truststore.password={PASSWORD}",
            "ssl.client.auth=requested",
        ),
        ("listener.name.ssl.ssl.keystore.type=PEM", "listener.name.ssl." + PEM[1]),
    ],
)
def test_files_of_each_format_are_read(folder: Path, settings: tuple[str, ...]) -> None:
    (listener,) = TlsListeners(load(folder, *settings)).by_name.values()
    assert isinstance(listener.loaded.context, ssl.SSLContext)


def test_a_key_and_certificates_may_be_texts(folder: Path) -> None:
    """Their lines may be joined, as a properties file has them."""
    key = (folder / "key.pem").read_text().replace("\n", " ")
    chain = (folder / "broker.pem").read_text().partition("-----BEGIN CERT")
    config = load(
        folder,
        "ssl.keystore.type=PEM",
        f"ssl.keystore.key={key}",
        "ssl.keystore.certificate.chain=" + (chain[1] + chain[2]).replace("\n", " "),
        "ssl.truststore.type=PEM",
        f"ssl.truststore.certificates={(folder / 'authority.pem').read_text()}",
        "ssl.client.auth=required",
    )
    assert TlsListeners(config).by_name["SSL"].loaded.context.verify_mode is ssl.CERT_REQUIRED
    assert key not in repr(TlsListeners(config).by_name["SSL"].loaded)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ((), "listener SSL: TLS needs the broker's key and certificate"),
        (("ssl.keystore.location=@broker.jks",), "keytool -importkeystore -srckeystore .*jks"),
        (
            ("ssl.keystore.type=PKCS12", "ssl.keystore.location=@broker.jks"),
            "-deststoretype PKCS12",
        ),
        (("ssl.keystore.location=@broker.pem",), "it is PEM; set ssl.keystore.type=PEM"),
        (("ssl.keystore.location=@nothing",), "No such file"),
        (("ssl.keystore.location=@junk.p12",), "cannot be read as PKCS12"),
        (
            ("ssl.keystore.location=@broker.p12", "ssl.keystore.password=wrong"),
            "is its password right",
        ),
        (
            ("ssl.keystore.location=@authority.p12", f"ssl.keystore.password={PASSWORD}"),
            "expected a private key",
        ),
        (("ssl.keystore.type=BCFKS", "ssl.keystore.location=@broker.pem"), "expected PEM or"),
        ((PEM[0], "ssl.keystore.location=@mixed.pem"), "the key is not that of the first"),
        ((PEM[0], "ssl.keystore.location=@key.pem"), "expected certificates in PEM, found none"),
        ((PEM[0], "ssl.keystore.location=@authority.pem"), "expected one private key"),
        ((PEM[0], "ssl.keystore.location=@sealed.pem"), "expected its ssl.key.password"),
        (
            (PEM[0], "ssl.keystore.location=@sealed.pem", "ssl.key.password=wrong"),
            "is ssl.key.password right",
        ),
        (
            (PEM[0], "ssl.keystore.location=@sealed.pem", f"ssl.key.password={'x' * 2000}"),
            "ssl.key.password: .*1024",
        ),
        ((*PEM, "ssl.keystore.password=x"), "a file in PEM has none"),
        ((*PEM, "ssl.keystore.key=x"), "expected either a file, or"),
        ((PEM[0], "ssl.keystore.key=x"), "expected both"),
        (("ssl.keystore.key=x",), "expected PEM with ssl.keystore.key"),
        ((*PEM, "ssl.client.auth=required"), "needs the authorities of clients"),
        (
            (*PEM, "ssl.truststore.type=PEM", "ssl.truststore.location=@key.pem"),
            "expected certificates, found none",
        ),
        (
            (*PEM, *TRUST, "strandline.ssl.crl.location=@key.pem"),
            "expected a list of revoked certificates",
        ),
        ((*PEM, "ssl.cipher.suites=TLS_AES_256_GCM_SHA384"), "cannot choose among the suites"),
        (
            (
                *PEM,
                "ssl.cipher.suites=TLS_RSA_WITH_AES_128_GCM_SHA256",
                "ssl.enabled.protocols=TLSv1.3",
            ),
            "no protocol is left",
        ),
        ((*PEM, "ssl.principal.mapping.rules=x"), "is no rule"),
    ],
)
def test_what_cannot_serve_is_refused_with_the_reason(
    folder: Path, settings: tuple[str, ...], complaint: str
) -> None:
    with pytest.raises(InvalidConfig, match=complaint) as refused:
        TlsListeners(load(folder, *settings))
    assert PASSWORD not in str(refused.value)


def test_listeners_with_tls_are_those_of_its_protocols() -> None:
    config = load_config(
        None,
        (
            "listeners=A://h:1,B://h:2,SSL://h:3,SASL_SSL://h:4,PLAINTEXT://h:5",
            "listener.security.protocol.map=A:SSL,B:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms=SCRAM-SHA-512",
        ),
    )
    assert tls_listeners(config) == ["A", "SSL", "SASL_SSL"]


def test_a_listener_with_sasl_asks_for_certificates_only_by_its_own_key() -> None:
    listeners = (
        "listeners=SSL://h:1,SASL_SSL://h:2",
        "sasl.enabled.mechanisms=SCRAM-SHA-512",
        "ssl.client.auth=required",
    )
    config = load_config(None, listeners)
    assert tls_of(config, "SSL").client_auth == "required"
    assert tls_of(config, "SASL_SSL").client_auth == "none"
    own = load_config(None, (*listeners, "listener.name.sasl_ssl.ssl.client.auth=requested"))
    assert tls_of(own, "SASL_SSL").client_auth == "requested"


def test_a_certificate_is_the_user_that_the_rules_say(folder: Path) -> None:
    writer = Authority().issue("writer").der
    for rules, user in (
        ("DEFAULT", "CN=writer,O=Example\\, Inc."),
        ("RULE:^CN=([^,]+),.*$/$1/U", "WRITER"),
    ):
        config = load(folder, *PEM, f"ssl.principal.mapping.rules={rules}")
        assert TlsListeners(config).user_of(SystemClock(), "SSL", writer) == user
    config = load(folder, *PEM, "ssl.principal.mapping.rules=RULE:^OU=(.*)$/$1/")
    with pytest.raises(CloseConnectionError, match="has no rule for"):
        TlsListeners(config).user_of(SystemClock(), "SSL", writer)


def test_a_certificate_that_has_expired_since_its_session_began_is_nobodys(folder: Path) -> None:
    expired = Authority().issue("writer", valid_days=(-9, -1)).der
    with pytest.raises(CloseConnectionError, match="has expired"):
        TlsListeners(load(folder, *PEM)).user_of(SystemClock(), "SSL", expired)
