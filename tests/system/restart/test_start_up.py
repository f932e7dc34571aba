"""What a broker refuses to start with: one line that says what is wrong, and an exit code."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import REPOSITORY, BrokerProcess
from tests.support.forked import run_process
from tests.support.wire import WireClient
from tests.system.calls import (
    append,
    ask_to_create,
    assert_serves,
    batch,
    create_topic,
    end_offset,
    new_topic,
)

pytestmark = pytest.mark.slow

INVALID_CONFIG = 40
USAGE_ERROR = 2
FAILURE = 1


def serve(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Runs `strandline serve` to its end, which must come soon."""
    command = [*BrokerProcess.program, "serve", *arguments]
    for name, value in settings.items():
        command += ["--set", f"{name.replace('_', '.')}={value}"]
    return run_process(command, folder=REPOSITORY, timeout_s=120)


def refusal_of(finished: subprocess.CompletedProcess[str], exit_code: int) -> str:
    """The one line that says why; log lines of the start before it are allowed."""
    assert finished.returncode == exit_code, finished
    assert finished.stdout == ""
    lines = finished.stderr.splitlines()
    assert "Traceback" not in finished.stderr, finished.stderr
    said = [line for line in lines if line.startswith("strandline: ")]
    assert said == lines[-1:], finished.stderr
    return said[0]


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("first")) as running:
        yield running


# --- configuration ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("log.retention.hour=1", ["log.retention.hour", "log.retention.hours"]),
        ("log.segment.bytes=big", ["log.segment.bytes", "big"]),
        ("listeners=SASL_SSL://:0", ["SASL_SSL", "sasl.enabled.mechanisms"]),
        ("listeners=SSL://:0", ["listener SSL", "ssl.keystore.location"]),
        ("remote.log.storage.system.enable=true", ["strandline.remote.url"]),
    ],
)
def test_a_setting_that_cannot_be_is_refused_in_one_line_that_names_it(
    tmp_path: Path, setting: str, said: list[str]
) -> None:
    finished = serve("--set", setting, log_dirs=str(tmp_path / "data"))
    message = refusal_of(finished, USAGE_ERROR)
    assert finished.stderr.count("\n") == 1
    for words in said:
        assert words in message
    assert not (tmp_path / "data").exists()


def test_a_default_that_a_topic_contradicts_keeps_no_broker_from_its_start(tmp_path: Path) -> None:
    """As in Kafka: only who makes or alters a topic is refused what contradicts itself."""
    with BrokerProcess(tmp_path) as broker, WireClient(broker.port) as client:
        create_topic(client, "slow", configs={"min.compaction.lag.ms": "5000"})
        append(client, "slow", batch(3))
    changed = {"log.cleaner.max.compaction.lag.ms": "4000"}
    with BrokerProcess(tmp_path, settings=changed) as broker, WireClient(broker.port) as client:
        assert append(client, "slow", batch(1)) == 3
        (said,) = [line for line in broker.log_text().splitlines() if "contradicts itself" in line]
        assert "topic=slow" in said
        assert "min.compaction.lag.ms (5000) > max.compaction.lag.ms (4000)" in said
        asked = ask_to_create(client, new_topic("new", configs={"min.compaction.lag.ms": "5000"}))
        assert [result.error_code for result in asked] == [INVALID_CONFIG]


def test_a_mistake_in_a_file_is_found_with_its_line(tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    config.write_text(f"# ours\nlog.dirs={tmp_path}/data\n\nauto.create.topic.enable=false\n")
    message = refusal_of(serve("--config", str(config)), USAGE_ERROR)
    assert "line 4" in message
    assert "auto.create.topics.enable" in message
    missing = refusal_of(serve("--config", str(tmp_path / "no-such-file")), USAGE_ERROR)
    assert "no-such-file" in missing


# --- the log folder --------------------------------------------------------------------------


def test_a_second_broker_on_the_same_folder_is_refused_and_the_first_goes_on(
    first: BrokerProcess,
) -> None:
    finished = serve(log_dirs=str(first.data), listeners="PLAINTEXT://127.0.0.1:0", node_id="1")
    message = refusal_of(finished, FAILURE)
    assert str(first.data) in message
    assert "lock" in message.lower() or "another" in message.lower()
    with WireClient(first.port) as client:
        create_topic(client, "still-mine")
        assert append(client, "still-mine", batch()) == 0


def test_a_port_that_is_taken_is_named_with_how_to_find_who_has_it(
    first: BrokerProcess, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    finished = serve(log_dirs=str(data), listeners=f"PLAINTEXT://127.0.0.1:{first.port}")
    message = refusal_of(finished, FAILURE)
    assert str(first.port) in message
    assert "ss -ltnp" in message
    assert_serves(first.port)
    # Nothing is broken by it: the folder can be used a moment later.
    with BrokerProcess(tmp_path) as broker:
        assert_serves(broker.port)


def test_a_host_that_is_not_ours_is_named_with_the_key_that_may_have_been_meant(
    tmp_path: Path,
) -> None:
    finished = serve(log_dirs=str(tmp_path / "data"), listeners="PLAINTEXT://192.0.2.1:0")
    message = refusal_of(finished, FAILURE)
    assert "192.0.2.1" in message
    assert "advertised.listeners" in message


def test_a_folder_of_another_broker_is_refused(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        broker.stop()
        finished = serve(
            log_dirs=str(broker.data), node_id="2", listeners="PLAINTEXT://127.0.0.1:0"
        )
        message = refusal_of(finished, FAILURE)
        assert "node.id" in message
        assert str(broker.data) in message
        # And a damaged metadata log, which decides what everything else means, is not guessed at.
        (entry, *_) = sorted((broker.data / "strandline-metadata").rglob("*.json"))
        entry.write_bytes(entry.read_bytes()[:-20])
        damaged = refusal_of(
            serve(log_dirs=str(broker.data), node_id="1", listeners="PLAINTEXT://127.0.0.1:0"),
            FAILURE,
        )
        assert entry.name in damaged


def test_a_new_first_folder_does_not_make_strays_of_the_partitions(tmp_path: Path) -> None:
    """Without its metadata a broker would know no topic; it renames no folder for that."""
    old, second, new = (str(tmp_path / name) for name in ("old", "second", "new"))
    broker = BrokerProcess(tmp_path, settings={"log.dirs": f"{old},{second}"})
    with broker, WireClient(broker.port) as client:
        create_topic(client, "topic", 2)
        assert append(client, "topic", batch(3)) == 0
    given = {"node_id": "1", "listeners": "PLAINTEXT://127.0.0.1:0"}
    swapped = refusal_of(serve(log_dirs=f"{second},{old}", **given), FAILURE)
    assert f"name {old} first in log.dirs" in swapped
    lost = refusal_of(serve(log_dirs=f"{new},{second}", **given), FAILURE)
    assert "bring the first folder of log.dirs back" in lost
    assert not list(tmp_path.glob("*/*-stray"))
    with broker, WireClient(broker.port) as client:
        assert end_offset(client, "topic") == 3


def test_a_log_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a folder")
    finished = serve(log_dirs=str(tmp_path / "data"), listeners="PLAINTEXT://127.0.0.1:0")
    assert str(tmp_path / "data") in refusal_of(finished, FAILURE)


# --- the ready line --------------------------------------------------------------------------


def test_the_ready_line_names_the_port_that_can_be_connected_to(first: BrokerProcess) -> None:
    """`BrokerProcess` reads it; it is all that a broker says on standard output."""
    assert first.port > 0
    with socket.create_connection(("127.0.0.1", first.port), timeout=60):
        pass
    assert_serves(first.port)


def test_what_the_machine_refuses_is_said_with_what_to_do_about_it(tmp_path: Path) -> None:
    """The kernel's limit on the size of files stands for the disk."""
    command = [*BrokerProcess.program, "serve", "--set", f"log.dirs={tmp_path}/data"]
    limited = (
        "import resource, os, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0));"
        " os.execv(sys.argv[1], sys.argv[1:])"
    )
    finished = subprocess.run(
        [sys.executable, "-c", limited, *command, "--set", "listeners=PLAINTEXT://127.0.0.1:0"],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / ".namespace")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert finished.returncode == FAILURE
    assert finished.stderr.splitlines()[-1].endswith("Raise the limit (ulimit -f)")


@pytest.mark.parametrize("name", ["meta.properties", "orders-0/partition.metadata"])
def test_a_damaged_file_that_nothing_can_replace_is_named_with_where_the_remedy_stands(
    tmp_path: Path, name: str
) -> None:
    with BrokerProcess(tmp_path) as broker, WireClient(broker.port) as client:
        create_topic(client, "orders")
    file = broker.data / name
    file.write_bytes(b"\xff\xfe")
    message = refusal_of(serve(log_dirs=str(broker.data)), FAILURE)
    assert str(file) in message
    page = REPOSITORY / "docs" / f"{message.rpartition(' ')[2].strip()}.md"
    assert f"\n## `{file.name}`" in page.read_text()


# `strandline serve` in a system that gives so many threads and no more.
FEW_THREADS = """
import sys, threading
from strandline.broker.cli import main
begin, left = threading.Thread.start, [None] * int(sys.argv[1])
def start(thread):
    if not left:
        raise RuntimeError("can't start new thread")
    left.pop()
    begin(thread)
threading.Thread.start = start
sys.exit(main(["serve", "--set", f"log.dirs={sys.argv[2]}", "--set", "listeners=PLAINTEXT://127.0.0.1:0"]))
"""


def with_few_threads(thread_count: int, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", FEW_THREADS, str(thread_count), str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / ".namespace")},
    )


def test_a_start_that_the_system_gives_no_thread_ends_with_one_line(tmp_path: Path) -> None:
    with with_few_threads(0, tmp_path) as process:
        stdout, stderr = process.communicate(timeout=120)
    finished = subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)
    assert "cannot begin another thread" in refusal_of(finished, FAILURE)


def test_a_broker_that_gets_no_other_thread_any_more_stops_cleanly(tmp_path: Path) -> None:
    with with_few_threads(3, tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("strandline ready")
        process.terminate()
        _, stderr = process.communicate(timeout=120)
    assert process.returncode == 0
    assert "Traceback" not in stderr, stderr
    assert (tmp_path / ".kafka_cleanshutdown").exists()
