"""How librdkafka's tests come to a broker: by a plain connection, and those that want TLS or a
login in the ways that they want.

Their own set-up starts brokers, an authority and a provider of tokens, and tells the tests by
test.conf and by environment variables. Here this is done for one broker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from joserfc.jwk import RSAKey

from tests.compat.secured import plain_users, tls_settings
from tests.support.broker import BrokerProcess
from tests.support.certificates import PASSWORD as FILE_PASSWORD
from tests.support.token_endpoint import (
    CLIENT_ID,
    CLIENT_SECRET,
    SCOPE,
    TokenEndpoint,
    running_token_endpoint,
)
from tests.support.users import set_passwords

USER, PASSWORD = "alice", "alice-secret"
# A connection has to log in again after this: long enough for a slow machine, and 0142 waits
# for it some ten times.
LOGIN_MS = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """Lines of test.conf and variables of the environment, and which tests want them."""

    name: str = ""
    # All tests if empty.
    tests: tuple[str, ...] = ()
    client: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    def named(self, test: str) -> str:
        """The name of a test that runs in several ways."""
        return f"{test} ({self.name})" if self.name else test


PLAINTEXT = Way()
# Of the secured ones, each with the protocol of its listener and what runs there.
TESTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "mTLS": ("SSL", ("0097_ssl_verify",)),
    "PLAIN": ("SASL_SSL", ("0097_ssl_verify", "0135_sasl_credentials", "0142_reauthentication")),
    "SCRAM-SHA-512": ("SASL_SSL", ("0135_sasl_credentials", "0142_reauthentication")),
    "OAUTHBEARER": ("SASL_SSL", ("0126_oauthbearer_oidc", "0142_reauthentication")),
}


@contextmanager
def secured(name: str, broker: BrokerProcess) -> Iterator[Way]:
    """The way, and the broker with a listener for it, running."""
    protocol, tests = TESTS[name]
    folder = broker.folder / "tls"
    address = broker.add_listener("CLIENTS", protocol)
    client_auth = "required" if protocol == "SSL" else "none"
    broker.settings |= {
        "listener.name.clients.ssl.client.auth": client_auth,
        **tls_settings(folder),
    }
    client = {
        "bootstrap.servers": address,
        "security.protocol": protocol,
        "ssl.ca.location": str(folder / "authority.pem"),
        "ssl.certificate.location": str(folder / "client.crt"),
        "ssl.key.location": str(folder / "client.key"),
        "ssl.key.password": FILE_PASSWORD,
    }
    environment = _files(folder, client_auth)
    with ExitStack() as stack:
        if protocol != "SSL":
            client["sasl.mechanism"] = name
            broker.settings["sasl.enabled.mechanisms"] = name
            broker.settings["connections.max.reauth.ms"] = str(LOGIN_MS)
        if name == "OAUTHBEARER":
            key = RSAKey.generate_key(2048)
            endpoint = stack.enter_context(running_token_endpoint(key))
            broker.settings |= endpoint.broker_settings()
            client |= _provider(endpoint)
            environment |= _keys(folder, key) | _places(endpoint)
        elif name != "mTLS":
            client |= {"sasl.username": USER, "sasl.password": PASSWORD}
            broker.settings["listener.name.clients.plain.sasl.jaas.config"] = plain_users(
                {USER: PASSWORD}
            )
        stack.enter_context(broker)
        if name.startswith("SCRAM"):
            set_passwords(broker, [(USER, name, PASSWORD)])
        yield Way(name=name, tests=tests, client=client, environment=environment)


def _files(folder: Path, client_auth: str) -> dict[str, str]:
    names = {
        "SSL_ca_pem": "authority.pem",
        "SSL_ca_der": "authority.der",
        "SSL_all_cas_pem": "authorities.pem",
        "SSL_pub_pem": "client.crt",
        "SSL_pub_der": "client.crt.der",
        "SSL_priv_pem": "client.key",
        "SSL_priv_der": "client.key.der",
        "SSL_pkcs": "client.p12",
    }
    found = {variable: str(folder / name) for variable, name in names.items()}
    return found | {"SSL_password": FILE_PASSWORD, "SSL_client_auth": client_auth}


def _provider(endpoint: TokenEndpoint) -> dict[str, str]:
    return {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": CLIENT_ID,
        "sasl.oauthbearer.client.secret": CLIENT_SECRET,
        "sasl.oauthbearer.scope": SCOPE,
        "sasl.oauthbearer.extensions": "ExtensionworkloadIdentity=one,Extensioncluster=two",
        "sasl.oauthbearer.token.endpoint.url": endpoint.tokens,
    }


def _places(endpoint: TokenEndpoint) -> dict[str, str]:
    return {
        "VALID_OIDC_URL": endpoint.tokens,
        "INVALID_OIDC_URL": f"{endpoint.tokens}/badformat",
        "EXPIRED_TOKEN_OIDC_URL": f"{endpoint.tokens}/expire",
    }


def _keys(folder: Path, key: RSAKey) -> dict[str, str]:
    """What signs a client's assertions."""
    plain, sealed = folder / "assertion.key", folder / "assertion.sealed.key"
    plain.write_bytes(key.as_pem(private=True))
    sealed.write_bytes(key.as_pem(private=True, password=FILE_PASSWORD))
    return {
        "OAUTHBEARER_CLIENT_PRIVATE_KEY": str(plain),
        "OAUTHBEARER_CLIENT_PRIVATE_KEY_ENCRYPTED": str(sealed),
        "OAUTHBEARER_CLIENT_PRIVATE_KEY_PASSWORD": FILE_PASSWORD,
    }
