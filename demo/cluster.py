"""`python -m demo.cluster`: three brokers on this machine, and one of them is killed.

    start   a controller and three brokers, by one command
    run     a producer and a group of two consumers, with their counters on the screen
    kill    kill -9 of one broker: how long did its partitions wait?
    read    every acknowledged record is there, once, and the group has read each
    ask     Spark, which reads the archive of all brokers

Exit code 0 only if every comparison held. It takes a minute.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from demo.children import Child
from demo.screen import DemoError, Screen, new_bar, show
from demo.settings import STALL_SECONDS_MAX
from demo.ticks import GroupMember, TickProducer, read_all
from strandline.storage.plurals import counted

TOPIC = "ticks"
PARTITION_COUNT = 6
BROKER_COUNT = 3
MEMBER_COUNT = 2
VICTIM = 2
OTHER_PORTS = range(19_092, 29_092, 20)
MARK = ".strandline-demo"
REQUEST_SECONDS_MAX = 30.0
# Before the kill, and after it.
BEFORE_SECONDS = 5.0
AFTER_SECONDS = 8.0
# A broker that does not come back ends the demo.
RETURN_SECONDS_MAX = 60.0
# Patient by default; the demo has an audience.
SETTINGS = {
    "remote.log.storage.system.enable": "true",
    "remote.log.manager.task.interval.ms": "500",
    "log.initial.task.delay.ms": "500",
    "log.retention.check.interval.ms": "500",
}
TOPIC_CONFIG = {"remote.storage.enable": "true", "segment.ms": "2000"}
_NODE = re.compile(rf"broker {VICTIM} at .*, process (\d+)$")
_READY = re.compile(r"strandline ready: \d+ brokers at (\S+)")


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    parser = argparse.ArgumentParser(prog="python -m demo.cluster", description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("demo-data-cluster"), help="its folder")
    parser.add_argument("--port", type=int, default=9092, help="wanted for the first broker")
    arguments = parser.parse_args()
    data, port = arguments.data.absolute(), free_ports(arguments.port)
    return show(lambda screen: run(screen, data, port))


def run(screen: Screen, data: Path, port: int) -> None:
    prepare_folder(data)
    screen.step(f"Start a controller and {BROKER_COUNT} brokers, by one command")
    command = brokers_command(data, port)
    screen.note(" ".join(["strandline", *command[1:]]))
    child = Child("the cluster", command, environment={}, log=data / "cluster.log")
    try:
        victim = int(child.wait_for_line(_NODE)[1])
        bootstrap = child.wait_for_line(_READY)[1]
        screen.note(f"brokers at {bootstrap}")
        create_topic(bootstrap)
        acknowledged = work(screen, child, bootstrap, victim)
        screen.step("Read the topic from its beginning")
        values = read_all(bootstrap, TOPIC, PARTITION_COUNT, len(acknowledged), child)
        screen.compare(
            "every acknowledged record is there, once",
            expected=counted(len(acknowledged), "record"),
            actual=counted(len(values), "record"),
        )
        screen.compare("and no other", expected=True, actual=sorted(values) == acknowledged)
        ask_spark(screen, child, data, acknowledged)
        go_on_by_hand(screen, data)
    finally:
        child.stop()


def work(screen: Screen, child: Child, bootstrap: str, victim: int) -> list[int]:
    """Runs the clients over the kill; returns the numbers of all acknowledged records."""
    screen.step(f"A producer, a group of {MEMBER_COUNT}, and kill -9 of broker {VICTIM}")
    producer = TickProducer(bootstrap, TOPIC)
    members = [GroupMember(bootstrap, TOPIC) for _ in range(MEMBER_COUNT)]
    with screen.progress() as progress:
        sent = new_bar(progress, "acknowledged")
        read = [new_bar(progress, f"read by member {number + 1}") for number in range(MEMBER_COUNT)]

        def show(seconds: float, until: Callable[[], bool] | None = None) -> None:
            end_s = time.monotonic() + seconds
            while time.monotonic() < end_s:
                sent.update(len(producer.acknowledged), total=producer.sent_count)
                for bar, member in zip(read, members, strict=True):
                    bar.update(len(member.values), total=producer.sent_count)
                if until is not None and until():
                    return
                child.check()
                time.sleep(0.1)

        show(BEFORE_SECONDS)
        os.kill(victim, signal.SIGKILL)
        killed_s = time.monotonic()
        show(AFTER_SECONDS)
        show(RETURN_SECONDS_MAX, until=lambda: producer.all_served_since(killed_s))
        producer.stop()
        acknowledged = sorted(producer.acknowledged)

        def seen() -> set[int]:
            return {one for member in members for one in member.values}

        show(RETURN_SECONDS_MAX, until=lambda: seen() >= set(acknowledged))
        for member in members:
            member.stop()
    gaps = producer.gaps_ms(killed_s)
    slowest = max(gaps.values())
    screen.note(
        f"[bold]the gap: {slowest:,.0f} ms[/bold] from the last acknowledgment before the kill to"
        " the first one after it, in the slowest partition"
    )
    screen.table(
        ("partition", "longest wait for an acknowledgment, ms"),
        [(str(number), gap) for number, gap in sorted(gaps.items())],
    )
    screen.compare("no record was refused", expected=0, actual=producer.refused_count)
    screen.compare(
        "the group has read every acknowledged record",
        expected=counted(len(acknowledged), "record"),
        actual=counted(len(seen() & set(acknowledged)), "record"),
    )
    return acknowledged


def ask_spark(screen: Screen, child: Child, data: Path, acknowledged: list[int]) -> None:
    from demo.lake import spark_session
    from strandline.spark_lake import scan

    screen.step("Ask Spark, straight from the archive, which all brokers write")
    url = archive_url(data)
    with screen.bar("records in the archive", total=len(acknowledged)) as bar:
        end_s = time.monotonic() + STALL_SECONDS_MAX
        while (count := scan(url, TOPIC, columns=["offset"]).read_all().num_rows) < len(
            acknowledged
        ):
            bar.update(count)
            child.check()
            if time.monotonic() > end_s:
                raise DemoError(
                    f"{counted(count, 'record')} came into the archive; see {child.log}"
                )
            time.sleep(0.5)
        bar.update(count)
    with spark_session(data / "spark.log") as spark:
        records = (
            spark.read.format("strandline").option("path", url).option("subscribe", TOPIC).load()
        )
        numbers = records.selectExpr("CAST(CAST(value AS STRING) AS BIGINT) AS number")
        (row,) = numbers.selectExpr("count(*)", "count(DISTINCT number)", "sum(number)").collect()
    screen.compare(
        "records, different ones, and their sum",
        expected=(len(acknowledged), len(acknowledged), sum(acknowledged)),
        actual=tuple(row),
    )


def archive_url(data: Path) -> str:
    return (data / "archive").as_uri()


def go_on_by_hand(screen: Screen, data: Path) -> None:
    screen.step("Go on by hand")
    screen.note("The cluster ends with this demo, and its folder stays. Start it again:")
    screen.console.print(
        f"  strandline serve --brokers {BROKER_COUNT} --set log.dirs={data / 'brokers'}\n"
        "  strandline cluster status\n"
        f"  strandline consume {TOPIC} --from start --until-end",
        markup=False,
        soft_wrap=True,
    )


def brokers_command(data: Path, port: int) -> list[str]:
    strandline = Path(sys.executable).with_name("strandline")
    if not strandline.exists():
        raise DemoError(f"{strandline} is missing; `make demo-cluster` installs it")
    settings = {
        "log.dirs": str(data / "brokers"),
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "strandline.remote.url": archive_url(data),
        **SETTINGS,
    }
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return [str(strandline), "serve", "--brokers", str(BROKER_COUNT), *words]


def create_topic(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = NewTopic(
        TOPIC, num_partitions=PARTITION_COUNT, replication_factor=1, config=TOPIC_CONFIG
    )
    admin.create_topics([topic], request_timeout=REQUEST_SECONDS_MAX)[TOPIC].result()


def prepare_folder(data: Path) -> None:
    """An empty folder of our own. Raises DemoError for one that is not ours."""
    if data.exists() and not (data / MARK).exists() and any(data.iterdir()):
        raise DemoError(f"{data} is not a folder of the demo: choose another --data")
    data.mkdir(parents=True, exist_ok=True)
    (data / MARK).touch()
    for folder in ("brokers", "archive"):
        shutil.rmtree(data / folder, ignore_errors=True)
    (data / "archive").mkdir()
    (data / "cluster.log").unlink(missing_ok=True)


def free_ports(wanted: int) -> int:
    """`wanted` if it, the port below and those above are free; else the first of others."""
    firsts: list[int] = [wanted, *OTHER_PORTS]
    for first in firsts:
        if all(map(_is_free, range(first - 1, first + 2 * BROKER_COUNT))):
            return first
    raise DemoError("no ports in a row are free on 127.0.0.1")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


if __name__ == "__main__":
    sys.exit(main())
