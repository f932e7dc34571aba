"""Kafka's clients and `strandline acl` make rules, and the rules hold for clients."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from kafka import KafkaAdminClient
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ResourcePattern,
)
from kafka.admin import ResourceType as PythonResourceType

from strandline.broker.cli import main
from tests.support.broker import eventually
from tests.support.users import ALICE, PASSWORD
from tests.system.authorization.rights import CLIENT, right, rights
from tests.system.authorization.world import World, ruled_broker
from tests.system.calls import append, batch, create_topic

pytestmark = [pytest.mark.slow, pytest.mark.clients]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with ruled_broker(tmp_path_factory.mktemp("broker")) as made:
        create_topic(made.admin, "t")
        yield made


def as_super_user(world: World) -> dict[str, str | int]:
    return {
        "bootstrap.servers": f"127.0.0.1:{world.super_port}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": ALICE,
        "sasl.password": PASSWORD,
        "log_level": 0,
    }


def test_librdkafka_makes_finds_and_deletes_rules(world: World) -> None:
    world.allow_only([])
    admin = AdminClient(as_super_user(world))
    made = AclBinding(
        ResourceType.TOPIC,
        "made",
        ResourcePatternType.PREFIXED,
        "User:bob",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    everything = AclBindingFilter(
        ResourceType.ANY,
        None,
        ResourcePatternType.ANY,
        "User:bob",
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    for _ in range(2):
        admin.create_acls([made])[made].result(60)
    assert admin.describe_acls(everything).result(60) == [made]
    assert admin.delete_acls([everything])[everything].result(60) == [made]
    assert admin.describe_acls(everything).result(60) == []
    nobody = AdminClient({"bootstrap.servers": world.broker.bootstrap})
    # The library says nothing of a denied describe_acls.
    with pytest.raises(KafkaException) as denied:
        nobody.delete_acls([everything])[everything].result(60)
    assert denied.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED


def test_kafka_python_makes_finds_and_deletes_rules(world: World) -> None:
    world.allow_only([])
    admin = KafkaAdminClient(
        bootstrap_servers=f"127.0.0.1:{world.super_port}",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_plain_username=ALICE,
        sasl_plain_password=PASSWORD,
    )
    rule = ACL(
        principal="User:carol",
        host="*",
        operation=ACLOperation.WRITE,
        permission_type=ACLPermissionType.DENY,
        resource_pattern=ResourcePattern(PythonResourceType.GROUP, "g"),
    )
    wanted = ACLFilter(
        principal="User:carol",
        host=None,
        operation=ACLOperation.ANY,
        permission_type=ACLPermissionType.ANY,
        resource_pattern=ResourcePattern(PythonResourceType.GROUP, "g"),
    )
    assert admin.create_acls([rule])["succeeded"] == [rule]
    found, _error = admin.describe_acls(wanted)
    assert found == [rule]
    admin.delete_acls([wanted])
    found, _error = admin.describe_acls(wanted)
    assert found == []
    admin.close()


def test_a_producer_and_a_consumer_do_what_their_rules_allow(world: World) -> None:
    world.allow_only([])
    errors: list[KafkaError | None] = []

    def delivered(error: KafkaError | None, _message: object) -> None:
        errors.append(error)

    producer = Producer({"bootstrap.servers": world.broker.bootstrap, "log_level": 0})
    producer.produce("t", b"no", on_delivery=delivered)
    producer.flush(60)
    assert errors[0] is not None
    assert errors[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    # An idempotent producer needs no right of its own (KIP-679).
    world.allow_only(rights("TOPIC t WRITE"))
    settings = {"bootstrap.servers": world.broker.bootstrap, "enable.idempotence": True}
    idempotent = Producer({**settings, "log_level": 0})
    idempotent.produce("t", b"yes", on_delivery=delivered)
    idempotent.flush(60)
    assert errors[1:] == [None]
    consumer = Consumer(
        {
            "bootstrap.servers": world.broker.bootstrap,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.subscribe(["t"])

    def code_of_next() -> int | None:
        try:
            message = consumer.poll(1)
        except KafkaException as error:
            return error.args[0].code()
        error = None if message is None else message.error()
        return None if error is None else error.code()

    assert eventually(lambda: code_of_next() == KafkaError.GROUP_AUTHORIZATION_FAILED)
    world.allow_only(rights("TOPIC t READ;GROUP readers READ"))
    append(world.admin, "t", batch())

    def has_read() -> bool:
        message = consumer.poll(1)
        return message is not None and message.error() is None

    assert eventually(has_read)
    consumer.close()


def acl(world: World, capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    """What `strandline acl` prints, of the super user."""
    reaching = [
        part
        for name, value in as_super_user(world).items()
        if name not in ("bootstrap.servers", "log_level")
        for part in ("-X", f"{name}={value}")
    ]
    words = ("acl", *words, "--bootstrap-server", f"127.0.0.1:{world.super_port}")
    try:
        got = main([*words, *reaching])
    except SystemExit as end:
        got = int(end.code or 0)
    captured = capsys.readouterr()
    assert got == code, (words, captured)
    return captured.out if code == 0 else captured.err


def listed(world: World, capsys: pytest.CaptureFixture[str], *words: str) -> set[tuple[str, ...]]:
    rows = json.loads(acl(world, capsys, "list", "--json", *words))
    return {
        (row["kind"], row["name"], row["pattern"], row["operation"], row["permission"])
        for row in rows
    }


def test_the_command_adds_lists_and_removes_rules(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.allow_only([])
    who = ("--allow-principal", CLIENT)
    acl(world, capsys, "add", *who, "--producer", "--topic", "t", "--idempotent")
    acl(world, capsys, "add", *who, "--consumer", "--topic", "eu.", "--group", "g", "--prefixed")
    acl(world, capsys, "add", "--deny-principal", CLIENT, "--deny-host", "10.0.0.1", "--cluster")
    made = {
        *(("topic", "t", "literal", one, "allow") for one in ("write", "describe", "create")),
        *(("topic", "eu.", "prefixed", one, "allow") for one in ("read", "describe")),
        ("cluster", "kafka-cluster", "literal", "idempotent-write", "allow"),
        ("group", "g", "prefixed", "read", "allow"),
        ("cluster", "kafka-cluster", "literal", "all", "deny"),
    }
    assert listed(world, capsys, "--principal", CLIENT) == made
    assert listed(world, capsys, "--topic", "eu.x", "--match") == {
        row for row in made if row[1] == "eu."
    }
    assert listed(world, capsys, "--topic", "eu.x") == set()
    assert "nothing was done" in acl(
        world, capsys, "remove", "--allow-principal", CLIENT, "--topic", "t", code=2
    )
    # Without an operation all of them; the denial stays.
    acl(world, capsys, "remove", *who, "--topic", "t", "--cluster", "--yes")
    gone = {row for row in made if row[1] in ("t", "kafka-cluster") and row[4] == "allow"}
    assert listed(world, capsys, "--principal", CLIENT) == made - gone
    acl(world, capsys, "remove", "--cluster", "--operation", "all", "--yes")
    assert "no such rules" in acl(world, capsys, "remove", "--cluster", "--yes")


def test_an_address_is_written_as_the_broker_compares_it(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of an IPv6 address Kafka knows one text, and a denial with another would deny nobody."""
    world.allow_only([])
    denied = ("--deny-principal", CLIENT, "--topic", "t")
    acl(
        world,
        capsys,
        "add",
        *denied,
        "--deny-host",
        "2001:db8::7",
        "--deny-host",
        "::ffff:10.0.0.1",
    )
    shown = acl(world, capsys, "list", "--json")
    assert {rule["host"] for rule in json.loads(shown)} == {"2001:db8:0:0:0:0:0:7", "10.0.0.1"}
    refused = acl(world, capsys, "add", *denied, "--deny-host", "eve.example.org", code=2)
    assert "rules know no names" in refused


def test_a_rule_that_the_words_say_twice_is_made_once(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.allow_only([])
    who = ("--allow-principal", CLIENT)
    both = ("--producer", "--consumer", "--topic", "t", "--topic", "t", "--group", "g")
    acl(world, capsys, "add", *who, *both)
    operations = ("write", "describe", "create", "read")
    assert listed(world, capsys, "--principal", CLIENT) == {
        *(("topic", "t", "literal", one, "allow") for one in operations),
        ("group", "g", "literal", "read", "allow"),
    }


def test_consume_without_a_group_needs_no_right_to_one(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.allow_only(rights("TOPIC t WRITE;TOPIC t READ"))
    producer = Producer({"bootstrap.servers": world.broker.bootstrap, "log_level": 0})
    producer.produce("t", b"seen")
    producer.flush(60)
    words = (
        "consume",
        "t",
        "--bootstrap-server",
        world.broker.bootstrap,
        "--until-end",
        "--from",
        "start",
    )
    assert main([*words, "--value"]) == 0
    assert "seen" in capsys.readouterr().out
    assert main([*words, "--group", "g"]) == 1
    assert "group authorization failed" in capsys.readouterr().err.lower()


def test_who_may_not_read_the_rules_is_told_so(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.allow_only([])
    words = ["acl", "list", "--bootstrap-server", world.broker.bootstrap]
    assert main(words) == 1
    assert "authorization failed" in capsys.readouterr().err
    world.allow_only(rights("CLUSTER kafka-cluster DESCRIBE"))
    assert main(words) == 0


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--allow-principal", "User:a"), "no resource"),
        (("--topic", "t"), "nobody"),
        (("--allow-principal", "alice", "--topic", "t"), "no principal"),
        (("--allow-principal", "User:a", "--group", "g", "--operation", "write"), "no operation"),
        (("--allow-principal", "User:a", "--topic", "t", "--operation", "fly"), "invalid choice"),
        (("--allow-principal", "User:a", "--topic", "t", "--consumer"), "--group"),
        (("--allow-principal", "User:a", "--group", "g", "--producer"), "--topic"),
        (("--allow-host", "10.0.0.1", "--topic", "t"), "--allow-principal"),
        (("--allow-principal", "User:a", "--cluster", "--prefixed"), "--prefixed"),
        (
            ("--allow-principal", "User:a", "--topic", "t", "--producer", "--operation", "read"),
            "already",
        ),
    ],
)
def test_a_rule_that_says_too_little_is_refused_before_anything_is_sent(
    words: tuple[str, ...], complaint: str, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.allow_only([right("TOPIC t READ")])
    assert complaint in acl(world, capsys, "add", *words, code=2)
    assert listed(world, capsys) == {("topic", "t", "literal", "read", "allow")}


@pytest.mark.parametrize(
    ("words", "code"),
    [(("topic", "list"), 0), (("group", "list"), 0), (("topic", "delete", "t", "--yes"), 1)],
)
def test_who_may_see_nothing_is_not_told_that_there_is_nothing(
    words: tuple[str, ...], code: int, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.allow_only([])
    try:
        got = main([*words, "--bootstrap-server", world.broker.bootstrap])
    except SystemExit as end:
        got = int(end.code or 0)
    assert got == code
    assert "none that this user may describe" in capsys.readouterr().err
