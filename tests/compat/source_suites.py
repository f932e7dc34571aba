"""franz-go's kgo tests and KafkaJS's suites, from source trees that the user names.

    make compat SUITES=folder        folder/franz-go, folder/kafkajs: either or both

No registry of packages has KafkaJS's tests, and we bring none of either. What they need is there
already: Go, and Node.js with what KafkaJS lists for its development in `node_modules`.

Only what speaks to a broker is run: a test file counts if it calls one of the helpers that make a
client. kgo's tests find the broker by their environment; they come over TLS, with a certificate of
their own, and those of logins over a listener of SASL. KafkaJS's expect three brokers at ports of
its own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.compat.judging import Outcome
from tests.compat.secured import AUTHORITY, CLIENT, plain_users, tls_settings
from tests.support.broker import BrokerProcess
from tests.support.users import set_passwords

# A run that hangs, and what a busy machine makes of one that does not.
SUITE_SECONDS_MAX = 1800
# Half a million by itself; a chain of groups reads each of them many times.
KGO_RECORDS = 20_000
KGO_HELPERS = re.compile(r"\b(newTestClient|tmpTopic\w*|adm)\(")
# Clients that dial by themselves cannot have TLS.
KGO_DIALLERS = ("TestIssue769",)
KGO_TEST = re.compile(r"^func (Test\w+)\(", re.MULTILINE)
KAFKAJS_HELPERS = re.compile(
    r"\b(plainTextBrokers|connectionOpts|createConnectionPool|createCluster)\("
)
# Of the first broker; each next one has three more.
KAFKAJS_PORTS: Mapping[str, int] = {"PLAINTEXT": 9092, "SSL": 9093, "SASL_SSL": 9094}
KAFKAJS_USERS = {"test": "testtest", "alice": "alicealice", "bob": "bobbob"}
KAFKAJS_SCRAM = (
    ("testscram", "SCRAM-SHA-256", "testtestscram=256"),
    ("testscram", "SCRAM-SHA-512", "testtestscram=512"),
)
SCRAM_USER, SCRAM_PASSWORD = "alice", "alice-secret"
# Between the file and the name of a test of KafkaJS.
SEPARATOR = ": "


def _run(command: Sequence[str | Path], folder: Path, settings: Mapping[str, str]) -> str:
    """What it prints, whatever it ends with."""
    try:
        ended = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **settings},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=SUITE_SECONDS_MAX,
            check=False,
        )
    except FileNotFoundError as error:
        raise RuntimeError(
            f"{command[0]} is not there, and the tests in {folder} need it"
        ) from error
    return ended.stdout


# --- kgo -------------------------------------------------------------------------------------


def kgo_broker(broker: BrokerProcess) -> Mapping[str, str]:
    """Settings of its broker, which gets a listener of TLS and one of SCRAM besides."""
    broker.add_listener("TLS", "SSL")
    broker.add_listener("SCRAM", "SASL_PLAINTEXT")
    return {
        **tls_settings(broker.folder / "tls"),
        "ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
    }


def run_kgo(broker: BrokerProcess, folder: Path, left_out: Sequence[str]) -> Iterator[Outcome]:
    """Those of its tests whose files make clients of a real broker."""
    set_passwords(broker, [(SCRAM_USER, "SCRAM-SHA-256", SCRAM_PASSWORD)])
    wanted = [
        test
        for path in sorted((folder / "pkg" / "kgo").glob("*_test.go"))
        if KGO_HELPERS.search(source := path.read_text())
        for test in KGO_TEST.findall(source)
        if test not in left_out
    ]
    listeners = dict(one.split("://") for one in broker.settings["listeners"].split(","))
    own = broker.folder / "tls" / CLIENT
    encrypted = {
        "KGO_SEEDS": listeners["TLS"],
        "KGO_TEST_TLS": f"ca:{own.with_name(AUTHORITY)},cert:{own},key:{own}",
        "KGO_TEST_SCRAM_SEEDS": listeners["SCRAM"],
        "KGO_TEST_SCRAM": f"{SCRAM_USER}:{SCRAM_PASSWORD}",
    }
    yield from _run_kgo(folder, [t for t in wanted if t not in KGO_DIALLERS], encrypted)
    plain = {"KGO_SEEDS": broker.bootstrap}
    yield from _run_kgo(folder, [t for t in wanted if t in KGO_DIALLERS], plain)


def _run_kgo(folder: Path, wanted: Sequence[str], reached: Mapping[str, str]) -> Iterator[Outcome]:
    command = ["go", "test", "-json", "-count=1", f"-timeout={SUITE_SECONDS_MAX}s"]
    said = _run(
        [*command, "-run", f"^({'|'.join(wanted)})$", "./pkg/kgo"],
        folder,
        {
            **reached,
            "KGO_TEST_RF": "3",
            "KGO_TEST_RECORDS": str(KGO_RECORDS),
            "KGO_LOG_LEVEL": "none",
        },
    )
    outcomes = list(kgo_outcomes(said.splitlines()))
    missing = set(wanted) - {outcome.test.partition("/")[0] for outcome in outcomes}
    if missing:
        raise RuntimeError(f"kgo's tests did not run to their end:\n{said[-3000:]}")
    yield from outcomes


def kgo_outcomes(lines: Sequence[str]) -> Iterator[Outcome]:
    """Of the events of `go test -json`; a test with parts is told by its parts."""
    results = {"pass": "passed", "skip": "skipped", "fail": "failed"}
    said: dict[str, list[str]] = {}
    ended: dict[str, tuple[str, float]] = {}
    for line in lines:
        if not line.startswith("{"):
            continue
        event = json.loads(line)
        test, action = event.get("Test"), event["Action"]
        if test is None:
            continue
        if action == "output":
            said.setdefault(test, []).append(event["Output"].strip())
        elif action in results:
            ended[test] = results[action], event.get("Elapsed", 0.0)
    parents = {test.rpartition("/")[0] for test in ended}
    for test, (result, seconds) in ended.items():
        if test in parents and result != "failed":
            continue
        if test in parents and any(
            part.startswith(f"{test}/") and ended[part][0] == "failed" for part in ended
        ):
            continue
        # What a clean-up says comes from Go's panic.go.
        words = [text for text in said.get(test, ()) if re.match(r"\w+_test\.go:\d+: ", text)]
        yield Outcome(
            suite="kgo",
            test=test,
            result=result,
            detail="" if result == "passed" or not words else _short(words[-1]),
            seconds=seconds,
        )


# --- KafkaJS ---------------------------------------------------------------------------------


def kafkajs_broker(broker: BrokerProcess) -> Mapping[str, str]:
    """Settings of the first of three, as theirs are; the others have the ports behind."""
    addresses = ",".join(f"{name}://localhost:{port}" for name, port in KAFKAJS_PORTS.items())
    broker.port = KAFKAJS_PORTS["PLAINTEXT"]
    return {
        "listeners": addresses,
        "advertised.listeners": addresses,
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "num.partitions": "2",
        "group.initial.rebalance.delay.ms": "0",
        **tls_settings(broker.folder / "tls"),
        "listener.name.sasl_ssl.plain.sasl.jaas.config": plain_users(KAFKAJS_USERS),
    }


def run_kafkajs(broker: BrokerProcess, folder: Path, left_out: Sequence[str]) -> Iterator[Outcome]:
    """Those of its tests whose files make clients of a real broker; `left_out` are patterns."""
    set_passwords(broker, KAFKAJS_SCRAM)
    jest = folder / "node_modules" / ".bin" / "jest"
    if not jest.exists():
        raise RuntimeError(f"{jest} is missing: npm install --ignore-scripts in {folder}")
    files = [
        str(path.relative_to(folder))
        for path in sorted((folder / "src").rglob("*.spec.js"))
        if KAFKAJS_HELPERS.search(path.read_text())
    ]
    report = broker.folder / "kafkajs.json"
    unwanted = re.compile("|".join(left_out)) if left_out else re.compile(r"(?!)")
    command: list[str | Path] = [jest, "--ci", "--forceExit", "--maxWorkers=4", "--no-watchman"]
    command += ["--json", f"--outputFile={report}", "--reporters=default"]
    command += ["--testNamePattern", f"^(?!.*({unwanted.pattern})).*$"]
    said = _run(
        [*command, "--runTestsByPath", *files], folder, {"NODE_ENV": "test", "KAFKA_VERSION": "2.4"}
    )
    if not report.exists():
        raise RuntimeError(f"KafkaJS's tests did not run:\n{said[-3000:]}")
    outcomes = kafkajs_outcomes(json.loads(report.read_text()), folder, unwanted.search)
    yield from by_name(outcomes)


def kafkajs_outcomes(
    report: Mapping[str, object], folder: Path, is_left_out: Callable[[str], object]
) -> Iterator[Outcome]:
    """Of what `jest --json` writes."""
    results = {"passed": "passed", "failed": "failed", "pending": "skipped", "todo": "skipped"}
    files = report["testResults"]
    assert isinstance(files, list)
    for file in files:
        place = str(Path(file["name"]).relative_to(folder / "src")).removesuffix(".spec.js")
        place = place.replace("__tests__/", "")
        if not file["assertionResults"]:
            yield Outcome(
                suite="kafkajs", test=place, result="failed", detail=_short(file["message"])
            )
        for found in file["assertionResults"]:
            name = " ".join([*found["ancestorTitles"], found["title"]])
            if is_left_out(name):
                continue
            yield Outcome(
                suite="kafkajs",
                test=f"{place}{SEPARATOR}{name}",
                result=results[found["status"]],
                detail=_short(" ".join(found["failureMessages"] or ())),
                seconds=(found.get("duration") or 0) / 1000,
            )


def by_name(outcomes: Iterable[Outcome]) -> Sequence[Outcome]:
    """One of each name: some tests are made in loops. It failed if any of them did."""
    found: dict[str, Outcome] = {}
    for outcome in outcomes:
        known = found.setdefault(outcome.test, outcome)
        if known.result != "failed" and outcome.result != "passed":
            found[outcome.test] = outcome
    return tuple(found.values())


def _short(text: str) -> str:
    """One line of a table."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return " ".join(plain.replace("|", " ").split())[:200]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSuite:
    """Where it lies in the user's folder, how it runs, and what its broker needs besides."""

    folder: str
    run: Callable[[BrokerProcess, Path, Sequence[str]], Iterator[Outcome]]
    settings: Callable[[BrokerProcess], Mapping[str, str]]


SOURCE_SUITES: Mapping[str, SourceSuite] = {
    "kgo": SourceSuite(folder="franz-go", run=run_kgo, settings=kgo_broker),
    "kafkajs": SourceSuite(folder="kafkajs", run=run_kafkajs, settings=kafkajs_broker),
}
