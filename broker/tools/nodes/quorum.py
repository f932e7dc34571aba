"""Two requests that librdkafka does not have, by our own client: who is there, and who follows.

DescribeCluster  2  fenced brokers, too (KIP-1073)      DescribeQuorum  0-2  the metadata log

Both want DESCRIBE on the cluster. Where the login is one that our client does not know, as GSSAPI,
or the cluster is older than these requests, `Unasked` says so: the rest of a status is there
without them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from strandline.broker.peers.address import Address
from strandline.broker.peers.connection import PeerConnection
from strandline.broker.peers.errors import PeerError
from strandline.broker.peers.security import (
    MECHANISMS,
    OAUTHBEARER,
    PASSWORDS,
    PasswordLogin,
    PeerLogin,
    PeerSecurity,
    TokenLogin,
)
from strandline.broker.protocol.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from strandline.broker.protocol.messages.describe_quorum import (
    UNKNOWN_MS,
    DescribeQuorumRequest,
    DescribeQuorumRequestPartition,
    DescribeQuorumRequestTopic,
    DescribeQuorumResponse,
)
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.security.client import NoToken, Tokens
from strandline.broker.tls.config import PEM, PKCS12, TlsConfig
from strandline.broker.tools.client.cluster import RegisteredBroker
from strandline.broker.tools.client.connection import ClusterConnection, split_address
from strandline.broker.tools.client.kafka_properties import ReadToken
from strandline.storage.clock import Clock, SystemClock
from strandline.storage.config.definition import with_values
from strandline.storage.errors import InvalidConfig

T = TypeVar("T")

CONNECT_S_MAX: Final = 5.0
# A controller that hangs lets the broker wait for its own request timeout.
ANSWER_S_MAX: Final = 10.0
# Of DescribeCluster, from which on it tells of fenced brokers.
_WITH_FENCED: Final = 2
_METADATA: Final = "__cluster_metadata"
_CLIENT_ID: Final = "sasl.oauthbearer.client.id"


class Unasked(Exception):
    """Nobody answered; says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataFollower:
    """How far one node is in the metadata log; times in ms since 1970, None if unknown."""

    end_offset: int
    fetched_ms: int | None
    caught_up_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataQuorum:
    """The metadata log: who leads it, how long it is, and who has how much of it."""

    leader_id: int
    leader_address: str | None
    epoch: int
    end_offset: int
    followers: Mapping[int, MetadataFollower]


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """What one broker says of all. Of an older cluster `brokers` is None."""

    cluster_id: str
    brokers: tuple[RegisteredBroker, ...] | None
    quorum: MetadataQuorum | Unasked


def ask_nodes(connection: ClusterConnection) -> Nodes:
    """Asks the first broker that answers. Raises Unasked."""
    return asyncio.run(ask_first(connection, _ask))


async def ask_first(
    connection: ClusterConnection, ask: Callable[[PeerConnection], Awaitable[T]]
) -> T:
    """Connects to the first broker that answers, and asks it. Raises Unasked."""
    reason = ""
    for one in connection.bootstrap.split(","):
        try:
            connected = await connect(connection, one.strip())
        except PeerError as error:
            reason = str(error)
            continue
        try:
            return await ask(connected)
        finally:
            connected.close()
    raise Unasked(reason)


async def connect(connection: ClusterConnection, address: str) -> PeerConnection:
    """Connects to a broker with the login of a command. Raises PeerError, Unasked."""
    return await PeerConnection.open(
        Address(*split_address(address)),
        _security(connection),
        client_id="strandline-cli",
        clock=SystemClock(),
        timeout_s=CONNECT_S_MAX,
    )


async def _ask(connected: PeerConnection) -> Nodes:
    asked = DescribeClusterRequest(include_fenced_brokers=True)
    version = connected.supports(asked.spec.key) or 0
    try:
        found = await connected.call(asked, DescribeClusterResponse, timeout_s=ANSWER_S_MAX)
    except PeerError as error:
        raise Unasked(str(error)) from None
    if found.error_code:
        raise Unasked(error_text(found.error_code, found.error_message))
    brokers = [
        RegisteredBroker(
            node_id=one.broker_id,
            address=str(Address(one.host, one.port)),
            rack=one.rack or None,
            is_fenced=one.is_fenced,
        )
        for one in found.brokers
    ]
    quorum: MetadataQuorum | Unasked
    try:
        quorum = await _quorum(connected)
    except PeerError as error:
        quorum = Unasked(str(error))
    except Unasked as error:
        quorum = error
    return Nodes(
        cluster_id=found.cluster_id,
        brokers=tuple(brokers) if version >= _WITH_FENCED else None,
        quorum=quorum,
    )


async def _quorum(connected: PeerConnection) -> MetadataQuorum:
    partition = DescribeQuorumRequestPartition(partition_index=0)
    topic = DescribeQuorumRequestTopic(topic_name=_METADATA, partitions=[partition])
    answer = await connected.call(
        DescribeQuorumRequest(topics=[topic]), DescribeQuorumResponse, timeout_s=ANSWER_S_MAX
    )
    if answer.error_code:
        raise Unasked(error_text(answer.error_code, answer.error_message))
    found = next((one for topic in answer.topics for one in topic.partitions), None)
    if found is None:
        raise Unasked("an answer without the metadata log")
    if found.error_code:
        raise Unasked(error_text(found.error_code, found.error_message))
    places = {one.node_id: one.listeners for one in answer.nodes}
    of_leader = next(iter(places.get(found.leader_id, ())), None)
    return MetadataQuorum(
        leader_id=found.leader_id,
        leader_address=None if of_leader is None else str(Address(of_leader.host, of_leader.port)),
        epoch=found.leader_epoch,
        end_offset=found.high_watermark,
        followers={
            one.replica_id: MetadataFollower(
                end_offset=one.log_end_offset,
                fetched_ms=_known(one.last_fetch_timestamp),
                caught_up_ms=_known(one.last_caught_up_timestamp),
            )
            for one in (*found.observers, *found.current_voters)
        },
    )


def _known(time_ms: int) -> int | None:
    return None if time_ms == UNKNOWN_MS else time_ms


def error_text(code: int, message: str | None) -> str:
    """Returns the name of an error, and what was said of it."""
    try:
        name = ErrorCode(code).name
    except ValueError:
        name = str(code)
    return f"{name}: {message}" if message else name


# --- the security of a connection, from librdkafka's settings ------------------------------------


def _security(connection: ClusterConnection) -> PeerSecurity:
    """Raises Unasked for what our client does not know."""
    settings = connection.settings
    protocol = settings.get("security.protocol", "plaintext").upper()
    return PeerSecurity(
        listener="the cluster",
        tls=_tls(settings) if protocol.endswith("SSL") else None,
        checks_name=settings.get("ssl.endpoint.identification.algorithm") != "none",
        login=_login(connection) if protocol.startswith("SASL") else None,
    )


def _login(connection: ClusterConnection) -> PeerLogin:
    settings = connection.settings
    mechanism = settings.get("sasl.mechanism", settings.get("sasl.mechanisms", "")).upper()
    user, password = settings.get("sasl.username"), settings.get("sasl.password")
    if mechanism == OAUTHBEARER and connection.read_token is not None:
        return TokenLogin(source=_TokenFile(connection.read_token), user="the token's user")
    if mechanism == OAUTHBEARER and (url := settings.get("sasl.oauthbearer.token.endpoint.url")):
        return TokenLogin(source=_provider(url, settings), user=settings.get(_CLIENT_ID, ""))
    if mechanism not in PASSWORDS or user is None or password is None:
        raise Unasked(
            f"the login is by {mechanism or 'GSSAPI'}, and these requests go by"
            f" {', '.join(MECHANISMS)} alone"
        )
    return PasswordLogin(mechanism=mechanism, user=user, password=password)


def _provider(url: str, settings: Mapping[str, str]) -> Tokens:
    # Loaded by who asks a provider: HTTP, 25 ms.
    from strandline.broker.security.token_source import TokenSource

    return TokenSource(
        url,
        client_id=settings.get(_CLIENT_ID, ""),
        secret=settings.get("sasl.oauthbearer.client.secret", ""),
        scope=settings.get("sasl.oauthbearer.scope"),
        authority=_pem(settings, "https.ca") or "",
    )


class _TokenFile:
    def __init__(self, read_token: ReadToken) -> None:
        self._read_token = read_token

    def read(self, _clock: Clock) -> str:
        try:
            return self._read_token("")[0]
        except OSError as error:
            raise NoToken(f"no token: {error}") from error


def _tls(settings: Mapping[str, str]) -> TlsConfig:
    given: dict[str, object] = {
        "ssl.truststore.type": PEM,
        "ssl.truststore.location": settings.get("ssl.ca.location"),
        "ssl.truststore.certificates": settings.get("ssl.ca.pem"),
        "ssl.key.password": settings.get("ssl.key.password"),
    }
    try:
        if "ssl.keystore.location" in settings:
            given |= {
                "ssl.keystore.type": PKCS12,
                "ssl.keystore.location": settings["ssl.keystore.location"],
                "ssl.keystore.password": settings.get("ssl.keystore.password"),
            }
        elif (key := _pem(settings, "ssl.key")) is not None:
            given |= {
                "ssl.keystore.type": PEM,
                "ssl.keystore.key": key,
                "ssl.keystore.certificate.chain": _pem(settings, "ssl.certificate"),
            }
        return with_values(TlsConfig(), given)
    except (OSError, InvalidConfig) as error:
        raise Unasked(f"the settings of TLS cannot be used: {error}") from None


def _pem(settings: Mapping[str, str], name: str) -> str | None:
    path = settings.get(f"{name}.location")
    return settings.get(f"{name}.pem") if path is None else Path(path).read_text("ascii")
