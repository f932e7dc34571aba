"""`python -m demo`: the steps in order. Exit code 0 only if every comparison held."""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from demo.by_hand import commands
from demo.children import Child, broker, s3_server
from demo.clients import FlightProducer, Placement, create_topic, read_everything
from demo.flights import FLIGHT_COUNT, RecordSum, load_flights, to_records
from demo.questions import QUESTIONS
from demo.screen import DemoError, Screen, new_bar, show
from demo.settings import CREDENTIALS, NO_PROXY, TOPIC, Settings, free_port
from demo.tiers import TIER_COLUMNS, TierWatcher, tier_rows
from strandline.storage.plurals import counted

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]
    from pyspark.sql import SparkSession

# Marks a folder as the demo's own, to be emptied by the next run.
MARK = ".strandline-demo"


def main() -> int:
    # Asked to end, it ends as on Ctrl-C: the servers are stopped on the way out.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return show(lambda screen: run(screen, parse_settings()))


def parse_settings() -> Settings:
    parser = argparse.ArgumentParser(prog="python -m demo", description="The main job, end to end.")
    parser.add_argument("--data", type=Path, default=Path("demo-data"), help="folder for all data")
    parser.add_argument("--broker-port", type=int, default=9092, help="wanted; else a free one")
    parser.add_argument("--s3-port", type=int, default=4567, help="wanted; else a free one")
    arguments = parser.parse_args()
    ministack = os.environ.get("STRANDLINE_MINISTACK_PYTHON", ".venv-ministack/bin/python")
    settings = Settings(
        data=arguments.data.absolute(),
        broker_port=free_port(arguments.broker_port),
        s3_port=free_port(arguments.s3_port),
        strandline=Path(sys.executable).with_name("strandline"),
        ministack=Path(ministack).absolute().with_name("ministack"),
    )
    for program in (settings.strandline, settings.ministack):
        if not program.exists():
            raise DemoError(f"{program} is missing; `make demo` installs it")
    return settings


def run(screen: Screen, settings: Settings) -> None:
    os.environ |= CREDENTIALS | NO_PROXY
    prepare_folder(settings)
    screen.step("Load the flights that left New York in 2013")
    flights = load_flights()
    screen.compare("every flight is there", expected=FLIGHT_COUNT, actual=len(flights))

    screen.step("Start a local S3 server and a broker whose remote tier is a bucket on it")
    with s3_server(settings):
        screen.note(f"S3 at {settings.s3_url}, data in {settings.s3_data}")
        with broker(settings) as child:
            screen.note(f"broker at {settings.bootstrap}, archive at {settings.remote_url}")
            sent, placement = produce(screen, settings, flights, child)
            watcher = TierWatcher(settings, placement.end_offsets())
            wait_for_archive(screen, watcher, child)
            read_back(screen, settings, sent, placement, child)
            stop_broker(screen, child)
        ask_lake(screen, settings, archived(flights, placement, watcher))
    screen.step("Go on by hand")
    screen.console.print(commands(settings), markup=False, soft_wrap=True)


def prepare_folder(settings: Settings) -> None:
    """An empty folder of our own. Refuses one that is not ours, or that a broker still uses."""
    if settings.data.exists():
        if not (settings.data / MARK).exists() and any(settings.data.iterdir()):
            raise DemoError(f"{settings.data} is not a folder of the demo: choose another --data")
        lock = settings.broker_data / ".lock"
        if lock.exists() and is_locked(lock):
            raise DemoError(f"a broker still runs on {settings.broker_data}: stop it first")
    # The mark comes first and stays, so that a run that was interrupted here does not count as
    # somebody else's folder.
    settings.data.mkdir(parents=True, exist_ok=True)
    (settings.data / MARK).touch()
    for path in settings.data.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != MARK:
            path.unlink()
    settings.s3_data.mkdir()


def is_locked(path: Path) -> bool:
    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def produce(
    screen: Screen, settings: Settings, flights: pd.DataFrame, child: Child
) -> tuple[RecordSum, Placement]:
    screen.step("Produce them: key = carrier, value = JSON, timestamp = scheduled hour")
    create_topic(settings.bootstrap)
    producer = FlightProducer(settings.bootstrap, len(flights), child)
    with screen.bar("acknowledged by the broker", total=len(flights)) as bar:
        placement = producer.send_all(to_records(flights), bar)
    screen.note(str(producer.sent))
    screen.compare(
        "the partitions hold as many records as were sent",
        expected=len(flights),
        actual=sum(placement.end_offsets().values()),
    )
    return producer.sent, placement


def wait_for_archive(screen: Screen, watcher: TierWatcher, child: Child) -> None:
    screen.step("Wait until closed segments are archived and their local copies gone")
    with screen.progress() as progress:
        archived_bar = new_bar(progress, "records of closed segments in S3")
        freed_bar = new_bar(progress, "freed on the local disk")
        partitions = watcher.wait_until_settled(child, archived_bar, freed_bar)
    screen.table(TIER_COLUMNS, tier_rows(partitions))


def read_back(
    screen: Screen, settings: Settings, sent: RecordSum, placement: Placement, child: Child
) -> None:
    screen.step("Read everything back from offset 0 with an ordinary consumer")
    with screen.bar("received", total=sent.record_count) as bar:
        received = read_everything(settings.bootstrap, placement.end_offsets(), bar, child)
    screen.note(str(received))
    screen.compare("what came back is what was sent", expected=sent, actual=received)


def stop_broker(screen: Screen, child: Child) -> None:
    screen.step("Stop the broker")
    screen.compare("it ends cleanly on SIGTERM", expected=0, actual=child.stop())


def archived(flights: pd.DataFrame, placement: Placement, watcher: TierWatcher) -> pd.DataFrame:
    """The rows of the source whose records lie in the bucket; the others are in active segments."""
    ends = watcher.archived_end_offsets()
    row_ends = [ends[partition] for partition in placement.partitions.tolist()]
    return flights[placement.offsets < row_ends]


def ask_lake(screen: Screen, settings: Settings, source: pd.DataFrame) -> None:
    from demo.lake import ask, describe, reading_of, records_of, spark_session

    screen.step(
        "Ask Spark, straight from the bucket; what of it lies there:"
        f" {counted(len(source), 'record')} of {TOPIC}"
    )
    with ExitStack() as stack:
        with screen.bar("start Spark", total=1) as bar:
            spark = stack.enter_context(spark_session(settings.data / "spark.log"))
            bar.update(1)
        for number, question in enumerate(QUESTIONS, start=1):
            report = settings.data / f"scan-{number}"
            with screen.bar(f"tasks of question {number}") as bar:
                answer = ask(spark, question, records_of(spark, settings, report), bar)
            screen.note(f"[italic]{question.title}[/italic]")
            screen.table(question.columns, question.show(answer))
            scan = reading_of(report)
            screen.note(describe(scan))
            screen.compare(
                "the answer is that of the source data",
                expected=question.check(source),
                actual=answer,
            )
            if question.is_selective:
                screen.compare(
                    "most segments were never read",
                    expected=True,
                    actual=scan.segments_read < scan.plan.segments_total / 2,
                )
        make_table(screen, settings, source, spark)


def make_table(
    screen: Screen, settings: Settings, source: pd.DataFrame, spark: SparkSession
) -> None:
    from demo.table import TABLE, ask_duckdb, ask_spark, sync_flights, table_files

    screen.step("Make an Iceberg table of the bucket, for engines that know no Kafka")
    with screen.bar("synced") as bar:
        rows = sync_flights(settings, bar)
    screen.compare("the table has every record of the bucket", expected=len(source), actual=rows)
    with screen.bar("synced again") as bar:
        again = sync_flights(settings, bar)
        bar.update(1, total=1)
    screen.compare("a second sync finds nothing to add", expected=0, actual=again)
    files = table_files(settings)
    screen.note(f"{TABLE} in {settings.tables}: {counted(len(files), 'Parquet file')}")
    delays = QUESTIONS[0]
    expected = delays.check(source)
    answer = ask_duckdb(files)
    screen.compare("DuckDB answers from it as from the source", expected=expected, actual=answer)
    answer = ask_spark(spark, files)
    screen.compare("Spark answers from it as from the source", expected=expected, actual=answer)


if __name__ == "__main__":
    sys.exit(main())
