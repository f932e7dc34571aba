"""`make compat`: kafka-python's integration tests and librdkafka's C tests against our broker.

    python -m tests.compat.suites [--suite NAME] [--sources FOLDER] [--write-page] [--fast]

With `--sources` also franz-go's and KafkaJS's: see `source_suites`. What the results mean, and the
page that they become: see `judging`.

All run against three brokers of one cluster, or as many as `--brokers` says.

librdkafka's tests run in processes of their own, one for each number, as one failed assertion ends
the runner; a few at once, and one that fails beside others once more alone. Those that want TLS or
a login get brokers with both: see `librdkafka_ways`. So do kafka-python's, by the plugin
`kafka_python_brokers`.
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
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from confluent_kafka import Producer
from rich.console import Console

from tests.compat import librdkafka_ways
from tests.compat.judging import PAGE, Outcome, left_out, page, surprises, version_of
from tests.compat.librdkafka_ways import PLAINTEXT, Way
from tests.compat.source_suites import SOURCE_SUITES
from tests.support.broker import REPOSITORY, BrokerProcess
from tests.support.brokers_process import BrokersProcess

SOURCES = Path(os.environ.get("STRANDLINE_COMPAT_FOLDER", REPOSITORY / "bench-data" / "compat"))
SUITES = ("kafka-python", "librdkafka")
# The release whose API versions we advertise; kafka-python's tests ask for it.
KAFKA_VERSION = "4.4.0"
PYTEST_SECONDS_MAX = 600
# 0113 takes the longest, nine minutes beside others.
TEST_SECONDS_MAX = 1000
# librdkafka's wait most of the time, for time-outs and for groups.
AT_ONCE = 4
# As 0005 calls its topic.
ORDER_TOPIC = "rdkafkatest_0005"
START_SECONDS_MAX = 60
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
# 0101 reads from the replica in its rack, which has the broker's id in its name (KIP-392).
RACKS = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}
# librdkafka's scenarios are brokers that are set up in different ways.
DEFAULT_SCENARIO = "default"
SCENARIOS: Mapping[str, Mapping[str, str]] = {
    DEFAULT_SCENARIO: {},
    "noautocreate": {"auto.create.topics.enable": "false"},
}

# These of librdkafka's call scripts of Kafka's: kafka/bin has stand-ins.
WANT_SCRIPTS = ("0045", "0052", "0077", "0098", "0109", "0115", "0119")

# As the suites expect a broker to be.
SETTINGS = {
    # Rules of the suites' own; what has none is open.
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    # The broker that kafka-python's tests assign partitions to.
    "node.id": "0",
    "num.partitions": "4",
    # Without any, two consumers that begin together would see a rebalance that 0118 does not await.
    "group.initial.rebalance.delay.ms": "300",
    "group.min.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": "5",
    # 0077 gives compaction 20 seconds, on a machine that runs other tests too.
    "log.cleaner.backoff.ms": "1000",
}


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
    """Its integration tests but those of TLS and SASL."""
    names = ("admin", "consumer", "producer")
    choice = ["-k", " and ".join(f"not {name}" for name in without)] if without else []
    found = {"KAFKA_URI": f"PLAINTEXT://{broker.bootstrap}"}
    return _run_kafka_python(broker.folder, names, choice, found)


def run_kafka_python_secured(folder: Path) -> Iterator[Outcome]:
    """Those of TLS and SASL, which start brokers of their own."""
    return _run_kafka_python(folder, ("ssl", "sasl"), ["-p", "tests.compat.kafka_python_brokers"])


def _run_kafka_python(
    work: Path, names: Sequence[str], options: Sequence[str], found: Mapping[str, str] | None = None
) -> Iterator[Outcome]:
    folder = sources("kafka-python")
    report = work / f"kafka-python-{names[0]}.xml"
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"),
        *("-p", "tests.support.kafka_python"),
        *("--override-ini", "addopts=", "-W", "ignore", "--show-capture=no", "--tb=line"),
        *("--timeout", "60", f"--junitxml={report}", f"--rootdir={folder}"),
        *options,
        *(f"test/integration/test_{name}_integration.py" for name in names),
    ]
    environment = {
        "KAFKA_VERSION": KAFKA_VERSION,
        # Looked at, not used: nothing is started from it.
        "KAFKA_ROOT": str(folder),
        # Theirs first; ours for the plugin.
        "PYTHONPATH": f"{folder}{os.pathsep}{REPOSITORY}",
        **(found or {}),
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
    broker: BrokerProcess,
    *,
    scenario: str = DEFAULT_SCENARIO,
    left_out: Sequence[str] = (),
    only: Sequence[str] = (),
    way: Way = PLAINTEXT,
) -> Iterator[Outcome]:
    """Those of its tests that want such a broker, each in a process of its own."""
    folder = sources("librdkafka")
    work = broker.folder / "librdkafka"
    work.mkdir(exist_ok=True)
    # As in their own set-up: some start JVMs, and have 20 seconds for all.
    client = {"test.timeout.multiplier": "2"}
    client |= way.client or {"bootstrap.servers": broker.bootstrap}
    (work / "test.conf").write_text("".join(f"{key}={text}\n" for key, text in client.items()))
    # 0098 makes its Java program, which is made already, and starts it from there.
    (work / "Makefile").write_text("java:\n")
    if not (work / "java").exists():
        (work / "java").symlink_to(folder / "tests" / "java")
        # 0053 reads the schema of the statistics beside its own folder.
        (work.parent / "src").symlink_to(folder / "src")
        (work / "fixtures").symlink_to(folder / "tests" / "fixtures")
    scripts = {
        "KAFKA_PATH": str(REPOSITORY / "tests" / "compat" / "kafka"),
        "BROKERS": broker.bootstrap,
        "STRANDLINE_PYTHON": sys.executable,
        "STRANDLINE_JAVA_LIBRARIES": str(REPOSITORY / "bench-data" / "kafka" / "lib"),
    }
    wanted = [
        test
        for test in librdkafka_tests(folder, scenario)
        if test not in left_out
        and (not only or test in only)
        and (not way.tests or test in way.tests)
    ]

    by_number: dict[str, list[str]] = {}
    for test in wanted:
        by_number.setdefault(test[:4], []).append(test)

    def run(tests: Sequence[str]) -> list[Outcome]:
        wants_scripts = tests[0].startswith(WANT_SCRIPTS)
        environment = {**way.environment, **(scripts if wants_scripts else {})}
        return _run_number(folder, work, tests, scenario, environment)

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
    folder: Path, work: Path, tests: Sequence[str], scenario: str, environment: Mapping[str, str]
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
                **environment,
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
    _make_topic_of_order(broker)
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


def _make_topic_of_order(broker: BrokerProcess) -> None:
    """Returns when 0005's partition is served, which wants its records in the order it sent them.

    It is not idempotent and has any number of requests in flight. If the leader of a topic that is
    being made refuses the first ones, as Kafka's also do, librdkafka sends them again behind those
    that it took (its INTRODUCTION.md says so of all retries). 0007 makes a topic on the way.
    """
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(ORDER_TOPIC, b"first", partition=0)
    assert producer.flush(START_SECONDS_MAX) == 0


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


def start_broker(
    folder: Path, scenario: str = DEFAULT_SCENARIO, *, brokers: int = 1
) -> BrokerProcess:
    """A broker as the suites want it, or several, not started yet."""
    settings = {
        **SETTINGS,
        **SCENARIOS[scenario],
        "log.dirs": f"{folder / 'data1'},{folder / 'data2'}",
    }
    if brokers > 1:
        racks = ",".join(f"RACK{number}" for number in range(brokers))
        settings |= {**RACKS, "strandline.brokers.racks": racks}
    broker = (
        BrokerProcess(folder, settings=settings)
        if brokers == 1
        else BrokersProcess(folder, settings=settings, brokers=brokers)
    )
    # kafka-python looks whether it is said to be set.
    broker.settings["advertised.listeners"] = f"PLAINTEXT://{broker.bootstrap}"
    return broker


def _print(console: Console, outcome: Outcome) -> None:
    colour = {"passed": "green", "failed": "red"}.get(outcome.result, "yellow")
    console.print(
        f"[{colour}]{outcome.result:8}[/] {outcome.suite} {outcome.test} {outcome.seconds:.1f} s"
        + (f"  {outcome.detail}" if outcome.detail else "")
    )


def _runs(broker: BrokerProcess, suite: str, scenario: str, options: Options) -> Iterator[Outcome]:
    if suite == "kafka-python":
        return run_kafka_python(broker, without=SLOW_KAFKA_PYTHON if options.fast else ())
    unwanted = list(left_out(suite))
    if suite == "librdkafka":
        unwanted += {test for _, tests in librdkafka_ways.TESTS.values() for test in tests}
        return run_librdkafka(broker, scenario=scenario, left_out=unwanted, only=options.only)
    return SOURCE_SUITES[suite].run(broker, _folder(suite, options), unwanted)


def _folder(suite: str, options: Options) -> Path:
    """Where its sources are: ours, or the user's."""
    if suite in SUITES:
        return sources(suite)
    assert options.sources is not None, suite
    return (options.sources / SOURCE_SUITES[suite].folder).absolute()


def _outcomes_of(suite: str, options: Options, console: Console) -> Iterator[Outcome]:
    """Of every scenario and way of the suite, each with a fresh broker."""
    if suite in SUITES:
        sources(suite)
    for scenario in SCENARIOS if suite == "librdkafka" else (DEFAULT_SCENARIO,):
        with tempfile.TemporaryDirectory(prefix="strandline-compat-") as name:
            broker = start_broker(Path(name), scenario, brokers=options.brokers)
            if suite in SOURCE_SUITES:
                broker.settings.update(SOURCE_SUITES[suite].settings(broker))
            with broker:
                for outcome in _runs(broker, suite, scenario, options):
                    _print(console, outcome)
                    yield outcome
                _check(broker, console)
    if suite == "kafka-python":
        with tempfile.TemporaryDirectory(prefix="strandline-compat-") as name:
            for outcome in run_kafka_python_secured(Path(name)):
                _print(console, outcome)
                yield outcome
    for way in librdkafka_ways.TESTS if suite == "librdkafka" else ():
        with tempfile.TemporaryDirectory(prefix="strandline-compat-") as name:
            broker = start_broker(Path(name), brokers=options.brokers)
            with librdkafka_ways.secured(way, broker) as found:
                for outcome in run_librdkafka(broker, only=options.only, way=found):
                    named = replace(outcome, test=found.named(outcome.test))
                    _print(console, named)
                    yield named
                _check(broker, console)


def _check(broker: BrokerProcess, console: Console) -> None:
    """It is still there, and fell over nothing."""
    assert broker.running, broker.log_text()[-4000:]
    if "Traceback" in broker.log_text():
        console.print(broker.log_text()[-6000:], markup=False)
        raise AssertionError("the broker logged a traceback")


def wanted_suites(options: Options) -> list[str]:
    """Those that are named, or ours and those that the folder has."""
    if options.suite:
        return list(options.suite)
    if options.sources is None:
        return list(SUITES)
    found = [name for name, s in SOURCE_SUITES.items() if (options.sources / s.folder).is_dir()]
    if not found:
        folders = " or ".join(s.folder for s in SOURCE_SUITES.values())
        raise SystemExit(f"{options.sources} has no folder {folders}")
    return [*SUITES, *found]


class Options(argparse.Namespace):
    """What the command line says."""

    suite: list[str] | None
    only: list[str]
    fast: bool
    sources: Path | None
    write_page: bool
    brokers: int


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = [*SUITES, *SOURCE_SUITES]
    parser.add_argument("--suite", choices=names, action="append", help="[all that there are]")
    parser.add_argument("--only", action="append", default=[], help="a test of librdkafka's")
    parser.add_argument("--fast", action="store_true", help="without tests that wait for time-outs")
    parser.add_argument("--sources", type=Path, help="a folder with franz-go, kafkajs or both")
    parser.add_argument(
        "--write-page", action="store_true", help="write docs/reference/compatibility.md"
    )
    parser.add_argument("--brokers", type=int, default=3, help="brokers of the cluster [3]")
    options = parser.parse_args(arguments, namespace=Options())
    console = Console(highlight=False, soft_wrap=True)
    outcomes: list[Outcome] = []
    suites = wanted_suites(options)
    for suite in suites:
        outcomes += _outcomes_of(suite, options, console)
    if options.write_page and not options.only and not options.fast:
        versions = {suite: version_of(suite, _folder(suite, options)) for suite in suites}
        PAGE.write_text(page(outcomes, SETTINGS, PAGE.read_text(), versions))
    found = surprises(outcomes)
    for surprise in found:
        console.print(f"[red]{surprise}")
    passed = sum(outcome.result == "passed" for outcome in outcomes)
    console.print(f"{passed} of {len(outcomes)} passed; {len(found)} surprises")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
