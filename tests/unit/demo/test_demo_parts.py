"""The parts of the demo that decide whether it may say that all went well."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from pyspark.errors import PySparkRuntimeError

import demo.__main__ as demo_main
import demo.lake as demo_lake
from demo.by_hand import commands
from demo.clients import Placement
from demo.flights import RecordSum, to_records
from demo.questions import QUESTIONS
from demo.screen import DemoError, Screen
from demo.settings import CREDENTIALS, Settings, free_port
from demo.tiers import PartitionTiers, tier_rows

ROOT = Path(__file__).resolve().parents[3]
RECORDS = [(b"UA", b"one", 1), (b"AA", b"two", 2), (b"UA", b"three", 3)]


def sum_of(records: list[tuple[bytes, bytes, int]]) -> RecordSum:
    total = RecordSum()
    for record in records:
        total.add(*record)
    return total


def settings(folder: Path) -> Settings:
    return Settings(
        data=folder / "data",
        broker_port=1,
        s3_port=2,
        strandline=Path("bin/strandline"),
        ministack=Path("bin/ministack"),
    )


def test_the_checksum_does_not_depend_on_the_order() -> None:
    assert sum_of(RECORDS) == sum_of(RECORDS[::-1])


@pytest.mark.parametrize(
    "damaged",
    [
        RECORDS[:2],
        [*RECORDS, RECORDS[0]],
        [*RECORDS[:2], RECORDS[0]],
        [*RECORDS[:2], (b"UA", b"three", 4)],
        [*RECORDS[:2], (b"UA", b"threE", 3)],
        [*RECORDS[:2], (b"AA", b"three", 3)],
    ],
    ids=["lost", "doubled", "replaced", "timestamp", "value", "key"],
)
def test_the_checksum_shows_every_kind_of_damage(
    damaged: list[tuple[bytes, bytes, int]],
) -> None:
    assert sum_of(damaged) != sum_of(RECORDS)


def test_a_missing_value_becomes_null_and_a_whole_number_stays_whole() -> None:
    row = {"carrier": ["UA", "AA"], "dep_time": [517.0, None], "tailnum": ["N1", None]}
    first, second = to_records(pd.DataFrame(row | {"timestamp_ms": [10, 20]}))
    assert first == (b"UA", b'{"carrier":"UA","dep_time":517,"tailnum":"N1"}', 10)
    assert second.key == b"AA"
    assert second.timestamp_ms == 20
    assert json.loads(second.value) == {"carrier": "AA", "dep_time": None, "tailnum": None}


def test_source_answers_count_departures_and_cancellations() -> None:
    storm_ms = int(pd.Timestamp("2013-02-09T12:00Z").timestamp() * 1000)
    rows = {
        "carrier": ["UA", "UA", "AA"],
        "origin": ["EWR", "EWR", "JFK"],
        "dep_time": [100.0, None, 300.0],
        "dep_delay": [7.0, None, -2.0],
        "timestamp_ms": [storm_ms, storm_ms, 0],
    }
    delays, storm = (question.check(pd.DataFrame(rows)) for question in QUESTIONS)
    assert delays == [("AA", 1, 1, -2), ("UA", 2, 1, 7)]
    assert storm == [("2013-02-09", "EWR", 2, 1)]


def tiers(**changes: int) -> PartitionTiers:
    settled = {
        "partition": 0,
        "end_offset": 100,
        "remote_end_offset": 90,
        "remote_segment_count": 3,
        "remote_bytes": 1000,
        "local_start_offset": 90,
        "local_segment_count": 1,
        "local_bytes": 100,
        "active_base_offset": 90,
    }
    return PartitionTiers(**(settled | changes))


def test_a_partition_is_settled_only_when_all_is_archived_and_freed() -> None:
    assert tiers().is_settled
    assert not tiers(remote_end_offset=60).is_settled
    assert not tiers(local_start_offset=60).is_settled


def test_the_last_row_of_the_tier_table_is_the_sum() -> None:
    rows = tier_rows([tiers(), tiers(partition=1, end_offset=50, local_start_offset=40)])
    assert rows[-1] == ["all", 150, 6, 180, "0.0 MB", 2, 20, "0.0 MB"]


def test_end_offsets_lie_behind_the_last_record_of_each_partition() -> None:
    placed = pd.DataFrame({"partition": [0, 2, 0], "offset": [0, 5, 1]})
    placement = Placement(
        partitions=placed["partition"].to_numpy(), offsets=placed["offset"].to_numpy()
    )
    assert placement.end_offsets() == {0: 2, 1: 0, 2: 6, 3: 0}


def test_a_taken_port_is_replaced_by_a_free_one() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert free_port(port) != port


def test_a_folder_that_is_not_the_demos_is_left_alone(tmp_path: Path) -> None:
    precious = tmp_path / "data" / "precious"
    precious.parent.mkdir()
    precious.touch()
    with pytest.raises(DemoError, match="not a folder of the demo"):
        demo_main.prepare_folder(settings(tmp_path))
    assert precious.exists()


def test_a_folder_of_an_earlier_run_is_emptied(tmp_path: Path) -> None:
    demo_main.prepare_folder(settings(tmp_path))
    left = tmp_path / "data" / "left"
    left.touch()
    demo_main.prepare_folder(settings(tmp_path))
    assert not left.exists()


def test_a_run_that_is_interrupted_while_it_empties_its_folder_can_be_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def empty_half(folder: Path) -> None:
        for path in Path(folder).iterdir():
            if path.is_file():
                path.unlink()
        raise KeyboardInterrupt

    demo_main.prepare_folder(settings(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", empty_half)
        with pytest.raises(KeyboardInterrupt):
            demo_main.prepare_folder(settings(tmp_path))
    demo_main.prepare_folder(settings(tmp_path))
    assert {path.name for path in (tmp_path / "data").iterdir()} == {demo_main.MARK, "s3"}


def run_with(monkeypatch: pytest.MonkeyPatch, expected: int, actual: int) -> int:
    def compare(screen: Screen, _settings: Settings) -> None:
        screen.compare("numbers", expected=expected, actual=actual)

    monkeypatch.setattr(demo_main, "run", compare)
    monkeypatch.setattr(demo_main, "parse_settings", lambda: settings(Path("nowhere")))
    return demo_main.main()


def test_the_exit_code_is_zero_only_if_every_comparison_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert run_with(monkeypatch, expected=1, actual=1) == 0
    assert run_with(monkeypatch, expected=1, actual=2) == 1


def test_the_exit_code_is_not_zero_when_a_step_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_screen: Screen, _settings: Settings) -> None:
        raise DemoError("the broker ended")

    monkeypatch.setattr(demo_main, "run", fail)
    monkeypatch.setattr(demo_main, "parse_settings", lambda: settings(Path("nowhere")))
    assert demo_main.main() == 1


def test_the_commands_at_the_end_name_this_runs_servers(tmp_path: Path) -> None:
    text = commands(settings(tmp_path))
    assert "bin/strandline serve \\\n    --set node.id=1 \\\n" in text
    assert "--endpoint-url http://127.0.0.1:2" in text
    assert f"S3_DATA_DIR={tmp_path}/data/s3" in text


def test_the_commands_at_the_end_work_in_a_folder_with_a_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "my clone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "executable", str(folder / ".venv/bin/python"))
    exports = [line for line in commands(settings(folder)).splitlines() if "export " in line]
    shell = "; ".join([*exports, 'printf %s "$PYSPARK_PYTHON"'])
    shown = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True)
    assert shown.stdout == str(folder / ".venv/bin/python")


def test_a_spark_that_does_not_start_is_told_with_the_end_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(builder: object) -> None:
        os.write(2, b"no main class")
        raise PySparkRuntimeError("[JAVA_GATEWAY_EXITED]")

    monkeypatch.setattr(demo_lake, "_start", fail)
    for variable in ("PYSPARK_PYTHON", *CREDENTIALS):
        monkeypatch.setenv(variable, "")  # Set by the demo, and taken back here.
    with (
        pytest.raises(DemoError, match=r"Spark did not start; the end of .*spark\.log:\nno main"),
        demo_lake.spark_session(tmp_path / "spark.log"),
    ):
        pass


def test_what_make_runs_finds_its_files_in_a_folder_of_any_name() -> None:
    made = subprocess.run(
        ["make", "--silent", "--eval", "show: ; @echo $$LC_ALL", "show"],
        cwd=ROOT,
        env=os.environ | {"LC_ALL": "POSIX"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert made.stdout == "C.UTF-8\n"
