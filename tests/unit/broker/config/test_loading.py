"""What a configuration may say, what it means, and how it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.broker.config.listeners import Listener
from strandline.broker.config.loading import load_config, warn_of_unused_archive
from strandline.storage.config.log_config import LogConfig
from strandline.storage.errors import InvalidConfig
from tests.unit.broker.config.loaded import load


def refusal(*overrides: str) -> str:
    with pytest.raises(InvalidConfig) as caught:
        load(*overrides)
    return str(caught.value)


def test_brokers_of_one_machine_hold_as_many_replicas_as_they_are() -> None:
    assert load("strandline.brokers=3", "default.replication.factor=3").topics
    assert "=3: 2 brokers can hold only 2" in refusal(
        "strandline.brokers=2", "default.replication.factor=3"
    )


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
        ("default.replication.factor=3", "=3: a lone broker can hold only one"),
        ("log.segment.bytes=1000", "log.segment.bytes=1000: must be at least 1048576"),
        ("log.cleanup.policy=drop", "log.cleanup.policy='drop': expected one of compact, delete"),
        ("log.cleaner.min.cleanable.ratio=nan", "expected a number"),
        ("log.cleaner.min.cleanable.ratio=half", "expected a number"),
        ("log.cleaner.io.max.bytes.per.second=1_000", "expected a number"),
        ("log.cleaner.io.max.bytes.per.second=\u0665", "expected a number"),
        ("listeners=", "listeners: expected at least one NAME://host:port"),
        ("listeners=localhost:9092", "listeners='localhost:9092': expected NAME://host:port"),
        ("listeners=PLAINTEXT://h:99999", "the port must be at most 65535"),
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
        ("strandline.remote.s3.endpoint.url=http://u:p@h", "endpoint.url: a URL with a user"),
        ("queued.max.request.bytes=1000", "or at least socket.request.max.bytes"),
        ("remote.log.storage.system.enable=true", "needs strandline.remote.url"),
        ("log.local.retention.ms=999999999999", "local.retention.ms: it must not exceed"),
        ("log.retention.ms=0", "log.retention.ms=0: must be -1, for no limit, or at least 1"),
        ("log.retention.hours=0", "log.retention.ms=0: must be -1, for no limit, or at least 1"),
        ("log.remote.copy.lag.ms=-2", "log.remote.copy.lag.ms=-2: must be at least -1"),
        ("process.roles=controller", "expected listeners that controller.listener.names names"),
        ("process.roles=voter", "expected broker, controller or broker,controller"),
        ("controller.quorum.voters=1@a:1,2@b:1", "2 controllers are named: a lone broker has none"),
        ("zookeeper.connect=localhost:2181", "there is no ZooKeeper"),
        ("ssl.provider=x", "OpenSSL has the place of Java's providers"),
        ("ssl.engine.factory.class=x.Y", "OpenSSL has the place of Java's providers"),
        ("ssl.client.auth=yes", "expected one of required, requested, none"),
        ("ssl.enabled.protocols=TLSv1.1", "expected one of TLSv1.2, TLSv1.3"),
        ("listener.name.x.ssl.keystore.tpye=PEM", "is not supported"),
        ("sasl.jaas.config=x", "listener.name.<name>.plain.sasl.jaas.config"),
        ("authorizer.class.name=x.Y", "StandardAuthorizer"),
        ("security.inter.broker.protocol=TLS", "expected one of PLAINTEXT, SSL"),
        ("max.connection.creation.rate=0", "at least 1"),
        ("listener.name.plaintext.max.connection.creation.rate=x", "max.connection.creation.rate"),
        ("max.connections.per.ip=0", "can be set to zero only if max.connections.per.ip.overrides"),
        ("compression.gzip.level=0", "compression.gzip.level=0: must be -1, or from 1 to 9"),
        ("max.connections.per.ip.overrides=10.0.0.1", "expected address:count"),
        ("max.connections.per.ip.overrides=localhost:4", "expected address:count"),
        ("strandline.metrics.listener=127.0.0.1:9404", "expected NAME://host:port"),
        ("strandline.metrics.listener=ftp://127.0.0.1:9404", "expected http://host:port"),
        ("rsm.config.chunk.size=1", "has its own remote tier"),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_what_is_accepted(
    override: str, complaint: str
) -> None:
    assert complaint in refusal(override)


def test_all_faults_are_told_at_once() -> None:
    message = refusal("nod.id=1", "num.partitions=0", "ssl.provider=x", "listeners=x")
    assert message.startswith("3 faults in the configuration:")
    for part in ("did you mean node.id?", "num.partitions=0", "ssl.provider is not supported"):
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


def test_a_key_that_is_given_twice_is_told_with_its_places(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "p"
    path.write_text("node.id=1\nlog.dirs=/a\nnode.id=2\n")
    # To win over the file is what an override is for.
    assert load_config(path, ["log.dirs=/b"]).node_id == 2
    (told,) = [r for r in caplog.records if "given twice" in r.getMessage()]
    assert told.fields == {  # type: ignore[attr-defined]
        "key": "node.id",
        "places": f"{path} line 1, {path} line 3",
    }
    caplog.clear()
    load_config(None, ["node.id=1", "node.id=3"])
    assert "given twice" in caplog.text


def test_an_archive_without_its_switch_is_told(caplog: pytest.LogCaptureFixture) -> None:
    url = "strandline.remote.url=s3://bucket"
    warn_of_unused_archive(load_config(None, [url, "remote.log.storage.system.enable=true"]))
    assert caplog.records == []
    warn_of_unused_archive(load_config(None, [url]))
    assert "nothing is archived" in caplog.text


CONTROLLER = ("process.roles=controller", "controller.listener.names=CONTROLLER")


def test_the_listener_of_controllers_is_plaintext_if_nothing_says_otherwise() -> None:
    at = "listeners=CONTROLLER://127.0.0.1:9093"
    config = load_config(overrides=[*CONTROLLER, at])
    assert "CONTROLLER:PLAINTEXT" in config.identity.protocols
    # As in Kafka, a map or the name of a secured listener says otherwise.
    for other in (
        ("listener.security.protocol.map=PLAINTEXT:PLAINTEXT", at),
        ("controller.listener.names=CONTROLLER,SSL", at),
    ):
        assert "expected CONTROLLER:PLAINTEXT in it" in refusal(*CONTROLLER, *other)


def test_topics_are_replicated_by_default_where_there_can_be_other_brokers() -> None:
    three = "default.replication.factor=3"
    at = "listeners=CONTROLLER://127.0.0.1:9093"
    assert load_config(overrides=[*CONTROLLER, at, three]).topics.replication_factor == 3
