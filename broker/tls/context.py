"""OpenSSL's contexts, made of stores.

A context is made whole and never changed: connections that begin later get another one. No session
outlives its connection by a ticket, because its certificate would not be looked at again; and a
client may not begin another handshake within a connection.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

from strandline.broker.tls import pem
from strandline.broker.tls.certificate import is_self_issued
from strandline.broker.tls.config import NONE, REQUESTED, REQUIRED, TLS_1_2, TLS_1_3, TlsConfig
from strandline.broker.tls.stores import KeyStore, Stores
from strandline.broker.tls.suites import choose_suites
from strandline.storage.errors import InvalidConfig

_VERSIONS = {TLS_1_2: ssl.TLSVersion.TLSv1_2, TLS_1_3: ssl.TLSVersion.TLSv1_3}
_AUTHENTICATION = {
    NONE: ssl.CERT_NONE,
    REQUESTED: ssl.CERT_OPTIONAL,
    REQUIRED: ssl.CERT_REQUIRED,
}


def server_context(config: TlsConfig, stores: Stores) -> ssl.SSLContext:
    """Returns the context of a listener. Raises InvalidConfig."""
    if stores.own is None:
        raise InvalidConfig(
            "TLS needs the broker's key and certificate; expected ssl.keystore.location, or"
            " ssl.keystore.key and ssl.keystore.certificate.chain"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    _set_versions(context, config)
    _load_own(context, stores.own)
    if config.client_auth != NONE:
        if not stores.trusted:
            raise InvalidConfig(
                f"ssl.client.auth={config.client_auth} needs the authorities of clients; expected"
                " ssl.truststore.location or ssl.truststore.certificates"
            )
        _load_trusted(context, stores)
    context.verify_mode = _AUTHENTICATION[config.client_auth]
    return context


def client_context(config: TlsConfig, stores: Stores, *, checks_name: bool) -> ssl.SSLContext:
    """Returns the context of connections to other nodes; without a truststore the system's.

    The certificate of this broker is shown to who asks for one. Raises InvalidConfig.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.check_hostname = checks_name
    _set_versions(context, config)
    if stores.own is not None:
        _load_own(context, stores.own)
    if stores.trusted:
        _load_trusted(context, stores)
    else:
        context.load_default_certs()
    return context


def _set_versions(context: ssl.SSLContext, config: TlsConfig) -> None:
    versions = set(config.enabled_protocols)
    if config.cipher_suites:
        chosen = choose_suites(config.cipher_suites)
        if not chosen.has_tls_1_3:
            versions.discard(TLS_1_3)
        if not chosen.of_tls_1_2:
            versions.discard(TLS_1_2)
        elif TLS_1_2 in versions:
            _set_suites(context, chosen.of_tls_1_2)
    if not versions:
        raise InvalidConfig(
            f"ssl.enabled.protocols={','.join(config.enabled_protocols)} and ssl.cipher.suites="
            f"{','.join(config.cipher_suites)}: no protocol is left"
        )
    context.minimum_version = min(_VERSIONS[one] for one in versions)
    context.maximum_version = max(_VERSIONS[one] for one in versions)


def _set_suites(context: ssl.SSLContext, names: tuple[str, ...]) -> None:
    try:
        context.set_ciphers(":".join(names))
    except ssl.SSLError:
        missing: set[str] = set(names)
    else:
        missing = set(names) - {suite["name"] for suite in context.get_ciphers()}
    if missing:
        raise InvalidConfig(
            f"ssl.cipher.suites: {ssl.OPENSSL_VERSION} has no {', '.join(sorted(missing))}"
        )


def _load_own(context: ssl.SSLContext, own: KeyStore) -> None:
    chain = "".join(pem.as_pem(pem.CERTIFICATE, one) for one in own.chain)
    with _memory_file(own.key + chain) as path:
        try:
            # Without a function OpenSSL would ask the terminal for the password.
            context.load_cert_chain(path, password=lambda: own.password or "")
        except ssl.SSLError as error:
            raise InvalidConfig(f"ssl.keystore: {_fault_of_key(error, own)}") from None
        except ValueError as error:
            raise InvalidConfig(f"ssl.key.password: {error}") from None


def _fault_of_key(error: ssl.SSLError, own: KeyStore) -> str:
    if error.reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"):
        return "the key is not that of the first certificate"
    # What is behind it OpenSSL says in several ways, or in none.
    password = "; is ssl.key.password right?" if own.password is not None else ""
    return f"OpenSSL refuses the key or its certificates: {error.reason or error}{password}"


def _load_trusted(context: ssl.SSLContext, stores: Stores) -> None:
    # As in Java, each certificate of a truststore is trusted, also one that another has issued.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cadata=b"".join(stores.trusted))
    except ssl.SSLError as error:
        raise InvalidConfig(
            f"ssl.truststore: OpenSSL refuses it: {error.reason or error}"
        ) from None
    if stores.revoked is not None:
        context.verify_flags |= _revocation_flag(stores.trusted)
        with _memory_file(stores.revoked) as path:
            try:
                context.load_verify_locations(path)
            except ssl.SSLError as error:
                raise InvalidConfig(
                    f"strandline.ssl.crl.location: OpenSSL refuses it: {error.reason or error}"
                ) from None


def _revocation_flag(trusted: tuple[bytes, ...]) -> ssl.VerifyFlags:
    """Authorities between a root and a client may be revoked too.

    Of one that is trusted itself, without its issuer, nobody has a list.
    """
    if all(is_self_issued(one) for one in trusted):
        return ssl.VERIFY_CRL_CHECK_CHAIN
    return ssl.VERIFY_CRL_CHECK_LEAF


@contextmanager
def _memory_file(content: str) -> Iterator[str]:
    """A file in memory, by its path: Python's ssl reads keys from paths alone."""
    descriptor = os.memfd_create("tls", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "w", encoding="utf-8", closefd=False) as file:
            file.write(content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
