"""What a configuration may say, what it means, and how it is refused."""

from __future__ import annotations

import logging
import types
import typing
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.foreign_keys import IGNORED, REFUSED
from strandline.broker.config.listeners import Listener
from strandline.broker.config.loading import load_config
from strandline.broker.config.table import BROKER_CONFIGS, TOPIC_DEFAULTS
from strandline.storage.config.definition import keys_of
from strandline.storage.config.log_config import LogConfig
from strandline.storage.errors import InvalidConfig


def load(*overrides: str) -> BrokerConfig:
    return load_config(None, overrides)


def refusal(*overrides: str) -> str:
    with pytest.raises(InvalidConfig) as caught:
        load(*overrides)
    return str(caught.value)


# --- the table ---------------------------------------------------------------------------------


def sections(config: object) -> Iterator[object]:
    yield config
    for declared in fields(config):  # type: ignore[arg-type]  # a dataclass
        if is_dataclass(value := getattr(config, declared.name)):
            yield from sections(value)


def test_every_field_of_a_section_holds_what_its_type_says() -> None:
    given = ("log.dirs=/a", "broker.rack=r", "strandline.metrics.listener=http://h:1")
    for config in (load(), load(*given)):
        for section in sections(config):
            for name, hint in typing.get_type_hints(type(section)).items():
                either = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
                kinds = tuple(typing.get_origin(one) or one for one in either)
                value = getattr(section, name)
                if value is None or isinstance(value, bool | int | float | str):
                    assert type(value) in kinds, (section, name)
                else:
                    assert isinstance(value, kinds), (section, name)


def test_no_two_fields_are_the_same_key() -> None:
    names = [definition.name for definition in (*keys_of(BrokerConfig), *TOPIC_DEFAULTS)]
    assert len(names) == len(set(names)) == len(BROKER_CONFIGS)


def test_every_default_is_accepted_by_its_own_definition() -> None:
    for definition in BROKER_CONFIGS.values():
        definition.parse(definition.default)


def test_no_key_is_both_used_and_foreign() -> None:
    names = {entry.pattern for entry in (*IGNORED, *REFUSED)}
    assert len(names) == len(IGNORED) + len(REFUSED)
    assert not names & set(BROKER_CONFIGS)


# --- sources -----------------------------------------------------------------------------------


def test_overrides_win_over_the_file_and_the_file_over_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("num.partitions=3\nfetch.max.bytes=2048\n")
    config = load_config(path, ["num.partitions=5", "num.partitions=6"])
    assert config.topics.partition_count == 6
    assert config.fetch.bytes_max == 2048
    assert config.topics.auto_creation_enabled is True
    assert dict(config.given) == {"num.partitions": "6", "fetch.max.bytes": "2048"}


def test_the_configuration_that_kafka_ships_can_be_used_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text(
        """\
process.roles=broker,controller
node.id=7
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/var/lib/kraft-combined-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""
    )
    config = load_config(path)
    assert config.node_id == 7
    assert config.listeners == (Listener(name="PLAINTEXT", host="", port=9092),)
    assert config.advertised_listeners == (Listener(name="PLAINTEXT", host="localhost", port=9092),)
    assert config.logs.dirs == (Path("/var/lib/kraft-combined-logs"),)


# --- refusals ----------------------------------------------------------------------------------


def test_an_unknown_key_is_refused_with_its_line_and_the_nearest_name(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("\nlog.retention.hour=1\n")
    with pytest.raises(InvalidConfig) as caught:
        load_config(path)
    assert str(caught.value) == (
        f"{path} line 2: unknown key 'log.retention.hour'; did you mean log.retention.hours?"
    )


def test_a_key_in_the_wrong_case_is_told_the_right_one() -> None:
    assert refusal("LOG.DIRS=/a") == "--set: unknown key 'LOG.DIRS'; did you mean log.dirs?"


def test_an_unknown_key_like_no_other_is_refused_without_a_guess() -> None:
    assert refusal("xyzzy=1") == "--set: unknown key 'xyzzy'"


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("num.partitions=0", "num.partitions=0: must be at least 1"),
        ("num.partitions=many", "num.partitions='many': expected a whole number"),
        ("num.partitions=", "num.partitions='': expected a whole number"),
        ("num.partitions=1_000", "num.partitions='1_000': expected a whole number"),
        ("num.partitions=99999999999", "num.partitions=99999999999: out of the range of int"),
        ("auto.create.topics.enable=yes", "auto.create.topics.enable='yes': expected true or"),
        ("default.replication.factor=3", "default.replication.factor=3: must be at most 1"),
        ("log.segment.bytes=1000", "log.segment.bytes=1000: must be at least 1048576"),
        ("log.cleanup.policy=drop", "log.cleanup.policy='drop': expected one of compact, delete"),
        ("log.cleaner.min.cleanable.ratio=nan", "expected a number"),
        ("log.cleaner.min.cleanable.ratio=half", "expected a number"),
        ("log.cleaner.io.max.bytes.per.second=1_000", "expected a number"),
        ("log.cleaner.io.max.bytes.per.second=\u0665", "expected a number"),
        ("listeners=", "listeners: expected at least one NAME://host:port"),
        ("listeners=localhost:9092", "listeners='localhost:9092': expected NAME://host:port"),
        ("listeners=PLAINTEXT://h:99999", "the port must be at most 65535"),
        ("listeners=SSL://h:1", "listeners=SSL://h:1: SSL is not served yet; expected PLAINTEXT"),
        ("listeners=INTERNAL://h:1", "expected INTERNAL:PLAINTEXT in it"),
        ("listeners=PLAINTEXT://a:1,PLAINTEXT://b:2", "the listener name PLAINTEXT is used twice"),
        ("listeners=PLAINTEXT://0.0.0.0:1", "set advertised.listeners to what clients can reach"),
        ("advertised.listeners=PLAINTEXT://0.0.0.0:1", "no client can connect to this host"),
        ("advertised.listeners=OTHER://h:1", "there is no listener OTHER; expected one of"),
        ("listener.security.protocol.map=PLAINTEXT", "expected NAME:PROTOCOL"),
        ("log.dirs=/a,/a", "the folder /a is named twice"),
        ("log.dirs=/", "expected a folder with a name"),
        ("log.dirs=", "log.dirs='': expected at least one folder"),
        ("log.dirs= , ", "log.dirs='': expected at least one folder"),
        ("strandline.remote.url=/folder", "expected s3://bucket/prefix or file:///folder"),
        ("strandline.remote.url=s3://", "expected s3://bucket/prefix or file:///folder"),
        ("strandline.remote.url=s3://b1/x", "the name of a bucket has 3 to 63 small letters"),
        ("strandline.remote.url=file:///", "expected s3://bucket/prefix or file:///folder"),
        ("strandline.remote.s3.endpoint.url=localhost:4566", "expected http://host:port"),
        ("remote.log.storage.system.enable=true", "needs strandline.remote.url"),
        ("log.local.retention.ms=999999999999", "local.retention.ms: it must not exceed"),
        ("log.retention.ms=0", "log.retention.ms=0: must be -1, for no limit, or at least 1"),
        ("log.retention.hours=0", "log.retention.ms=0: must be -1, for no limit, or at least 1"),
        ("log.remote.copy.lag.ms=-2", "log.remote.copy.lag.ms=-2: must be at least -1"),
        ("process.roles=controller", "expected broker or broker,controller"),
        ("controller.quorum.voters=1@a:1,2@b:1", "strandline does not join a quorum"),
        ("zookeeper.connect=localhost:2181", "there is no ZooKeeper"),
        ("ssl.keystore.location=/x", "no encryption or authorisation yet"),
        ("sasl.jaas.config=x", "listener.name.<name>.plain.sasl.jaas.config"),
        ("authorizer.class.name=x.Y", "no encryption or authorisation yet"),
        ("security.inter.broker.protocol=SSL", "no encryption or authorisation yet"),
        ("max.connection.creation.rate=0", "at least 1"),
        ("listener.name.plaintext.max.connection.creation.rate=x", "max.connection.creation.rate"),
        ("max.connections.per.ip=0", "can be set to zero only if max.connections.per.ip.overrides"),
        ("compression.gzip.level=0", "compression.gzip.level=0: must be -1, or from 1 to 9"),
        ("max.connections.per.ip.overrides=10.0.0.1", "expected address:count"),
        ("max.connections.per.ip.overrides=localhost:4", "expected address:count"),
        ("strandline.metrics.listener=127.0.0.1:9404", "expected NAME://host:port"),
        ("strandline.metrics.listener=https://127.0.0.1:9404", "expected http://host:port"),
        ("rsm.config.chunk.size=1", "has its own remote tier"),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_what_is_accepted(
    override: str, complaint: str
) -> None:
    assert complaint in refusal(override)


def test_all_faults_are_told_at_once() -> None:
    message = refusal("nod.id=1", "num.partitions=0", "ssl.protocol=TLS", "listeners=x")
    assert message.startswith("3 faults in the configuration:")
    for part in ("did you mean node.id?", "num.partitions=0", "ssl.protocol is not supported"):
        assert part in message


def test_two_broker_ids_that_disagree_are_refused() -> None:
    assert "name different brokers" in refusal("broker.id=1", "node.id=2")
    assert load("broker.id=4").node_id == 4
    assert load("broker.id=4", "node.id=4").node_id == 4
    assert load("broker.id=-1", "node.id=4").node_id == 4


def test_logs_are_flushed_as_often_as_the_scheduler_unless_told_otherwise() -> None:
    """Kafka's KafkaConfig.logFlushIntervalMs: the one key falls back to the other."""
    scheduled = load("log.flush.scheduler.interval.ms=1000")
    assert scheduled.topics.properties == {"flush.ms": "1000"}
    both = load("log.flush.scheduler.interval.ms=1000", "log.flush.interval.ms=5000")
    assert both.topics.properties == {"flush.ms": "5000"}
    assert load().topics.properties == {}


def test_no_connection_at_all_is_a_limit_only_where_addresses_are_exempt() -> None:
    """KafkaConfigTest.testMaxConnectionsPerIpProp; a file may close all listeners, as there."""
    exempt = load("max.connections.per.ip=0", "max.connections.per.ip.overrides=127.0.0.1:100")
    assert exempt.network.connections_per_address_max == 0
    assert load("max.connections=0").network.connections_max == 0


# --- ignored keys ------------------------------------------------------------------------------


def test_harmless_keys_are_accepted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        config = load("num.network.threads=3", "replica.selector.class=")
    assert [key.key for key in config.ignored] == [
        "num.network.threads",
        "replica.selector.class",
    ]
    assert [record.fields["key"] for record in caplog.records] == [  # type: ignore[attr-defined]
        "num.network.threads",
        "replica.selector.class",
    ]
    assert "num.network.threads" not in config.given


@pytest.mark.parametrize(
    "key",
    [
        "alter.log.dirs.replication.quota.window.num",
        "broker.id.generation.enable",
        "delete.records.purgatory.purge.interval.requests",
        "eligible.leader.replicas.enable",
        "fetch.purgatory.purge.interval.requests",
        "follower.fetch.last.tiered.offset.enable",
        "group.coordinator.append.linger.ms",
        "kafka.metrics.polling.interval.secs",
        "producer.purgatory.purge.interval.requests",
        "remote.log.index.file.cache.ttl.ms",
        "replication.quota.window.num",
        "reserved.broker.max.id",
        "server.max.startup.time.ms",
        "unclean.leader.election.interval.ms",
        "unstable.api.versions.enable",
    ],
)
def test_keys_of_kafka_that_say_nothing_here_do_not_stop_a_broker(key: str) -> None:
    assert [ignored.key for ignored in load(f"{key}=1").ignored] == [key]


@pytest.mark.parametrize(
    "override",
    [
        "security.inter.broker.protocol=PLAINTEXT",
        "authorizer.class.name=",
        "process.roles=broker",
        "controller.quorum.voters=1@localhost:9093",
    ],
)
def test_a_value_that_asks_for_nothing_is_accepted(override: str) -> None:
    assert load(override).ignored[0].key == override.partition("=")[0]


# --- listeners ---------------------------------------------------------------------------------


def test_without_any_setting_only_this_machine_can_connect() -> None:
    assert load().listeners == (Listener(name="PLAINTEXT", host="127.0.0.1", port=9092),)
    assert load().advertised_listeners == load().listeners


def test_listeners_have_names_of_their_own_and_ipv6_addresses() -> None:
    config = load(
        "listeners=inside://[::1]:9092, OUTSIDE://0.0.0.0:9093",
        "listener.security.protocol.map=INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
        "advertised.listeners=OUTSIDE://kafka.example:19093",
    )
    assert config.listeners == (
        Listener(name="INSIDE", host="::1", port=9092),
        Listener(name="OUTSIDE", host="0.0.0.0", port=9093),
    )
    assert config.advertised_listeners == (
        Listener(name="INSIDE", host="::1", port=9092),
        Listener(name="OUTSIDE", host="kafka.example", port=19093),
    )
    assert str(config.listeners[0]) == "INSIDE://[::1]:9092"


def test_an_empty_host_is_advertised_as_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "shore")
    config = load("listeners=PLAINTEXT://:9092")
    assert config.listeners[0].host == ""
    assert config.advertised_listeners[0].host == "shore"


def test_ports_that_the_system_chose_replace_zero_everywhere() -> None:
    config = load("listeners=PLAINTEXT://127.0.0.1:0").with_bound_ports({"PLAINTEXT": 40001})
    assert config.listeners[0].port == config.advertised_listeners[0].port == 40001
    fixed = load("advertised.listeners=PLAINTEXT://h:1").with_bound_ports({"PLAINTEXT": 5})
    assert (fixed.listeners[0].port, fixed.advertised_listeners[0].port) == (9092, 1)


# --- folders and tier --------------------------------------------------------------------------


def test_log_dirs_wins_over_log_dir() -> None:
    assert load().logs.dirs == (Path("strandline-data"),)
    assert load("log.dir=/a").logs.dirs == (Path("/a"),)
    assert load("log.dir=/a", "log.dirs=/b, /c").logs.dirs == (Path("/b"), Path("/c"))


def test_the_chunk_cache_lies_in_the_first_log_folder_unless_told() -> None:
    assert load("log.dirs=/b,/c").cold_reader.disk_directory == Path("/b/remote-cache")
    assert load("strandline.remote.cache.directory=/d").cold_reader.disk_directory == Path("/d")


def test_the_remote_tier_is_on_only_when_it_is_turned_on() -> None:
    config = load("strandline.remote.url=s3://bucket/a/b")
    assert (config.archive.url, config.archive.is_enabled) == (
        "s3://bucket/a/b",
        False,
    )
    config = load("strandline.remote.url=file:///x", "remote.log.storage.system.enable=true")
    assert config.archive.is_enabled
    assert config.archive.endpoint_url is None


# --- defaults of topics ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ((), {}),
        (("log.retention.hours=2",), {"retention.ms": "7200000"}),
        (("log.retention.minutes=2",), {"retention.ms": "120000"}),
        (("log.retention.hours=2", "log.retention.minutes=3"), {"retention.ms": "180000"}),
        (("log.retention.minutes=3", "log.retention.ms=4"), {"retention.ms": "4"}),
        (("log.retention.hours=-1",), {"retention.ms": "-1"}),
        (("log.retention.ms=",), {}),
        (("log.roll.hours=1", "log.roll.jitter.hours=1"),
         {"segment.ms": "3600000", "segment.jitter.ms": "3600000"}),
        (("log.segment.bytes=2097152", "message.max.bytes=9"),
         {"segment.bytes": "2097152", "max.message.bytes": "9"}),
        (("min.insync.replicas=2",), {"min.insync.replicas": "2"}),
    ],
)  # fmt: skip
def test_broker_keys_set_the_defaults_of_topics_in_the_topics_unit(
    overrides: tuple[str, ...], expected: dict[str, str]
) -> None:
    assert load(*overrides).topics.properties == expected


def test_a_topic_without_settings_gets_the_brokers_defaults() -> None:
    defaults = load("log.retention.hours=2", "log.segment.bytes=2097152").topics.properties
    config = LogConfig.resolve({}, defaults)
    assert (config.retention_ms, config.segment_bytes) == (7_200_000, 2_097_152)


def test_one_folder_under_two_names_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to("data")
    names = f"{tmp_path / 'data'},{tmp_path / 'link'}"
    with pytest.raises(InvalidConfig, match="are one folder"):
        load(f"log.dirs={names}")
