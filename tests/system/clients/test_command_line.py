"""`strandline topic`, `group`, `produce` and `consume` on a real broker, as a person types them."""

from __future__ import annotations

import io
import json
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from strandline.broker.cli import main
from strandline.broker.tools.client import connection, reading
from strandline.broker.tools.commands import consume
from strandline.storage.clock import SystemClock
from tests.support.broker import BrokerProcess, eventually

pytestmark = [pytest.mark.clients, pytest.mark.slow]


class Shell:
    """Runs a command in this process."""

    def __init__(
        self,
        bootstrap: str,
        capture: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        self._bootstrap = bootstrap
        self._capture = capture
        self._monkeypatch = monkeypatch
        self.complaint = ""

    def run(self, *words: str, stdin: bytes = b"", code: int = 0) -> str:
        """Standard output of a command that must end with `code`; `complaint` is the other."""
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        try:
            got = main([*words, "--bootstrap-server", self._bootstrap])
        except SystemExit as end:
            got = int(end.code or 0)
        captured = self._capture.readouterr()
        self.complaint = captured.err
        assert got == code, (words, captured)
        return captured.out

    def json(self, *words: str) -> Any:
        return json.loads(self.run(*words, "--json"))

    def records(self, topic: str, *words: str) -> list[dict[str, Any]]:
        text = self.run("consume", topic, "--json", "--until-end", *(words or ("--from", "start")))
        return [json.loads(line) for line in text.splitlines()]


BROKER_SETTINGS = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "2"}


@pytest.fixture
def shell(
    broker: BrokerProcess, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Shell:
    return Shell(broker.bootstrap, capsys, monkeypatch)


@pytest.fixture
def name() -> str:
    return f"cli-{uuid.uuid4().hex[:10]}"


def test_a_topic_from_its_creation_to_its_end(shell: Shell, name: str) -> None:
    shell.run("topic", "create", name, "--partitions", "2", "--config", "retention.ms=-1")
    assert name in shell.run("topic", "list")
    (listed,) = [topic for topic in shell.json("topic", "list") if topic["name"] == name]
    assert (listed["partitions"], listed["replication_factor"]) == (2, 1)
    shell.run("topic", "alter", name, "--partitions", "3", "--config", "segment.bytes=2000000")
    shell.run("topic", "alter", name, "--delete-config", "retention.ms")
    (described,) = shell.json("topic", "describe", name)
    assert described["config"] == {"segment.bytes": "2000000"}
    assert [place["end_offset"] for place in described["partitions"]] == [0, 0, 0]
    assert "segment.bytes" in shell.run("topic", "describe", name)
    assert name in shell.run("topic", "delete", name, code=2)
    assert "add --yes" in shell.complaint
    assert name in shell.run("topic", "list")
    shell.run("topic", "delete", name, "--yes")
    assert name not in shell.run("topic", "list")
    shell.run("topic", "delete", name, code=1)
    assert "nothing was deleted" in shell.complaint
    shell.run("topic", "delete", name, "--if-exists")


def test_an_archive_is_not_deleted_by_a_property_before_somebody_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    tier = {
        "remote.log.storage.system.enable": "true",
        "strandline.remote.url": f"file://{tmp_path}/archive",
    }
    off = ("--config", "remote.storage.enable=false", "--config", "retention.ms=-1")
    with BrokerProcess(tmp_path / "broker", settings=tier) as broker:
        shell = Shell(broker.bootstrap, capsys, monkeypatch)
        shell.run("topic", "create", name, "--config", "remote.storage.enable=true")
        shell.run("topic", "alter", name, "--config", "remote.log.delete.on.disable=true")
        shell.run("topic", "alter", name, *off, code=2)
        assert f"the archive of topic {name} to be deleted" in shell.complaint
        (described,) = shell.json("topic", "describe", name)
        assert described["config"]["remote.storage.enable"] == "true"
        shell.run("topic", "alter", name, *off, "--yes")


def test_creating_can_be_tried_and_repeated(shell: Shell, name: str) -> None:
    shell.run("topic", "create", name, "--validate-only")
    assert name not in shell.run("topic", "list")
    shell.run("topic", "create", name)
    shell.run("topic", "create", name, "--if-not-exists")
    shell.run("topic", "create", name, code=1)
    assert "already exists" in shell.complaint


def test_lines_become_records_and_records_lines(shell: Shell, name: str) -> None:
    shell.run("topic", "create", name)
    shell.run(
        *("produce", name, "--key-separator", ":", "--header", "source=test", "--null", "NONE"),
        stdin=b"a:1\r\nb:2:3\nc:NONE\n",
    )
    assert "wrote 3 records" in shell.complaint
    assert [(r["key"], r["value"]) for r in shell.records(name)] == [
        ("a", "1"),
        ("b", "2:3"),
        ("c", None),
    ]
    lines = shell.run("consume", name, "--from", "start", "--until-end").splitlines()
    assert lines[0].startswith(f"{name}-0@0  ")
    assert lines[0].endswith("a → 1  {source=test}")
    values = shell.run("consume", name, "--from", "start", "--max-messages", "2", "--value")
    assert values == "1\n2:3\n"


def test_a_topic_is_copied_through_json_with_every_byte(
    shell: Shell, name: str, tmp_path: Path
) -> None:
    picture = tmp_path / "picture"
    picture.write_bytes(bytes(range(256)))
    copy = f"{name}-copy"
    shell.run("topic", "create", name, copy)
    shell.run("produce", name, "--whole", "--file", str(picture), "--key", "k", "--header", "h=x")
    text = shell.run("consume", name, "--from", "start", "--until-end", "--json")
    shell.run("produce", copy, "--json", stdin=text.encode())
    (first,), (second,) = shell.records(name), shell.records(copy)
    assert first["value_base64"] == second["value_base64"]
    for field in ("key", "headers", "timestamp"):
        assert first[field] == second[field]


def test_reading_begins_where_it_is_told_to(shell: Shell, name: str) -> None:
    shell.run("topic", "create", name, "--partitions", "2")
    lines = [json.dumps({"value": str(n), "timestamp": 1000 * n}) for n in range(1, 11)]
    for partition in ("0", "1"):
        stdin = "\n".join(lines).encode()
        shell.run("produce", name, "--json", "--partition", partition, stdin=stdin)

    def values(*words: str) -> list[int]:
        return sorted(int(r["value"]) for r in shell.records(name, *words))

    assert values("--from", "-2") == [9, 9, 10, 10]
    assert values("--from", "7", "--partition", "1") == [8, 9, 10]
    assert values("--since", "8500", "--partition", "0") == [9, 10]
    assert values("--since", "1h") == []
    assert values("--from", "end") == []
    assert values("--from", "10") == []
    shell.run("produce", name, "--partition", "1", stdin=b"11")
    assert values("--from", "11") == []
    assert f"{name}-0 ends at 10: read from there" in shell.complaint
    shell.run("consume", name, "--from", "99", "--until-end", code=2)
    assert f"offset 99 is beyond the end: {name}-1 ends at 11" in shell.complaint


def test_a_time_that_the_library_cannot_send_is_not_changed_in_silence(
    shell: Shell, name: str
) -> None:
    shell.run("topic", "create", name)
    lines = b'{"value": "a", "timestamp": 1}\n{"value": "b", "timestamp": 0}'
    shell.run("produce", name, "--json", stdin=lines, code=2)
    assert "line 2: a timestamp of 0 cannot be sent" in shell.complaint
    assert [(r["value"], r["timestamp"]) for r in shell.records(name)] == [("a", 1)]


def test_a_line_that_names_a_partition_which_the_topic_lacks_is_refused(
    shell: Shell, name: str
) -> None:
    shell.run("topic", "create", name, "--partitions", "2")
    lines = b'{"value": "a", "partition": 1}\n{"value": "b", "partition": 99}'
    shell.run("produce", name, "--json", stdin=lines, code=2)
    assert f"line 2: {name} has no partition 99, but 2 partitions" in shell.complaint
    assert "1 record before it were written" in shell.complaint
    shell.run("produce", name, "--json", "--partition", "0", stdin=lines)
    assert sorted(record["value"] for record in shell.records(name)) == ["a", "a", "b"]


def test_a_group_goes_on_where_it_stopped_and_is_moved_by_hand(shell: Shell, name: str) -> None:
    group = f"group-of-{name}"
    shell.run("topic", "create", name, "--partitions", "2")
    for partition in ("0", "1"):
        numbers = "\n".join(map(str, range(50))).encode()
        shell.run("produce", name, "--partition", partition, stdin=numbers)
    as_group = ("--group", group, "--from", "start")
    assert len(shell.records(name, *as_group)) == 100
    assert len(shell.records(name, *as_group)) == 0
    shell.run("produce", name, "--partition", "1", stdin=b"one more\n")

    def lags() -> list[int]:
        (described,) = shell.json("group", "describe", group)
        return [place["lag"] for place in described["offsets"]]

    assert lags() == [0, 1]
    assert group in shell.run("group", "list")
    assert "lag 1" in shell.run("group", "describe", group, "--members")

    reset = ("group", "reset-offsets", group)
    planned = shell.json(*reset, "--topic", f"{name}:0", "--to-offset", "20")
    assert [(m["old_offset"], m["new_offset"]) for m in planned["moves"]] == [(50, 20)]
    assert lags() == [0, 1]  # Nothing happens without --execute.
    shell.run(*reset, "--topic", f"{name}:0", "--to-offset", "20", "--execute")
    assert lags() == [30, 1]
    shell.run(*reset, "--all-topics", "--shift-by", "-10", "--execute")
    assert lags() == [40, 11]
    shell.run(*reset, "--all-topics", "--by-duration", "1h", "--execute")
    assert lags() == [50, 51]
    shell.run(*reset, "--all-topics", "--to-latest", "--execute")
    assert lags() == [0, 0]
    assert len(shell.records(name, *as_group)) == 0
    shell.run(*reset, "--topic", name, "--to-earliest", "--execute")
    assert len(shell.records(name, *as_group)) == 101
    assert group in shell.run("group", "delete", group, code=2)
    assert "add --yes" in shell.complaint
    shell.run("group", "delete", group, "--yes")
    shell.run("group", "describe", group, code=1)
    assert "no group" in shell.complaint


def test_the_list_tells_how_many_records_each_group_is_behind_and_since_when(
    shell: Shell, name: str, broker: BrokerProcess
) -> None:
    day_ms = 86_400_000
    noon_ms = SystemClock().now_ms() - day_ms // 2
    shell.run("topic", "create", name, "--partitions", "2")
    for partition, ages_days in enumerate([(9, 7, 5), (3, 3, 3, 3, 3)]):
        lines = [json.dumps({"value": "v", "timestamp": noon_ms - n * day_ms}) for n in ages_days]
        stdin = "\n".join(lines).encode()
        shell.run("produce", name, "--json", "--partition", str(partition), stdin=stdin)

    def move(group: str, *target: str) -> None:
        shell.run("group", "reset-offsets", f"{name}-{group}", *target, "--execute")

    def listed() -> dict[str, tuple[int, float]]:
        return {
            line["group"].removeprefix(f"{name}-"): (
                line["lag"],
                line["lag_seconds"] * 1e3 // day_ms,
            )
            for line in shell.json("group", "list")
            if line["group"].startswith(name)
        }

    move("first", "--topic", name, "--to-earliest")
    move("middle", "--topic", f"{name}:0", "--to-offset", "2")
    move("middle", "--topic", f"{name}:1", "--to-earliest")
    move("last", "--topic", name, "--to-latest")
    # The fewer records of partition 0 are the older ones.
    assert listed() == {"first": (8, 9), "middle": (6, 5), "last": (0, 0)}
    lines = shell.run("group", "list").splitlines()
    (first,) = [line.split() for line in lines if f"{name}-first" in line]
    assert first[1:] == ["empty", "classic", "8", "9", "d", "12", "h"]

    # Kafka's tool counts deleted records too; the oldest record is the oldest that is there.
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.delete_records([TopicPartition(name, 0, 1)]).values():
        future.result(30)
    assert listed()["first"] == (8, 7)


def test_a_group_with_the_marker_of_a_transaction_before_it_has_nothing_old_to_read(
    shell: Shell, name: str, broker: BrokerProcess
) -> None:
    shell.run("topic", "create", name)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(name, b"v")
    producer.commit_transaction(30)
    shell.run("group", "reset-offsets", name, "--topic", name, "--to-offset", "1", "--execute")
    (line,) = [group for group in shell.json("group", "list") if group["group"] == name]
    assert (line["lag"], line["lag_seconds"]) == (1, 0)


def test_the_offsets_of_a_group_with_members_are_left_alone(
    shell: Shell, name: str, broker: BrokerProcess
) -> None:
    shell.run("topic", "create", name)
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": name, "client.id": "reader"}
    consumer = Consumer(settings)
    consumer.subscribe([name])

    def joined() -> bool:
        consumer.poll(0.1)
        return bool(consumer.assignment())

    eventually(joined)
    shell.run("group", "reset-offsets", name, "--topic", name, "--to-earliest", code=1)
    assert "stop them first" in shell.complaint
    shell.run("group", "delete", name, "--yes", code=1)
    assert "stop the group's consumers first" in shell.complaint
    (described,) = shell.json("group", "describe", name)
    assert described["members"][0]["partitions"] == [{"topic": name, "partition": 0}]
    assert "reader" in shell.run("group", "describe", name)
    consumer.close()


@pytest.mark.parametrize(
    ("words", "code", "advice"),
    [
        (("topic", "describe", "absent"), 1, "strandline topic list"),
        (("topic", "create", "a/b"), 1, "letters, digits"),
        (
            ("topic", "create", "x", "--config", "no.such.key=1"),
            1,
            "strandline docs reference/configuration",
        ),
        (("topic", "create", "x", "--replication-factor", "3"), 1, "more replicas than"),
        (("topic", "create", "x", "--config", "novalue"), 2, "KEY=VALUE"),
        (("topic", "alter", "x"), 2, "--config KEY=VALUE"),
        (("group", "describe", "absent"), 1, "strandline group list"),
        (("group", "reset-offsets", "g", "--to-latest"), 2, "--topic NAME"),
        (("group", "reset-offsets", "g", "--all-topics", "--to-latest"), 1, "with --topic"),
        (("consume", "absent"), 1, "strandline topic list"),
        (("consume", "absent", "--from", "sometime"), 2, "write start, end"),
        (("consume", "absent", "--group", "g", "--since", "1h"), 2, "reset-offsets"),
        (("produce", "absent", "--file", "/no/such/file"), 1, "cannot read"),
        (("produce", "a", "-X", "no.such.setting=1"), 2, "no.such.setting"),
        (("produce", "a", "--key-separator", ""), 2, "--key-separator is empty"),
        (("topic", "create", "x", "--partitions", str(10**19)), 2, "no number of partitions"),
        (("topic", "create", "x", "--replication-factor", "10001"), 2, "no number of replicas"),
        (("topic", "create", "x", "--partitions", "100001"), 2, "no number of partitions"),
        (("topic", "alter", "x", "--partitions", "0"), 2, "no number of partitions"),
        (("topic", "alter", "x", "--partitions", "-1"), 2, "no number of partitions"),
        (("status", "--metrics", "http://a..b:1"), 2, "write --metrics"),
        (("status", "--metrics", "http://[x"), 2, "write --metrics"),
        (("status", "--metrics", "http://127.0.0.1:port"), 2, "write --metrics"),
        (("consume", "absent", "--from", "²"), 2, "write start, end"),
    ],
)
def test_a_mistake_is_answered_with_what_to_do(
    shell: Shell, words: tuple[str, ...], code: int, advice: str
) -> None:
    shell.run(*words, code=code)
    assert advice in shell.complaint
    assert "Traceback" not in shell.complaint


def test_a_record_that_the_broker_refuses_is_told_with_what_to_do(shell: Shell, name: str) -> None:
    shell.run("topic", "create", name, "--partitions", "1")
    shell.run("produce", name, "--partition", "7", stdin=b"x\n", code=1)
    assert "strandline topic describe" in shell.complaint
    later = b'{"value": "x", "timestamp": 4102444800000}\n'
    shell.run("produce", name, "--json", stdin=later, code=1)
    assert "message.timestamp.after.max.ms" in shell.complaint


def test_without_standard_input_nothing_is_written(
    broker: BrokerProcess, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A parent may have closed it."""
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["produce", name, "--bootstrap-server", broker.bootstrap]) == 0


def test_a_property_that_is_misspelt_is_not_reported_as_removed(shell: Shell, name: str) -> None:
    shell.run("topic", "create", name, "--config", "retention.ms=60000")
    assert not shell.run("topic", "alter", name, "--delete-config", "retention.sm", code=1)
    assert f"topic '{name}' has no property 'retention.sm'" in shell.complaint
    assert "--all-config" in shell.complaint


@pytest.mark.parametrize(
    "words",
    [
        ("topic", "describe", "\udcff"),
        ("topic", "create", "x", "--config", "\udcff=1"),
        ("group", "describe", "\udcff"),
        ("consume", "\udcff"),
        ("produce", "x", "--header", "\udcff=1"),
        ("produce", "x", "--key", "\udcff"),
    ],
)
def test_words_that_are_no_text_do_not_end_the_process(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert "\\udcff" in (complaint := capsys.readouterr().err)
    assert "is not UTF-8" in complaint


def test_a_partition_that_no_topic_can_have_is_refused() -> None:
    with pytest.raises(SystemExit, match="2"):
        main(("produce", "x", "--partition", str(2**31)))


def test_a_line_that_is_none_says_how_many_were_written_before_it(shell: Shell, name: str) -> None:
    shell.run("topic", "create", name)
    shell.run("produce", name, "--json", stdin=b'{"value": "a"}\n{"value": "b"}\n{', code=2)
    assert "line 3: a line is no JSON" in shell.complaint
    assert f"2 records before it were written to {name}" in shell.complaint
    assert [record["value"] for record in shell.records(name)] == ["a", "b"]


def test_a_broker_that_is_not_there_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topic", "list", "--bootstrap-server", "127.0.0.1:1"]) == 1
    assert "strandline serve" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [("topic",), ("topic", "alter"), ("group", "reset-offsets"), ("produce",), ("consume",)],
)
def test_help_teaches_with_examples(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main([*words, "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert f"  strandline {' '.join(words)} " in text
    assert "Exit codes" in text
    assert connection.DEFAULT_BOOTSTRAP in text


def test_silence_and_a_count_end_reading(shell: Shell, name: str) -> None:
    topic = name
    shell.run("topic", "create", topic)
    assert shell.run("consume", topic, "--from", "start", "--timeout", "300ms") == ""
    shell.run("produce", topic, "--quiet", stdin=b"x\n")
    assert shell.complaint == ""
    assert shell.run("consume", topic, "--from", "start", "-n", "1", "--value") == "x\n"


# --- reading to the end, or saying why not -------------------------------------------------------


def _produce_open(bootstrap: str, topic: str, *, transactional_id: str) -> Producer:
    """Leaves a transaction open behind three records."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(3):
        producer.produce(topic, str(number), partition=0)
    producer.flush()
    undecided = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id})
    undecided.init_transactions()
    undecided.begin_transaction()
    undecided.produce(topic, "undecided", partition=0)
    undecided.flush()
    return undecided


def test_what_waits_for_an_open_transaction_is_named_and_nobody_waits_for_it(
    shell: Shell, broker: BrokerProcess, name: str
) -> None:
    shell.run("topic", "create", name)
    undecided = _produce_open(broker.bootstrap, name, transactional_id=name)
    for words in (["--from", "start"], ["--from", "-3"]):
        assert [one["value"] for one in shell.records(name, *words)] == ["0", "1", "2"]
        assert f"{name}-0: 1 offset from 3 on wait for an open transaction" in shell.complaint
    for words in (["--from", "end"], ["--from", "4"]):
        assert shell.records(name, *words) == []
    read_all = ["--from", "-1", "-X", "isolation.level=read_uncommitted"]
    assert [one["value"] for one in shell.records(name, *read_all)] == ["undecided"]
    undecided.abort_transaction()


def test_records_that_cannot_be_read_are_a_failure_that_says_where_and_not_0_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    archive = tmp_path / "archive"
    settings = {
        "remote.log.storage.system.enable": "true",
        "strandline.remote.url": f"file://{archive}",
        "remote.log.manager.task.interval.ms": "100",
        "log.retention.check.interval.ms": "100",
        "log.initial.task.delay.ms": "100",
    }
    with BrokerProcess(tmp_path / "broker", settings=settings) as broker:
        shell = Shell(broker.bootstrap, capsys, monkeypatch)
        tiered = ["remote.storage.enable=true", "segment.bytes=1048576", "local.retention.ms=1"]
        shell.run("topic", "create", name, *(w for one in tiered for w in ("--config", one)))
        for _ in range(3):
            shell.run("produce", name, stdin=b"a" * 900_000)
        log_folder = tmp_path / "broker" / "data" / f"{name}-0"
        eventually(lambda: not (log_folder / f"{0:020}.log").exists(), timeout_s=60)
        for log in archive.rglob("*.log"):
            log.unlink()
        shell.run("consume", name, "--from", "start", "--timeout", "1s", code=1)
        assert f"stopped after 0 records: nothing came for 1 s; {name}-0 at offset 0 of " in (
            shell.complaint
        )
        monkeypatch.setattr(reading, "STALLED_S", 0.5)
        shell.run("consume", name, "--from", "start", "--until-end", code=1)
        assert f"{name}-0 at offset 0 of 3" in shell.complaint
        # What is read to its end is no failure, however long nothing comes.
        shell.run("consume", name, "--from", "end", "--timeout", "1s")


def test_a_broker_that_dies_ends_the_command_with_the_offset_that_it_has_reached(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(reading, "AWAY_S", 0.5)
    with BrokerProcess(tmp_path / "broker") as broker:
        shell = Shell(broker.bootstrap, capsys, monkeypatch)
        shell.run("topic", "create", name)
        shell.run("produce", name, stdin=b"one\ntwo\n")
        write = consume._write_line

        def write_and_kill(line: str) -> None:
            write(line)
            broker.kill()

        monkeypatch.setattr(consume, "_write_line", write_and_kill)
        told = shell.run("consume", name, "--from", "start", "--json", code=1)
        assert told.count("\n") == 2
        assert "stopped after 2 records" in shell.complaint
        assert "no broker answers at" in shell.complaint
