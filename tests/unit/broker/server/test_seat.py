"""When a broker is one of a cluster of controllers elsewhere, and what it then cannot have."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid

import pytest

from strandline.broker.cluster.metadata.image import MetadataDelta, MetadataImage
from strandline.broker.config.loading import load_config
from strandline.broker.config.peer_security import controller_security, inter_broker_security
from strandline.broker.peers.security import PasswordLogin, TokenLogin
from strandline.broker.protocol.formats.metadata_records import (
    FeatureLevelRecord,
    RegisterBrokerRecord,
)
from strandline.broker.server.parts.membership import lacks_folders
from strandline.broker.server.roles import role_of
from strandline.broker.server.seat import check_seat
from strandline.storage.errors import InvalidConfig

SEAT = (
    "process.roles=broker",
    "controller.quorum.bootstrap.servers=c1:9093,c2:9093",
    "controller.listener.names=CONTROLLER",
    "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
)
ARCHIVE = ("remote.log.storage.system.enable=true", "strandline.remote.url=file:///tmp/x")
TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"
BY_TOKEN = (
    "listener.security.protocol.map=CONTROLLER:SASL_SSL,PLAINTEXT:PLAINTEXT",
    "sasl.mechanism.controller.protocol=OAUTHBEARER",
    f"listener.name.controller.oauthbearer.{TOKEN_URL}=https://provider/token",
    "listener.name.controller.oauthbearer.sasl.jaas.config=org.apache.kafka.common.security."
    'oauthbearer.OAuthBearerLoginModule required clientId="b" clientSecret="p" scope="s";',
)
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"


@pytest.mark.parametrize(
    ("overrides", "role"),
    [
        ((), "start_local"),
        (("process.roles=broker,controller", "controller.quorum.voters=1@h:9093"), "start_local"),
        (("process.roles=broker",), "start_local"),
        (SEAT, "start_seat"),
        ((*SEAT, *ARCHIVE), "start_seat"),
        ((*SEAT[:1], "controller.quorum.voters=1@a:1,2@b:2"), "start_seat"),
    ],
)
def test_the_role_follows_from_kafkas_properties(overrides: tuple[str, ...], role: str) -> None:
    assert role_of(load_config(None, overrides)).__name__ == role  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_lone_broker_loads_nothing_that_only_a_seat_needs() -> None:
    code = (
        "import sys;"
        "from strandline.broker.config.loading import load_config;"
        "from strandline.broker.server.roles import role_of;"
        "role_of(load_config(None, []));"
        "sys.exit(' '.join({'strandline.broker.peers.connection',"
        " 'strandline.broker.cluster.membership.feed',"
        " 'strandline.broker.handlers.forwarding.forwarding',"
        " 'strandline.broker.cluster.archive.cluster_mirror',"
        " 'strandline.broker.server.parts.membership'} & set(sys.modules)) or 0)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("listeners=PLAINTEXT://127.0.0.1:0", "registers its port before it listens"),
    ],
)
def test_what_a_seat_cannot_have_is_refused(override: str, reason: str) -> None:
    config = load_config(None, [*SEAT, "strandline.remote.url=file:///tmp/x", override])
    with pytest.raises(InvalidConfig, match=reason):
        check_seat(config)


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (("controller.listener.names=",), "needs controller.listener.names"),
        (
            ("listener.security.protocol.map=CONTROLLER:SASL_SSL,PLAINTEXT:PLAINTEXT",),
            "by GSSAPI; expected one of PLAIN",
        ),
        (
            (
                "listener.security.protocol.map=CONTROLLER:SASL_SSL,PLAINTEXT:PLAINTEXT",
                "sasl.mechanism.controller.protocol=PLAIN",
            ),
            "expected username and password",
        ),
        (BY_TOKEN[:2], "expected where the token is in sasl.oauthbearer.token.endpoint.url"),
        ((*BY_TOKEN[:2], f"{TOKEN_URL}=https://p/t"), "client.id and.*client.secret"),
        ((*BY_TOKEN[:2], f"{TOKEN_URL}=https://me@p/t"), f"{TOKEN_URL}: expected https"),
    ],
)
def test_a_login_without_its_properties_is_refused_by_their_names(
    overrides: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(InvalidConfig, match=reason):
        controller_security(load_config(None, [*SEAT, *overrides]))


def test_controllers_and_brokers_have_a_security_each() -> None:
    config = load_config(
        None,
        [
            *SEAT,
            "listener.security.protocol.map=CONTROLLER:SASL_SSL,INSIDE:PLAINTEXT",
            "listeners=INSIDE://127.0.0.1:9092",
            "inter.broker.listener.name=INSIDE",
            "sasl.mechanism.controller.protocol=PLAIN",
            f'listener.name.controller.plain.sasl.jaas.config={MODULE} username="b" password="p";',
            "listener.name.controller.ssl.truststore.location=/authority.pem",
            "ssl.endpoint.identification.algorithm=",
        ],
    )
    controllers = controller_security(config)
    assert controllers.login is not None
    assert controllers.login == PasswordLogin(mechanism="PLAIN", user="b", password="p")
    assert controllers.tls is not None
    assert controllers.tls.truststore_location == "/authority.pem"
    assert not controllers.checks_name
    inside = inter_broker_security(config)
    assert (inside.listener, inside.tls, inside.login) == ("INSIDE", None, None)


def test_a_login_by_token_takes_the_client_of_the_login_module_as_kafka_does() -> None:
    login = controller_security(load_config(None, [*SEAT, *BY_TOKEN])).login
    assert isinstance(login, TokenLogin)
    assert (login.mechanism, login.user) == ("OAUTHBEARER", "b")
    assert repr(login.source) == "<TokenSource https://provider/token>"


@pytest.mark.parametrize(
    ("level", "log_dirs", "lacks"),
    [
        (7, (), False),
        (16, (), False),
        # 3.7-IV2.
        (17, (), True),
        (25, (), True),
        (25, (uuid.UUID(int=100),), False),
    ],
)
def test_folders_are_missing_where_the_metadata_want_them(
    level: int, log_dirs: tuple[uuid.UUID, ...], lacks: bool
) -> None:
    delta = MetadataDelta(MetadataImage())
    assert not lacks_folders(delta.before, 9)
    delta.apply(
        [
            FeatureLevelRecord(name="metadata.version", feature_level=level),
            RegisterBrokerRecord(
                broker_id=9,
                incarnation_id=uuid.UUID(int=5),
                broker_epoch=1,
                end_points=(),
                features=(),
                rack=None,
                fenced=False,
                log_dirs=log_dirs,
            ),
        ]
    )
    assert lacks_folders(delta.image(), 9) is lacks
