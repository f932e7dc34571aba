"""Kafka's client properties, as a file of `--command-config` has them, in librdkafka's words.

    sasl.jaas.config        user and password, or the client id and secret of OAUTHBEARER
    ssl.truststore.*        the authorities to trust, in PEM
    ssl.keystore.*          own certificate and key, in PEM or PKCS12

What both call the same, and librdkafka's own names, stay as they are; it tells which it does not
know. Properties that name a Java class, or tune Java's client alone, are left out. A store of Java
(JKS) is refused with the commands that convert it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from pathlib import Path

from strandline.broker.security.jaas import OAUTH_MODULE, PLAIN_MODULE, SCRAM_MODULE, parse_jaas
from strandline.broker.tools.client.failures import WrongUse
from strandline.storage.clock import SystemClock
from strandline.storage.errors import InvalidConfig

# Kept for librdkafka under another name.
_RENAMED = {
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "sasl.oauthbearer.client.credentials.client.id": "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.credentials.client.secret": "sasl.oauthbearer.client.secret",
}
# Read here, or by Java's client alone.
_LEFT_OUT = (
    "sasl.jaas.config",
    "ssl.truststore.type",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.keystore.type",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.protocol",
    "ssl.enabled.protocols",
    "ssl.provider",
    "ssl.keymanager.algorithm",
    "ssl.trustmanager.algorithm",
    "ssl.secure.random.implementation",
    "security.providers",
    "sasl.kerberos.ticket.renew.window.factor",
    "sasl.kerberos.ticket.renew.jitter",
    "sasl.oauthbearer.header.urlencode",
    "default.api.timeout.ms",
    "socket.connection.setup.timeout.max.ms",
    "send.buffer.bytes",
    "receive.buffer.bytes",
    "auto.include.jmx.reporter",
    "buffer.memory",
    "max.block.ms",
    "max.request.size",
    "partitioner.ignore.keys",
    "auto.offset.reset",
    "fetch.max.wait.ms",
    "partition.assignment.strategy",
    "exclude.internal.topics",
    "interceptor.classes",
    "metric.reporters",
    "key.serializer",
    "value.serializer",
    "key.deserializer",
    "value.deserializer",
)
_LEFT_OUT_ENDS = (".class",)
_LEFT_OUT_BEGINNINGS = (
    "sasl.login.",
    "metrics.",
    # What a broker asks of tokens; Java's clients have it too, without an effect.
    "sasl.oauthbearer.jwks.",
    "sasl.oauthbearer.expected.",
    "sasl.oauthbearer.scope.claim.",
    "sasl.oauthbearer.sub.claim.",
    "sasl.oauthbearer.clock.skew.",
)
_TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"
_FILE = "file://"
# Of a token in a file that does not say when it ends.
_TOKEN_S = 300.0

ReadToken = Callable[[str], tuple[str, float]]


def librdkafka_settings(properties: Mapping[str, str]) -> dict[str, str]:
    """Translates the properties of a file. Raises WrongUse."""
    settings = {
        _RENAMED.get(name, name): value
        for name, value in properties.items()
        if name not in _LEFT_OUT
        and not name.endswith(_LEFT_OUT_ENDS)
        and not name.startswith(_LEFT_OUT_BEGINNINGS)
    }
    if settings.get("ssl.endpoint.identification.algorithm") == "":
        settings["ssl.endpoint.identification.algorithm"] = "none"
    settings.update(_login(properties))
    settings.update(_trust(properties))
    settings.update(_own_certificate(properties))
    if settings.get("sasl.mechanism", "").upper() == "OAUTHBEARER" and not _token_file(properties):
        settings.setdefault("sasl.oauthbearer.method", "oidc")
    if _token_file(properties):
        del settings[_TOKEN_URL]
    return settings


def token_reader(properties: Mapping[str, str]) -> ReadToken | None:
    """Returns what gives librdkafka the token of a file; None if it asks a provider itself."""
    path = _token_file(properties)
    return None if path is None else lambda _config: _read_token(path)


def _token_file(properties: Mapping[str, str]) -> Path | None:
    url = properties.get(_TOKEN_URL, "")
    return Path(url.removeprefix(_FILE)) if url.startswith(_FILE) else None


def _read_token(path: Path) -> tuple[str, float]:
    """Returns a token, and when it ends, in seconds since 1970."""
    text = path.read_text("ascii").strip()
    ends_s = SystemClock().now_ms() / 1000 + _TOKEN_S
    try:
        part = text.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        ends_s = float(claims["exp"])
    except (IndexError, KeyError, TypeError, ValueError):
        pass  # The broker says what is wrong with it.
    return text, ends_s


def _login(properties: Mapping[str, str]) -> dict[str, str]:
    text = properties.get("sasl.jaas.config")
    if text is None:
        return {}
    try:
        module, options = parse_jaas(text)
    except InvalidConfig as error:
        raise WrongUse(str(error)) from None
    if module in (PLAIN_MODULE, SCRAM_MODULE):
        names = {"username": "sasl.username", "password": "sasl.password"}
    elif module == OAUTH_MODULE:
        names = {
            "clientId": "sasl.oauthbearer.client.id",
            "clientSecret": "sasl.oauthbearer.client.secret",
            "scope": "sasl.oauthbearer.scope",
            # Of the provider.
            "ssl.truststore.location": "https.ca.location",
            "ssl.truststore.certificates": "https.ca.pem",
        }
        _trust(options)
    else:
        raise WrongUse(
            f"sasl.jaas.config: the commands do not know the login module {module}",
            remedy=f"they know {PLAIN_MODULE}, {SCRAM_MODULE} and {OAUTH_MODULE}",
        )
    return {names[name]: value for name, value in options.items() if name in names}


def _trust(properties: Mapping[str, str]) -> dict[str, str]:
    path = properties.get("ssl.truststore.location")
    if path is None:
        return {}
    _check_store("ssl.truststore", properties, ("PEM",), f"openssl pkcs12 -in {path} -nokeys")
    return {"ssl.ca.location": path}


def _own_certificate(properties: Mapping[str, str]) -> dict[str, str]:
    path = properties.get("ssl.keystore.location")
    if path is None:
        return {}
    kind = _check_store(
        "ssl.keystore", properties, ("PEM", "PKCS12"), f"openssl pkcs12 -in {path} -nodes"
    )
    if kind == "PEM":
        # The file has both, as in Kafka.
        return {"ssl.certificate.location": path, "ssl.key.location": path}
    password = properties.get("ssl.keystore.password")
    store = {"ssl.keystore.location": path}
    return store if password is None else {**store, "ssl.keystore.password": password}


def _check_store(
    name: str, properties: Mapping[str, str], known: tuple[str, ...], convert: str
) -> str:
    """Returns the type of a store. Raises WrongUse for one that librdkafka cannot read."""
    kind = properties.get(f"{name}.type", "JKS").upper()
    if kind == "JKS" and "PKCS12" in known and _is_pkcs12(properties[f"{name}.location"]):
        kind = "PKCS12"
    if kind not in known:
        first = "keytool -importkeystore -deststoretype pkcs12 -srckeystore STORE, and then "
        raise WrongUse(
            f"{name}.type={kind}: the commands read {' and '.join(known)} alone",
            remedy=f"convert it: {first if kind == 'JKS' else ''}{convert} -out store.pem",
        )
    return kind


def _is_pkcs12(path: str) -> bool:
    """Java's default is JKS, and Java reads PKCS12 with it too. That is a SEQUENCE in DER."""
    try:
        with open(path, "rb") as file:
            return file.read(1) == b"\x30"
    except OSError:
        return False
