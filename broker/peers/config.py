"""How this broker connects to other nodes, with Kafka's keys."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.storage.config.definition import INT, LIST, STRING, key


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerConfig:
    """Settings of connections to controllers and to other brokers."""

    controller_listeners: tuple[str, ...] = key(
        "controller.listener.names",
        LIST,
        "",
        "Listeners of the controllers. A broker connects to the first one, whose protocol is in"
        " listener.security.protocol.map. They are never listeners of the broker itself.",
    )
    controller_mechanism: str = key(
        "sasl.mechanism.controller.protocol",
        STRING,
        "GSSAPI",
        "How the broker logs in at controllers with SASL: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"
        " or OAUTHBEARER. Name and password are those of"
        " listener.name.<name>.<mechanism>.sasl.jaas.config, the token that of"
        " sasl.oauthbearer.token.endpoint.url. Kafka's default, GSSAPI, is not served.",
    )
    listener: str | None = key(
        "inter.broker.listener.name",
        STRING,
        None,
        "Listener by which the brokers of a cluster connect to each other. Unset: the one whose"
        " name is security.inter.broker.protocol.",
    )
    protocol: str = key(
        "security.inter.broker.protocol",
        STRING,
        "PLAINTEXT",
        "Protocol between brokers: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL. Only one of this"
        " and inter.broker.listener.name may be set.",
        choices=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    )
    mechanism: str = key(
        "sasl.mechanism.inter.broker.protocol",
        STRING,
        "GSSAPI",
        "How the broker logs in at other brokers with SASL; as sasl.mechanism.controller.protocol.",
    )
    name_check: str = key(
        "ssl.endpoint.identification.algorithm",
        STRING,
        "https",
        "https: a node that the broker connects to has to be named in its certificate. Empty: its"
        " name is not checked.",
        choices=("https", ""),
    )
    request_ms_max: int = key(
        "request.timeout.ms",
        INT,
        30_000,
        "Longest wait for the answer of another node, in ms.",
        minimum=1,
    )
