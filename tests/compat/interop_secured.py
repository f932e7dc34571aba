"""The part of `make interop` with TLS, logins and ACLs: Kafka's Java tools as users of a broker
whose authorizer lets in nobody but `admin`.

    python -m tests.compat.interop_secured KAFKA_LIBRARIES [WORD ...]

    admin    SASL_SSL, PLAIN            a super user
    alice    SASL_SSL, SCRAM-SHA-512    made by kafka-configs, and given rights by kafka-acls
    subject  SASL_SSL, OAUTHBEARER      tokens of a provider, or of a file
    client   SSL with a certificate of its own
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from tests.compat.interop import (
    CONFIGS,
    CONSUMER,
    GROUPS,
    PRODUCER,
    TOOLS,
    TOPICS,
    TRANSACTIONS,
    Clients,
    Session,
    Step,
    carry_out,
)
from tests.compat.secured import AUTHORITY, CLIENT, plain_users, tls_settings
from tests.support.broker import BrokerProcess
from tests.support.token_endpoint import (
    CLIENT_ID,
    CLIENT_SECRET,
    SCOPE,
    SUBJECT,
    TokenEndpoint,
    issued,
    running_token_endpoint,
)
from tests.support.wire import WireClient

ACLS = TOOLS + "AclCommand"
ADMIN_PASSWORD, ALICE_PASSWORD = "admin-secret", "alice-secret"
LOGIN_MODULE = "org.apache.kafka.common.security."
# Longer than a step, of which each makes its own JVM.
TOKEN_FILE_S = 3600
REFUSED_TOPIC = r"(?i)TopicAuthorizationException|not authorized to access topics"


def step(
    does: str, tool: str, arguments: str, *expects: str, fails: bool = False, stdin: str = ""
) -> Step:
    """A step that names its listener and its user itself."""
    return Step(
        does=does,
        tool=tool,
        arguments=arguments,
        expects=expects,
        fails=fails,
        stdin=stdin,
        bootstrap_option="",
    )


def steps() -> Sequence[Step]:
    """In order; see the top."""
    return [*login_steps(), *right_steps(), *token_steps(), *certificate_steps(), *other_steps()]


def login_steps() -> Sequence[Step]:
    """Users are made, and who is none stays outside."""
    return [
        step(
            "makes a user",
            CONFIGS,
            "{admin} --entity-type users --entity-name alice --alter"
            f" --add-config SCRAM-SHA-512=[iterations=4096,password={ALICE_PASSWORD}]",
            "Completed updating config for user alice",
        ),
        step(
            "describes a user",
            CONFIGS,
            "{admin} --entity-type users --entity-name alice --describe",
            "SCRAM-SHA-512=iterations=4096",
        ),
        step(
            "is told that a password is wrong",
            TOPICS,
            "{wrong} --list",
            "Authentication failed",
            fails=True,
        ),
        step("logs in by PLAIN", TOOLS + "BrokerApiVersionsCommand", "{admin}", r"Produce\(0\)"),
        step(
            "creates a topic",
            TOPICS,
            "{admin} --create --topic orders --partitions 2",
            "Created topic orders",
        ),
        Step(
            does="lists no topic for a stranger",
            tool=TOPICS,
            arguments="--list",
            expects=(),
            lacks=("orders",),
        ),
        Step(
            does="tells a stranger no rule",
            tool=ACLS,
            arguments="--list",
            expects=("ClusterAuthorizationException",),
            fails=True,
        ),
    ]


def right_steps() -> Sequence[Step]:
    """Rules are made, listed, obeyed and removed."""
    lines = "".join(f"value-{number}\n" for number in range(100))
    produce, consume = "{alice} --topic orders", "{alice} --topic orders --from-beginning"
    rule = "--deny-principal User:alice --operation Write --topic orders"
    return [
        step(
            "is refused without a rule", PRODUCER, produce, REFUSED_TOPIC, fails=True, stdin="no\n"
        ),
        step(
            "lets a producer in",
            ACLS,
            "{admin} --add --allow-principal User:alice --producer --topic orders",
            r"ResourcePattern\(resourceType=TOPIC, name=orders, patternType=LITERAL\)",
            r"principal=User:alice, host=\*, operation=WRITE, permissionType=ALLOW",
        ),
        step("produces with a rule", PRODUCER, produce, stdin=lines),
        step(
            "is refused to read",
            CONSUMER,
            "{alice} --topic orders --partition 0 --offset earliest --timeout-ms 20000",
            REFUSED_TOPIC,
            fails=True,
        ),
        step(
            "lets a consumer in, by prefixes",
            ACLS,
            "{admin} --add --allow-principal User:alice --consumer --topic ord --group read"
            " --resource-pattern-type prefixed",
            "patternType=PREFIXED",
        ),
        step(
            "consumes in a group with a rule",
            CONSUMER,
            f"{consume} --max-messages 100 --group readers",
            "value-0",
            "value-99",
        ),
        step(
            "consumes in a group of KIP-848 with a rule",
            CONSUMER,
            f"{consume} --max-messages 100 --group readers-848"
            " --command-property group.protocol=consumer",
            "value-0",
            "value-99",
        ),
        step(
            "is refused in another group",
            CONSUMER,
            f"{consume} --max-messages 1 --group others --timeout-ms 20000",
            "GroupAuthorizationException",
            fails=True,
        ),
        step(
            "describes a group of its own",
            GROUPS,
            "{alice} --describe --group readers",
            r"readers\s+orders\s+0\s+\d+",
        ),
        step(
            "lists what decides of a topic",
            ACLS,
            "{admin} --list --topic orders --resource-pattern-type match",
            r"name=orders, patternType=LITERAL",
            r"name=ord, patternType=PREFIXED",
        ),
        step(
            "lists the rules of a user",
            ACLS,
            "{admin} --list --principal User:alice",
            "resourceType=GROUP, name=read, patternType=PREFIXED",
        ),
        step("denies", ACLS, f"{{admin}} --add {rule}", "permissionType=DENY"),
        # No other topic is left that it might write to, so it gets no producer id.
        step(
            "is refused by a denial",
            PRODUCER,
            produce,
            "ClusterAuthorizationException",
            fails=True,
            stdin="no\n",
        ),
        step("removes a rule", ACLS, f"{{admin}} --remove --force {rule}"),
        step("produces without the denial", PRODUCER, produce, stdin="value-100\n"),
        step(
            "is refused a change of rules",
            ACLS,
            "{alice} --add --allow-principal User:alice --operation All --topic orders",
            "ClusterAuthorizationException",
            fails=True,
        ),
        step(
            "is refused a transactional id",
            TOOLS + "ProducerPerformance",
            "{alice_performance} --transactional-id payer --transaction-duration-ms 10",
            "TransactionalIdAuthorizationException",
            fails=True,
        ),
        step(
            "lets a transactional id in",
            ACLS,
            "{admin} --add --allow-principal User:alice --producer --topic orders"
            " --transactional-id payer",
            "resourceType=TRANSACTIONAL_ID, name=payer",
        ),
        step(
            "produces in transactions with a rule",
            TOOLS + "ProducerPerformance",
            "{alice_performance} --transactional-id payer --transaction-duration-ms 10",
            "500 records sent",
        ),
        step(
            "lists transactions of its own",
            TRANSACTIONS,
            "{alice} list",
            r"(?m)^payer\s",
        ),
    ]


def token_steps() -> Sequence[Step]:
    """OAUTHBEARER: tokens of a provider, and of a file."""
    return [
        step(
            "is refused with a token and without a rule",
            PRODUCER,
            "{token} --topic orders",
            REFUSED_TOPIC,
            fails=True,
            stdin="no\n",
        ),
        step(
            "lets the subject of tokens in",
            ACLS,
            f"{{admin}} --add --allow-principal User:{SUBJECT} --producer --consumer"
            " --topic orders --group *",
            f"principal=User:{SUBJECT}",
        ),
        step(
            "produces with a token of the provider",
            PRODUCER,
            "{token} --topic orders",
            stdin="by token\n",
        ),
        step(
            "consumes with a token of a file",
            CONSUMER,
            "{token_file} --topic orders --from-beginning --max-messages 602 --timeout-ms 20000",
            "by token",
        ),
        step(
            "is refused the rules with a token",
            ACLS,
            "{token} --list",
            "ClusterAuthorizationException",
            fails=True,
        ),
        step(
            "lets the subject of tokens change rules and settings",
            ACLS,
            f"{{admin}} --add --allow-principal User:{SUBJECT} --operation Alter"
            " --operation AlterConfigs --cluster --topic orders",
            "operation=ALTER_CONFIGS",
        ),
        step(
            "makes a rule with a token",
            ACLS,
            "{token} --add --allow-principal User:bob --operation Read --topic orders",
            r"principal=User:bob, host=\*, operation=READ, permissionType=ALLOW",
        ),
        step(
            "lists rules with a token of a file",
            ACLS,
            "{token_file} --list --principal User:bob",
            "name=orders, patternType=LITERAL",
        ),
        step(
            "removes a rule with a token",
            ACLS,
            "{token} --remove --force --allow-principal User:bob --operation Read --topic orders",
        ),
        Step(
            does="lists no removed rule with a token",
            tool=ACLS,
            arguments="{token} --list --principal User:bob",
            expects=(),
            lacks=("operation=READ",),
            bootstrap_option="",
        ),
        step(
            "alters a topic with a token",
            CONFIGS,
            "{token} --entity-type topics --entity-name orders --alter"
            " --add-config retention.ms=3600000",
            "Completed updating config for topic orders",
        ),
        step(
            "describes a topic with a token of a file",
            CONFIGS,
            "{token_file} --entity-type topics --entity-name orders --describe",
            "retention.ms=3600000",
        ),
        step(
            "makes a user with a token",
            CONFIGS,
            "{token} --entity-type users --entity-name carol --alter"
            " --add-config SCRAM-SHA-256=[iterations=4096,password=carol-secret]",
            "Completed updating config for user carol",
        ),
        step(
            "is told that a token is bad",
            TOPICS,
            "{bad_token} --list",
            "Authentication failed|invalid_token",
            fails=True,
        ),
    ]


def certificate_steps() -> Sequence[Step]:
    """TLS without a login: the user is that of the certificate."""
    return [
        step(
            "lets the name of a certificate in",
            ACLS,
            "{admin} --add --allow-principal User:client --producer --topic orders",
            "principal=User:client",
        ),
        step(
            "produces with a certificate",
            PRODUCER,
            "{certificate} --topic orders",
            stdin="by certificate\n",
        ),
        step(
            "is not let in without a certificate",
            TOPICS,
            "{no_certificate} --list",
            "SslAuthenticationException|SSL handshake failed",
            fails=True,
        ),
    ]


def other_steps() -> Sequence[Step]:
    """What shows secrets, or is refused by name."""
    return [
        Step(
            does="describes the broker without its secrets",
            tool=CONFIGS,
            arguments="{admin} --entity-type brokers --entity-name 1 --describe --all",
            expects=(
                r"listener.name.clients.plain.sasl.jaas.config=null sensitive=true",
                r"ssl.keystore.location=\S+ sensitive=false",
            ),
            lacks=(ADMIN_PASSWORD,),
            bootstrap_option="",
        ),
        step(
            "renews the certificate of a listener",
            CONFIGS,
            "{admin} --entity-type brokers --entity-name 1 --alter"
            " --add-config listener.name.clients.ssl.keystore.location={folder}/tls/broker.pem",
            "Completed updating config for broker 1",
        ),
        step(
            "is refused a delegation token",
            TOOLS + "DelegationTokenCommand",
            "{admin} --create --max-life-time-period -1",
            "UnsupportedVersionException|DelegationTokenDisabledException",
            fails=True,
        ),
    ]


def users(
    broker: BrokerProcess, endpoint: TokenEndpoint, ports: Mapping[str, str]
) -> dict[str, str]:
    """Writes the properties of each user, and says what steps name them by."""
    tls = broker.folder / "tls"
    trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(tls / AUTHORITY)}
    own = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(tls / CLIENT)}
    tokens = broker.folder / "token"
    tokens.write_text(issued(TOKEN_FILE_S))

    def login(mechanism: str, module: str, options: str, **more: str) -> dict[str, str]:
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": f"{LOGIN_MODULE}{module} required {options};",
            **trust,
            **{key.replace("_", "."): text for key, text in more.items()},
        }

    def bearer(url: str) -> dict[str, str]:
        return login(
            "OAUTHBEARER",
            "oauthbearer.OAuthBearerLoginModule",
            f'clientId="{CLIENT_ID}" clientSecret="{CLIENT_SECRET}" scope="{SCOPE}"',
            sasl_oauthbearer_token_endpoint_url=url,
            sasl_login_callback_handler_class=f"{LOGIN_MODULE}oauthbearer."
            "OAuthBearerLoginCallbackHandler",
        )

    scram = f'username="alice" password="{ALICE_PASSWORD}"'
    files = {
        "admin": login(
            "PLAIN", "plain.PlainLoginModule", f'username="admin" password="{ADMIN_PASSWORD}"'
        ),
        "alice": login("SCRAM-SHA-512", "scram.ScramLoginModule", scram),
        "wrong": login("SCRAM-SHA-512", "scram.ScramLoginModule", 'username="alice" password="x"'),
        "token": bearer(endpoint.tokens),
        "token_file": bearer(tokens.as_uri()),
        "bad_token": bearer(f"{endpoint.tokens}/badformat"),
        "certificate": {"security.protocol": "SSL", **trust, **own},
        "no_certificate": {"security.protocol": "SSL", **trust},
    }
    names = {}
    for name, properties in files.items():
        path = broker.folder / f"{name}.properties"
        path.write_text("".join(f"{key}={text}\n" for key, text in properties.items()))
        address = ports[properties["security.protocol"]]
        names[name] = f"--bootstrap-server {address} --command-config {path}"
    names["alice_performance"] = (
        "--topic orders --num-records 500 --record-size 100 --throughput 2000"
        f" --bootstrap-server {ports['SASL_SSL']}"
        f" --command-config {broker.folder / 'alice.properties'}"
    )
    return names


def main(arguments: Sequence[str]) -> int:
    libraries, words = Path(arguments[0]), arguments[1:]
    wanted = [
        one
        for one in steps()
        if not words or any(word in f"{one.tool} {one.does}".lower() for word in words)
    ]
    with (
        tempfile.TemporaryDirectory(prefix="strandline-interop-") as name,
        running_token_endpoint() as endpoint,
    ):
        broker = BrokerProcess(Path(name))
        ports = {
            "SASL_SSL": broker.add_listener("CLIENTS", "SASL_SSL"),
            "SSL": broker.add_listener("CERTIFICATES", "SSL"),
        }
        broker.settings |= {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:admin",
            "group.initial.rebalance.delay.ms": "0",
            "transaction.state.log.num.partitions": "3",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512,OAUTHBEARER",
            "listener.name.clients.plain.sasl.jaas.config": plain_users({"admin": ADMIN_PASSWORD}),
            "listener.name.certificates.ssl.client.auth": "required",
            "ssl.principal.mapping.rules": "RULE:^CN=([^,]+),.*$/$1/,DEFAULT",
            **tls_settings(broker.folder / "tls"),
            **endpoint.broker_settings(),
        }
        names = users(broker, endpoint, ports)
        allowed = "-Dorg.apache.kafka.sasl.oauthbearer.allowed."
        token_file = broker.folder / "token"
        options = [
            f"{allowed}urls={endpoint.tokens},{endpoint.tokens}/badformat,{token_file.as_uri()}",
            f"{allowed}files={token_file}",
        ]
        with broker, WireClient(broker.port) as client:
            session = Session(
                libraries, broker, broker.folder, Clients(client), names=names, java_options=options
            )
            failure_count = carry_out(session, wanted, Console())
            assert broker.running, broker.log_text()[-4000:]
            assert "Traceback" not in broker.log_text(), broker.log_text()[-4000:]
            assert ALICE_PASSWORD not in broker.log_text()
    return 1 if failure_count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
