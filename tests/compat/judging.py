"""What becomes of tests that others wrote, and why: docs/reference/compatibility.md.

Every test has a result: passed, skipped by itself, or failed. `known.toml` says why those that do
not pass do not. A failure without a reason there fails the run, and so does a reason for a test
that passes: what works is taken off the list. Tests that wait for nothing where they would have to
may do either; they are listed there as races.

A run need not be of every suite. The page keeps what it says of the others.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.broker import REPOSITORY

KNOWN = Path(__file__).with_name("known.toml")
PAGE = REPOSITORY / "docs" / "reference" / "compatibility.md"
# As the page tells of them.
SUITES = ("kafka-python", "librdkafka", "kgo", "kafkajs")


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


def reasons(suite: str) -> dict[str, str]:
    """Why tests of a suite do not pass."""
    known = tomllib.loads(KNOWN.read_text())
    return dict(known[suite].get("reasons", {}))


def races(suite: str) -> dict[str, str]:
    """Tests of a suite that pass or fail by chance, and why."""
    known = tomllib.loads(KNOWN.read_text())
    return dict(known[suite].get("races", {}))


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
        is_race = outcome.test in races(outcome.suite)
        if outcome.result == "failed" and reason is None and not is_race:
            found.append(f"{name} failed: {outcome.detail}")
        elif outcome.result == "passed" and reason is not None:
            found.append(f"{name} passes now; take it off tests/compat/known.toml")
    return found


def page(
    outcomes: Sequence[Outcome],
    settings: Mapping[str, str],
    before: str,
    versions: Mapping[str, str],
) -> str:
    """docs/reference/compatibility.md; `before` is what it said, `versions` are those that ran."""
    by_suite = {
        suite: [outcome for outcome in outcomes if outcome.suite == suite] for suite in SUITES
    }
    rows = [
        _row(suite, versions[suite], mine) if mine else _row_before(before, suite)
        for suite, mine in by_suite.items()
    ]
    lines = [
        "# Compatibility",
        "",
        "<!-- Made by `make compat`. Do not edit. -->",
        "",
        "For everyone who asks whether a client works. These are the results of the test suites",
        "of Kafka clients against the broker: kafka-python's",
        "integration tests and librdkafka's C tests. `make compat` runs them against a fresh",
        "cluster of three brokers (`strandline serve --brokers 3`) with two log folders each and "
        + ", ".join(f"`{key}={value}`" for key, value in settings.items())
        + ".",
        "With `SUITES=folder` it also runs franz-go's tests of kgo and KafkaJS's suites, from",
        "source trees in that folder; KafkaJS's brokers have the ports and the settings of its own",
        "ones. A test that fails without a reason here fails the target, and so does a",
        "reason for a test that passes. aiokafka's source package holds no tests.",
        "",
        "Tests of TLS and of logins have brokers with both; brackets say how librdkafka's come",
        "there. kgo's come over TLS, with a certificate of their own. Topics that a suite creates",
        "with three replicas have them; kgo's all do. We change some of librdkafka's tests before",
        "we build them. 0126, 0135 and 0142 lose their parts on share groups (KIP-932). 0081",
        "alters `log.segment.delete.delay.ms` instead of a property of Kerberos. 0097 expects of",
        "an unknown authority what OpenSSL says, alert 48, and not Java's 42.",
        "",
        "| suite | version | passed | skipped by itself | failed |",
        "| --- | --- | --- | --- | --- |",
        *(row for row in rows if row),
    ]
    for suite, mine in by_suite.items():
        lines += _section(suite, mine) if mine else _section_before(before, suite)
    return "\n".join((*lines, *notes(), *by_hand())) + "\n"


def _row(suite: str, version: str, mine: Sequence[Outcome]) -> str:
    counts = [sum(o.result == r for o in mine) for r in ("passed", "skipped", "failed")]
    return f"| {suite} | {version} | " + " | ".join(map(str, counts)) + " |"


def _row_before(page_before: str, suite: str) -> str:
    found = re.search(rf"^\| {re.escape(suite)} \|.*$", page_before, re.MULTILINE)
    return found[0] if found else ""


def _section(suite: str, mine: Sequence[Outcome]) -> list[str]:
    by_chance, unrun = races(suite), left_out(suite)
    why = by_chance | reasons(suite)
    lines = ["", f"## {suite}", "", "| test | result | reason |", "| --- | --- | --- |"]
    lines += [
        f"| {_cell(o.test)} | {o.result} | {_cell(why.get(o.test, o.detail or 'none given'))} |"
        for o in mine
        if o.result != "passed"
    ]
    if by_chance:
        lines += ["", "By chance:", "", "| test | why it may fail |", "| --- | --- |"]
        lines += [f"| {_cell(test)} | {_cell(reason)} |" for test, reason in by_chance.items()]
    if unrun:
        lines += ["", "Not run:", "", "| test | reason |", "| --- | --- |"]
        lines += [f"| {_cell(test)} | {_cell(reason)} |" for test, reason in unrun.items()]
    return lines


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def _section_before(page_before: str, suite: str) -> list[str]:
    for section in page_before.split("\n## ")[1:]:
        if section.partition("\n")[0] == suite:
            return ["", *f"## {section}".rstrip("\n").split("\n")]
    return []


def notes() -> Sequence[str]:
    """What strikes those who run more than this, and is no fault."""
    rows: Mapping[str, str] = tomllib.loads(KNOWN.read_text())["notes"]
    lines = (f"* {what} {why}." for what, why in rows.items())
    return ("", "## Not faults", "", *lines)


def by_hand() -> Sequence[str]:
    """The part of the page on clients that nobody runs again by themselves."""
    rows: Mapping[str, str] = tomllib.loads(KNOWN.read_text())["by_hand"]
    return (
        "",
        "## By hand",
        "",
        "We ran these clients once against a broker with `num.partitions=2` and"
        " `group.initial.rebalance.delay.ms=0`,",
        "and they worked. A topic is cold when its local copies are gone, and S3 or a folder has",
        "its segments.",
        "",
        "| client | what it did |",
        "| --- | --- |",
        *(f"| {client} | {did} |" for client, did in rows.items()),
    )
