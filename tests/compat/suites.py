"""`make compat`: kafka-python's integration tests and librdkafka's C tests against our broker.

    python -m tests.compat.suites [--suite NAME] [--write-page] [--fast]

Every test has a result: passed, skipped by itself, or failed. `tests/compat/known.toml` says why
those that do not pass do not. A failure without a reason there fails the run, and so does a reason
for a test that passes: what works is taken off the list. With `--write-page` the results become
docs/compatibility.md.

librdkafka's tests run in processes of their own, one for each number, as one failed assertion ends
the runner; a few at once, and one that fails beside others once more alone.
Tests that it marks as local (most use its built-in mock cluster) say nothing about us and are left
out, and so are those named in known.toml under `left_out`.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from tests.support.broker import REPOSITORY, BrokerProcess

SOURCES = Path(os.environ.get("STRANDLINE_COMPAT_FOLDER", REPOSITORY / "bench-data" / "compat"))
KNOWN = Path(__file__).with_name("known.toml")
PAGE = REPOSITORY / "docs" / "compatibility.md"
SUITES = ("kafka-python", "librdkafka")
# The release whose API versions we advertise; kafka-python's tests ask for it.
KAFKA_VERSION = "4.3.0"
PYTEST_SECONDS_MAX = 600
# 0113 takes the longest, nine minutes beside others.
TEST_SECONDS_MAX = 1000
# librdkafka's wait most of the time, for time-outs and for groups.
AT_ONCE = 4
# Left out of the quick choice: they wait for sessions to end.
SLOW_KAFKA_PYTHON = ("test_group", "test_heartbeat_thread", "test_kafka_consumer__blocking")
# Tests of librdkafka that CI runs too, by the file that they are in: a second or two each, and
# together a bit of everything. Kept apart because of what it takes to build all of them.
QUICK_LIBRDKAFKA: Mapping[str, Sequence[str]] = {
    "0001-multiobj": ("0001_multiobj",),
    "0002-unkpart": ("0002_unkpart",),
    "0003-msgmaxsize": ("0003_msgmaxsize",),
    "0005-order": ("0005_order",),
    "0007-autotopic": ("0007_autotopic",),
    "0008-reqacks": ("0008_reqacks",),
    "0012-produce_consume": ("0012_produce_consume",),
    "0013-null-msgs": ("0013_null_msgs",),
    "0019-list_groups": ("0019_list_groups",),
    "0022-consume_batch": ("0022_consume_batch",),
    "0029-assign_offset": ("0029_assign_offset",),
    "0031-get_offsets": ("0031_get_offsets",),
    "0034-offset_reset": ("0034_offset_reset",),
    "0036-partial_fetch": ("0036_partial_fetch",),
    "0039-event": ("0039_event_dr",),
    "0044-partition_cnt": ("0044_partition_cnt",),
    "0048-partitioner": ("0048_partitioner",),
    "0056-balanced_group_mt": ("0056_balanced_group_mt",),
    "0073-headers": ("0073_headers",),
    "0099-commit_metadata": ("0099_commit_metadata",),
}
QUICK_AT_ONCE = 8
# librdkafka's scenarios are brokers that are set up in different ways.
DEFAULT_SCENARIO = "default"
SCENARIOS: Mapping[str, Mapping[str, str]] = {
    DEFAULT_SCENARIO: {},
    "noautocreate": {"auto.create.topics.enable": "false"},
}

# These of librdkafka's call kafka-topics.sh; kafka/bin has a stand-in that calls strandline.
WANT_SCRIPTS = ("0045", "0052", "0077")

# As the suites expect a broker to be.
SETTINGS = {
    # The broker that kafka-python's tests assign partitions to.
    "node.id": "0",
    "num.partitions": "4",
    # Without any, two consumers that begin together would see a rebalance that 0118 does not await.
    "group.initial.rebalance.delay.ms": "300",
    "group.min.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": "5",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one test."""

    suite: str
    test: str
    # passed, skipped or failed
    result: str
    # The last words of a failed one.
    detail: str = ""
    seconds: float = 0.0


def sources(suite: str, *files: str) -> Path:
    """The folder of a suite, fetched and built if need be."""
    result = subprocess.run(
        [REPOSITORY / "scripts" / "compat-sources", SOURCES, suite, *files],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return Path(result.stdout.split()[-1])


def run_kafka_python(broker: BrokerProcess, *, without: Sequence[str] = ()) -> Iterator[Outcome]:
    """Its integration tests but those of TLS and SASL, which start brokers of their own."""
    folder = sources("kafka-python")
    report = broker.folder / "kafka-python.xml"
    files = [f"test/integration/test_{name}_integration.py" for name in ("admin", "consumer")]
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"),
        *("-p", "tests.support.kafka_python"),
        *("--override-ini", "addopts=", "-W", "ignore", "--show-capture=no", "--tb=line"),
        *("--timeout", "60", f"--junitxml={report}", f"--rootdir={folder}"),
        *files,
        "test/integration/test_producer_integration.py",
    ]
    if without:
        command += ["-k", " and ".join(f"not {name}" for name in without)]
    environment = {
        "KAFKA_URI": f"PLAINTEXT://{broker.bootstrap}",
        "KAFKA_VERSION": KAFKA_VERSION,
        # Looked at, not used: nothing is started from it.
        "KAFKA_ROOT": str(folder),
        # Theirs first; ours for the plugin.
        "PYTHONPATH": f"{folder}{os.pathsep}{REPOSITORY}",
    }
    ended = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PYTEST_SECONDS_MAX,
        check=False,
    )
    if not report.exists():
        raise RuntimeError(f"kafka-python's tests did not run:\n{ended.stdout[-3000:]}")
    for case in ET.parse(report).iter("testcase"):
        result, detail = "passed", ""
        for child in case:
            if child.tag in ("failure", "error"):
                result, detail = "failed", (child.get("message") or "").splitlines()[0][:200]
            elif child.tag == "skipped":
                result, detail = "skipped", child.get("message") or ""
        yield Outcome(
            suite="kafka-python",
            test=case.get("name") or "",
            result=result,
            detail=detail,
            seconds=float(case.get("time") or 0),
        )


def run_librdkafka(
    broker: BrokerProcess, *, scenario: str, left_out: Sequence[str], only: Sequence[str] = ()
) -> Iterator[Outcome]:
    """Those of its tests that want such a broker, each in a process of its own."""
    folder = sources("librdkafka")
    work = broker.folder / "librdkafka"
    work.mkdir(exist_ok=True)
    (work / "test.conf").write_text(f"metadata.broker.list={broker.bootstrap}\n")
    scripts = {
        "KAFKA_PATH": str(REPOSITORY / "tests" / "compat" / "kafka"),
        "BROKERS": broker.bootstrap,
        "STRANDLINE_PYTHON": sys.executable,
    }
    wanted = [
        test
        for test in librdkafka_tests(folder, scenario)
        if test not in left_out and (not only or test in only)
    ]

    by_number: dict[str, list[str]] = {}
    for test in wanted:
        by_number.setdefault(test[:4], []).append(test)

    def run(tests: Sequence[str]) -> list[Outcome]:
        wants_scripts = tests[0].startswith(WANT_SCRIPTS)
        return _run_number(folder, work, tests, scenario, scripts if wants_scripts else {})

    again = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for tests, outcomes in zip(
            by_number.values(), pool.map(run, by_number.values()), strict=True
        ):
            if any(outcome.result == "failed" for outcome in outcomes):
                again.append(tests)
            else:
                yield from outcomes
    # What others beside it may have disturbed, such as a count of all topics, goes alone.
    for tests in again:
        yield from run(tests)


def _run_number(
    folder: Path, work: Path, tests: Sequence[str], scenario: str, scripts: Mapping[str, str]
) -> list[Outcome]:
    """Tests of one number, which the runner cannot tell apart, in a process of their own.

    Not in its quick mode, which leaves out most of what they test.
    """
    number = tests[0][:4]
    began_s = time.monotonic()
    log_path = work / f"{number}.log"
    with open(log_path, "wb") as log_file:
        process = subprocess.Popen(
            [folder / "tests" / "test-runner", "-L", "-K", "-p1", "-V", "4.1.0"],
            cwd=work,
            env={
                **os.environ,
                "LD_LIBRARY_PATH": f"{folder / 'src'}:{folder / 'src-cpp'}",
                "TESTS": number,
                "TEST_SCENARIO": scenario,
                **scripts,
            },
            stdout=log_file,
            stderr=subprocess.STDOUT,
        )
        try:
            process.wait(TEST_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    said = re.sub(r"\x1b\[[0-9;]*m", "", log_path.read_text(errors="replace"))
    return _outcomes(said, tests, time.monotonic() - began_s)


def _outcomes(said: str, tests: Sequence[str], seconds: float) -> list[Outcome]:
    """What the runner said of each of these tests."""
    results = {test: _judged(said, test) for test in tests}
    if "failed" not in results.values() and "ALL TESTS PASSED" not in said:
        # Each was well and the whole was not: threads were left, or the runner crashed.
        results = dict.fromkeys(results, "failed")
    return [
        Outcome(
            suite="librdkafka",
            test=test,
            result=result,
            detail=_last_words(said, result),
            seconds=seconds,
        )
        for test, result in results.items()
    ]


def run_librdkafka_quickly(broker: BrokerProcess) -> Iterator[Outcome]:
    """Those of QUICK_LIBRDKAFKA, side by side in one process: one that fails may end the others."""
    folder = sources("librdkafka-quick", *QUICK_LIBRDKAFKA)
    work = broker.folder / "librdkafka"
    work.mkdir(exist_ok=True)
    (work / "test.conf").write_text(f"metadata.broker.list={broker.bootstrap}\n")
    tests = [test for tests in QUICK_LIBRDKAFKA.values() for test in tests]
    began_s = time.monotonic()
    ended = subprocess.run(
        [folder / "tests" / "test-runner", "-L", "-K", f"-p{QUICK_AT_ONCE}", "-V", "4.1.0"],
        cwd=work,
        env={**os.environ, "LD_LIBRARY_PATH": str(folder / "src"), "TESTS": ",".join(tests)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=TEST_SECONDS_MAX,
        check=False,
    )
    said = re.sub(r"\x1b\[[0-9;]*m", "", ended.stdout)
    yield from _outcomes(said, tests, time.monotonic() - began_s)


def librdkafka_tests(folder: Path, scenario: str = DEFAULT_SCENARIO) -> list[str]:
    """Names of the tests for a real broker of this scenario, in the runner's order."""
    table = (folder / "tests" / "test.c").read_text()
    table = table[table.index("struct test tests[]") :]
    rows = re.split(r"_TEST\(", table[: table.index("\n};")])[1:]
    unwanted = ("TEST_F_LOCAL", "TEST_F_MANUAL", "TEST_F_SOCKEM", "TEST_F_KNOWN_ISSUE")
    found = []
    for row in rows:
        scenarios = re.search(r'\.scenario = "([^"]*)"', row)
        wanted = scenarios[1].split(",") if scenarios else [DEFAULT_SCENARIO]
        if scenario in wanted and not any(flag in row for flag in unwanted):
            found.append(row[: row.index(",")].strip())
    return found


def _judged(said: str, test: str) -> str:
    """By the line of this very test, which is its last."""
    line = re.search(rf"=+ Test {test} (PASSED|SKIPPED|FAILED) =+", said)
    return "failed" if line is None else line[1].lower()


def _last_words(said: str, result: str) -> str:
    """Why a test failed, or why it skipped itself; empty for one that passed."""
    if result == "passed":
        return ""
    if result == "skipped":
        words = re.findall(r"SKIPPING TEST: ([^\n]*)", said)
    else:
        words = re.findall(r'### Test "[^"]*" failed at [^\n]*\n([^\n]*)', said)
    return words[0].strip()[:200] if words else "it did not end in time, or crashed"


# --- judging -----------------------------------------------------------------------------------


def reasons(suite: str) -> dict[str, str]:
    """Why tests of a suite do not pass."""
    known = tomllib.loads(KNOWN.read_text())
    return dict(known[suite].get("reasons", {}))


def left_out(suite: str) -> dict[str, str]:
    """Tests that are not run, and why."""
    known = tomllib.loads(KNOWN.read_text())
    return dict(known[suite].get("left_out", {}))


def surprises(outcomes: Sequence[Outcome]) -> list[str]:
    """What `known.toml` does not say, or says wrongly."""
    found = []
    for outcome in outcomes:
        reason = reasons(outcome.suite).get(outcome.test)
        name = f"{outcome.suite}: {outcome.test}"
        if outcome.result == "failed" and reason is None:
            found.append(f"{name} failed: {outcome.detail}")
        elif outcome.result == "passed" and reason is not None:
            found.append(f"{name} passes now; take it off tests/compat/known.toml")
    return found


def page(outcomes: Sequence[Outcome]) -> str:
    """docs/compatibility.md."""
    lines = [
        "# Compatibility",
        "",
        "<!-- Made by `make compat`. Do not edit. -->",
        "",
        "What the test suites of Kafka clients say about the broker: kafka-python's integration",
        "tests and librdkafka's C tests, run by `make compat` against a fresh broker with two log",
        "folders and " + ", ".join(f"`{key}={value}`" for key, value in SETTINGS.items()) + ".",
        "A test that fails without a reason here fails the target, and so does a reason for a test",
        "that passes. aiokafka's source package holds no tests.",
        "",
        "| suite | passed | skipped by itself | failed |",
        "| --- | --- | --- | --- |",
    ]
    for suite in SUITES:
        mine = [outcome for outcome in outcomes if outcome.suite == suite]
        counts = [sum(o.result == r for o in mine) for r in ("passed", "skipped", "failed")]
        lines.append(f"| {suite} | " + " | ".join(map(str, counts)) + " |")
    for suite in SUITES:
        why = reasons(suite)
        mine = [o for o in outcomes if o.suite == suite and o.result != "passed"]
        lines += ["", f"## {suite}", "", "| test | result | reason |", "| --- | --- | --- |"]
        lines += [
            f"| {o.test} | {o.result} | {why.get(o.test, o.detail or 'says nothing')} |"
            for o in mine
        ]
        unrun = left_out(suite)
        if unrun:
            lines += ["", "Not run:", "", "| test | reason |", "| --- | --- |"]
            lines += [f"| {test} | {reason} |" for test, reason in unrun.items()]
    return "\n".join((*lines, *worth_knowing(), *by_hand())) + "\n"


def worth_knowing() -> Sequence[str]:
    """The part of the page that no run finds out."""
    lines: Sequence[str] = tomllib.loads(KNOWN.read_text())["worth_knowing"]["lines"]
    return ("", "## Worth knowing", "", *(f"* {line}" for line in lines))


def by_hand() -> Sequence[str]:
    """The part of the page on clients that nobody runs again by themselves."""
    rows: Mapping[str, str] = tomllib.loads(KNOWN.read_text())["by_hand"]
    return (
        "",
        "## By hand",
        "",
        "Run once against a broker with `num.partitions=2` and"
        " `group.initial.rebalance.delay.ms=0`,",
        "and found to work. A topic is cold when its local copies are gone, and S3 or a folder has",
        "its segments.",
        "",
        "| client | what it did |",
        "| --- | --- |",
        *(f"| {client} | {did} |" for client, did in rows.items()),
    )


def start_broker(folder: Path, scenario: str = DEFAULT_SCENARIO) -> BrokerProcess:
    """A broker as the suites want it, not started yet."""
    settings = {
        **SETTINGS,
        **SCENARIOS[scenario],
        "log.dirs": f"{folder / 'data1'},{folder / 'data2'}",
    }
    broker = BrokerProcess(folder, settings=settings)
    # kafka-python looks whether it is said to be set.
    broker.settings["advertised.listeners"] = f"PLAINTEXT://{broker.bootstrap}"
    return broker


def _print(console: Console, outcome: Outcome) -> None:
    colour = {"passed": "green", "failed": "red"}.get(outcome.result, "yellow")
    console.print(
        f"[{colour}]{outcome.result:8}[/] {outcome.suite} {outcome.test} {outcome.seconds:.1f} s"
        + (f"  {outcome.detail}" if outcome.detail else "")
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--suite", choices=SUITES, action="append", help="[both]")
    parser.add_argument("--only", action="append", default=[], help="a test of librdkafka's")
    parser.add_argument("--fast", action="store_true", help="without tests that wait for time-outs")
    parser.add_argument("--write-page", action="store_true", help="write docs/compatibility.md")
    options = parser.parse_args(arguments)
    console = Console(highlight=False, soft_wrap=True)
    outcomes: list[Outcome] = []
    for suite in options.suite or SUITES:
        sources(suite)
        for scenario in SCENARIOS if suite == "librdkafka" else (DEFAULT_SCENARIO,):
            with (
                tempfile.TemporaryDirectory(prefix="strandline-compat-") as name,
                start_broker(Path(name), scenario) as broker,
            ):
                runs = (
                    run_kafka_python(broker, without=SLOW_KAFKA_PYTHON if options.fast else ())
                    if suite == "kafka-python"
                    else run_librdkafka(
                        broker,
                        scenario=scenario,
                        left_out=list(left_out(suite)),
                        only=options.only,
                    )
                )
                for outcome in runs:
                    outcomes.append(outcome)
                    _print(console, outcome)
                assert broker.running, broker.log_text()[-4000:]
                if "Traceback" in broker.log_text():
                    console.print(broker.log_text()[-6000:], markup=False)
                    raise AssertionError("the broker logged a traceback")
    if options.write_page and not options.only and not options.fast and not options.suite:
        PAGE.write_text(page(outcomes))
    found = surprises(outcomes)
    for surprise in found:
        console.print(f"[red]{surprise}")
    passed = sum(outcome.result == "passed" for outcome in outcomes)
    console.print(f"{passed} of {len(outcomes)} passed; {len(found)} surprises")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
