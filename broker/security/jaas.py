"""Parses Kafka's `sasl.jaas.config` of a listener, as far as a broker needs it.

    org.apache.kafka.common.security.plain.PlainLoginModule required
        username="admin" password="..." user_admin="..." user_alice="...";

Each `user_NAME` of PlainLoginModule is a user with a password. `username` and `password` are
what this broker logs in with elsewhere. ScramLoginModule needs no options: its users are
in the metadata. OAuthBearerLoginModule has the certificates that its provider must show.
"""

from __future__ import annotations

import re

from strandline.storage.errors import InvalidConfig

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
OAUTH_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"

_FLAGS = ("required", "requisite", "sufficient", "optional")
_OPTION = re.compile(r"""\s*([A-Za-z0-9_.@-]+)\s*=\s*("(?:[^"\\]|\\.)*"|'[^']*'|[^\s;"']+)""")
_HEAD = re.compile(r"\s*([A-Za-z0-9_.$]+)\s+([A-Za-z]+)")


def parse_jaas(text: str) -> tuple[str, dict[str, str]]:
    """Returns the login module and its options. Raises InvalidConfig, which quotes no password."""
    head = _HEAD.match(text)
    if head is None or head[2].lower() not in _FLAGS:
        raise InvalidConfig("sasl.jaas.config: expected `<login module> required <options>;`")
    position, options = head.end(), {}
    while (option := _OPTION.match(text, position)) is not None:
        options[option[1]] = _unquoted(option[2])
        position = option.end()
    if text[position:].strip() != ";":
        raise InvalidConfig(
            'sasl.jaas.config: expected name="value" pairs and one semicolon at the end'
        )
    return head[1], options


def plain_passwords(text: str) -> dict[str, str]:
    """Returns the passwords by user of a PlainLoginModule. Raises InvalidConfig."""
    module, options = parse_jaas(text)
    if module != PLAIN_MODULE:
        raise InvalidConfig(f"sasl.jaas.config: expected {PLAIN_MODULE}, not {module}")
    return {
        name.removeprefix("user_"): password
        for name, password in options.items()
        if name.startswith("user_") and name != "user_"
    }


def check_scram(text: str) -> None:
    """Raises InvalidConfig unless this is a ScramLoginModule."""
    module, _ = parse_jaas(text)
    if module != SCRAM_MODULE:
        raise InvalidConfig(f"sasl.jaas.config: expected {SCRAM_MODULE}, not {module}")


def oauth_options(text: str) -> dict[str, str]:
    """Returns the options of an OAuthBearerLoginModule. Raises InvalidConfig.

    `unsecuredLogin...` would ask for tokens without a signature, which are not served.
    """
    module, options = parse_jaas(text)
    if module != OAUTH_MODULE:
        raise InvalidConfig(f"sasl.jaas.config: expected {OAUTH_MODULE}, not {module}")
    if any(name.startswith("unsecured") for name in options):
        raise InvalidConfig("sasl.jaas.config: tokens without a signature are not served")
    if options.get("ssl.truststore.type", "PEM").upper() != "PEM":
        raise InvalidConfig('sasl.jaas.config: expected ssl.truststore.type="PEM"')
    return options


def check_token_handler(name: str) -> None:
    """Raises InvalidConfig for another handler of tokens than Kafka's that checks signatures.

    Kafka's default takes tokens without one.
    """
    if name.rpartition(".")[2] != "OAuthBearerValidatorCallbackHandler":
        raise InvalidConfig(
            "sasl.server.callback.handler.class: expected org.apache.kafka.common.security."
            "oauthbearer.OAuthBearerValidatorCallbackHandler, which the broker does by itself"
        )


def _unquoted(text: str) -> str:
    if text[0] == '"':
        return re.sub(r"\\(.)", r"\1", text[1:-1])
    return text[1:-1] if text[0] == "'" else text
