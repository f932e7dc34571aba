"""Connects a tool to a cluster, and explains errors with a remedy.

librdkafka retries an unreachable broker until a request times out, which takes a minute. So the
addresses are first tried with a plain connect, which reports the usual mistakes, a stopped broker
and a wrong address, at once.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strandline.broker.tools.client.failures import ToolFailure, WrongUse
from strandline.broker.tools.client.kafka_properties import (
    ReadToken,
    librdkafka_settings,
    token_reader,
)
from strandline.storage.config.properties import read_properties
from strandline.storage.errors import InvalidConfig
from strandline.storage.system.host_names import is_host_name

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
DEFAULT_PORT = 9092
# One try per address: a broker on the same continent answers a SYN in a tenth of this.
CONNECT_SECONDS_MAX = 3.0
REQUEST_SECONDS_MAX = 30.0
# After that, the first request reports the error of a slow login.
LOGIN_TRY_SECONDS = 0.25
LOGIN_TRIES_MAX = 20
TLS_TRIES = 4

# ApiVersions 0, without a client id.
_API_VERSIONS = bytes.fromhex("0000000a 0012 0000 00000000 ffff")
# The type of a record of TLS.
_ALERT = b"\x15"

# The schemes that librdkafka takes in front of an address.
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

# Remedies by the code's name in librdkafka.
_REMEDIES: Mapping[str, str] = {
    "UNKNOWN_TOPIC_OR_PART": "strandline topic list  shows the topics there are",
    "TOPIC_ALREADY_EXISTS": "look at it with: strandline topic describe NAME",
    "TOPIC_EXCEPTION": "names are 1 to 249 letters, digits, '.', '_' and '-'",
    "INVALID_REPLICATION_FACTOR": "a topic cannot have more replicas than there are brokers",
    "INVALID_CONFIG": "all properties and values: strandline docs reference/configuration",
    "GROUP_ID_NOT_FOUND": "strandline group list  shows the groups there are",
    "NON_EMPTY_GROUP": "stop the group's consumers first; group describe shows who they are",
    "GROUP_SUBSCRIBED_TO_TOPIC": "stop the group's consumers first",
    "UNKNOWN_MEMBER_ID": "stop the group's consumers first; group describe shows who they are",
    "MSG_SIZE_TOO_LARGE": "max.message.bytes of the topic is the limit: strandline topic alter",
    "OFFSET_OUT_OF_RANGE": "strandline topic describe NAME  shows where the log starts and ends",
    "INVALID_TIMESTAMP": "does this machine's clock agree with the broker's? The bounds are"
    " message.timestamp.before.max.ms and message.timestamp.after.max.ms of the topic",
    "INVALID_RECORD": "in a compacted topic every record needs a key (--key, --key-separator)",
    "_UNKNOWN_PARTITION": "strandline topic describe NAME  shows the partitions there are",
    "_TIMED_OUT": "the broker took the connection and did not answer: see its log",
    "_TRANSPORT": "the connection broke; does the listener expect TLS or SASL? see -X",
    "_ALL_BROKERS_DOWN": "the advertised address may be another one: see advertised.listeners",
}


# The rights that actions need, by the words that begin `what` of `failure_of`. The first that fits.
_RIGHTS: Mapping[str, str] = {
    "cannot find topic": "describe of the topic",
    "cannot read the configuration of topic": "describe-configs of the topic",
    "cannot read the configuration of": "describe-configs of the cluster",
    "cannot create topic": "create of the topic, or of the cluster",
    "cannot delete topic": "delete of the topic, or of the cluster",
    "cannot give topic": "alter of the topic",
    "cannot change the configuration of topic": "alter-configs of the topic",
    "cannot describe group": "describe of the group",
    "cannot set the offset": "read of the group and of its topics",
    "cannot delete group": "delete of the group",
    "cannot read the offsets of group": "describe of the group and of its topics",
    "cannot read the offsets of": "describe of the topic",
    "cannot read the ACLs": "describe of the cluster",
    "cannot create the ACL": "alter of the cluster",
    "cannot delete the ACLs": "alter of the cluster",
    "cannot write": "write of the topic",
    "could not write": "write of the topic",
    "cannot ask for": "write of the topic",
    "cannot read": "read of the topic, and of the group if there is one",
}
_DENIED = "_AUTHORIZATION_FAILED"

# A part of Kafka's text for a legal name that another topic has, but for '.' and '_'.
_COLLISION = "collides with existing topic"
_COLLIDES = "names that differ in '.' and '_' alone have one name in metrics: choose another one"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConnection:
    """The address of the cluster, and librdkafka's settings for it."""

    bootstrap: str = DEFAULT_BOOTSTRAP
    settings: Mapping[str, str] = field(default_factory=dict)
    # Those of them that are given one by one, and so precede what a command needs for itself.
    chosen: Mapping[str, str] = field(default_factory=dict)
    # Gives the token of OAUTHBEARER, unless librdkafka asks a provider.
    read_token: ReadToken | None = None

    def client_settings(self, **more: str | int | bool) -> dict[str, Any]:
        """Settings for a client of confluent-kafka; `more` are names with `_` for the dots."""
        dotted = {name.replace("_", "."): value for name, value in more.items()}
        return {
            "bootstrap.servers": self.bootstrap,
            "client.id": "strandline-cli",
            **self.settings,
            # A file may be that of a producer, or of a consumer, whose group must not notice.
            **dotted,
            **self.chosen,
            **({} if self.read_token is None else {"oauth_cb": self.read_token}),
        }

    def check_reachable(self) -> None:
        """Raises ToolFailure unless one of the addresses accepts a connection and the login."""
        refusals = []
        for address in self.bootstrap.split(","):
            host, port = split_address(address.strip())
            try:
                with socket.create_connection((host, port), CONNECT_SECONDS_MAX) as connected:
                    needs_tls = self._is_plain and _answers_by_tls(connected)
            except OSError as error:
                refusals.append(f"{host}:{port}: {error.strerror or error}")
                continue
            if needs_tls:
                raise ToolFailure(
                    f"{host}:{port} ends connections at a request without TLS",
                    remedy="if it expects TLS: -X security.protocol=SSL, or SASL_SSL; see -X",
                )
            self._check_login()
            return
        raise ToolFailure(
            f"no broker answers at {'; '.join(refusals)}",
            remedy="is it running (strandline serve)? say where with --bootstrap-server HOST:PORT",
        )

    @property
    def _is_plain(self) -> bool:
        protocol = self.settings.get("security.protocol", "plaintext")
        return protocol.lower().endswith("plaintext")

    def _check_login(self) -> None:
        """Raises ToolFailure when TLS fails, or the login is refused.

        librdkafka would retry until a request times out, and then not report why.
        """
        if self.settings.get("security.protocol", "plaintext").lower() == "plaintext":
            return
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        errors: list[KafkaError] = []
        settings: dict[str, Any] = {**self.client_settings(), "error_cb": errors.append}
        with settings_checked():
            admin = AdminClient(settings, logger=quiet_logger())
        for tries in range(LOGIN_TRIES_MAX):
            try:
                admin.list_topics(timeout=LOGIN_TRY_SECONDS)
            except KafkaException:
                admin.poll(0)  # Runs the callbacks that add to `errors`.
            else:
                return
            for error in errors:
                if error.name() == "_AUTHENTICATION":
                    raise ToolFailure(
                        f"the login is refused: {error.str()}",
                        remedy="user, password and mechanism are settings: see -X",
                    )
                # A broker that ends in the middle of a handshake is tried again.
                if error.name() == "_SSL" or (tries >= TLS_TRIES and "SSL" in error.str()):
                    raise ToolFailure(
                        f"TLS fails: {error.str()}",
                        remedy="trusted authorities, own certificate and protocol are settings:"
                        " see -X and --command-config",
                    )


def _answers_by_tls(connected: socket.socket) -> bool:
    """Whether a listener answers a request by an alert, or its end.

    Each broker from Kafka 0.10 on answers this one, and librdkafka would only time out.
    """
    try:
        connected.sendall(_API_VERSIONS)
        return connected.recv(1) in (_ALERT, b"")
    except OSError:
        return False


def connection_of(
    bootstrap: str, settings: Sequence[str], settings_file: Path | None
) -> ClusterConnection:
    """Builds it from the command line. Raises WrongUse.

    `settings` are KEY=VALUE of librdkafka and win; the file has Kafka's client properties.
    """
    given: dict[str, str] = {}
    if settings_file is not None:
        try:
            given = {entry.key: entry.value for entry in read_properties(settings_file)}
        except InvalidConfig as error:
            raise WrongUse(str(error)) from None
    chosen = dict(map(pair, settings))
    return ClusterConnection(
        bootstrap=bootstrap,
        settings={**librdkafka_settings(given), **chosen},
        chosen=chosen,
        read_token=token_reader(given),
    )


def pair(text: str) -> tuple[str, str]:
    """Splits `a=b`. Raises WrongUse."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise WrongUse(f"{text!r} is no KEY=VALUE")
    return name.strip(), value.strip()


def split_address(address: str) -> tuple[str, int]:
    """Splits `host:port`, `[::1]:port` or `host`. Raises WrongUse."""
    scheme, has_scheme, rest = address.rpartition("://")
    if has_scheme and scheme.upper() not in _PROTOCOLS:
        raise WrongUse(
            f"{address!r} is the address of no broker: write HOST:PORT",
            remedy="an address of metrics is for strandline status --metrics URL",
        )
    address = rest
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]"):
        host, port = address, str(DEFAULT_PORT)
    host = host.strip("[]")
    if not host or not is_host_name(host) or not port.isdigit() or not 0 < int(port) < 65536:
        raise WrongUse(f"{address!r} is no HOST:PORT")
    return host, int(port)


@contextmanager
def settings_checked() -> Iterator[None]:
    """Wraps the creation of a client, which may refuse settings. Raises WrongUse."""
    from confluent_kafka import KafkaException

    try:
        yield
    except KafkaException as error:
        raise WrongUse(
            f"a setting is wrong: {error.args[0].str()}",
            remedy="-X and --command-config take librdkafka's settings, see its CONFIGURATION.md",
        ) from None


def quiet_logger() -> logging.Logger:
    """Drops librdkafka's log lines: its calls raise the relevant errors."""
    logger = logging.getLogger("strandline.tools.librdkafka")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger


def failure_of(error: KafkaError, what: str) -> ToolFailure:
    """Converts an error; `what` is the failed action, as in `cannot create topic 'a'`."""
    name = str(error.name())
    said = str(error.str() or name).rstrip(".")
    # librdkafka does not explain local timeouts; the name at least identifies them.
    reason = said if name in said else f"{said} ({name})"
    remedy = _COLLIDES if _COLLISION in said else _REMEDIES.get(name, "")
    if name.endswith(_DENIED):
        right = next((one for words, one in _RIGHTS.items() if what.startswith(words)), "")
        remedy = (
            f"the user of this connection has no right to it{f': {right}' if right else ''};"
            " strandline acl add  gives it"
        )
    return ToolFailure(f"{what}: {reason}", remedy=remedy)
