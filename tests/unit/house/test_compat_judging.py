"""What is made of the results of test suites that others wrote."""

from __future__ import annotations

import json
from pathlib import Path

from tests.compat.judging import SUITES, Outcome, left_out, page, races, reasons, surprises
from tests.compat.source_suites import by_name, kafkajs_outcomes, kgo_outcomes
from tests.compat.suites import Options, wanted_suites


def kgo(test: str, result: str = "passed", detail: str = "") -> Outcome:
    return Outcome(suite="kgo", test=test, result=result, detail=detail)


def test_each_test_is_known_for_one_thing() -> None:
    for suite in SUITES:
        known = [*left_out(suite), *reasons(suite), *races(suite)]
        assert len(set(known)) == len(known), suite


def test_a_race_may_pass_or_fail() -> None:
    name = next(iter(races("kafkajs")))
    for result in ("passed", "failed"):
        assert surprises([Outcome(suite="kafkajs", test=name, result=result)]) == []


def test_a_failure_without_a_reason_is_a_surprise_and_so_is_a_reason_for_what_passes() -> None:
    known = next(iter(reasons("kgo")))
    passes = Outcome(suite="kgo", test=known, result="passed")
    assert surprises([kgo("TestNew", "failed", "why")]) == ["kgo: TestNew failed: why"]
    assert surprises([passes]) == [f"kgo: {known} passes now; take it off tests/compat/known.toml"]


def test_the_page_keeps_what_it_says_of_suites_that_did_not_run() -> None:
    first = page([kgo("TestA"), kgo("TestB", "skipped", "by itself")], {}, "", {"kgo": "1.2"})
    assert "| kgo | 1.2 | 1 | 1 | 0 |" in first
    assert "| TestB | skipped | by itself |" in first
    other = Outcome(suite="kafkajs", test="admin: x", result="passed")
    second = page([other], {}, first, {"kafkajs": "3"})
    assert "| kgo | 1.2 | 1 | 1 | 0 |" in second
    assert "| TestB | skipped | by itself |" in second
    assert "| kafkajs | 3 | 1 | 0 | 0 |" in second
    assert page([other], {}, second, {"kafkajs": "3"}) == second
    assert second.count("## kgo") == second.count("## By hand") == 1


def test_a_go_test_is_told_by_its_parts_or_by_itself_where_it_failed_outside_of_them() -> None:
    events = [
        ("output", "TestA", "    a_test.go:7: said | so\n"),
        ("fail", "TestA", ""),
        ("skip", "TestB", ""),
        ("pass", "TestC/one", ""),
        ("output", "TestC/two", "    c_test.go:9: no\n"),
        ("fail", "TestC/two", ""),
        ("fail", "TestC", ""),
        ("pass", "TestD/one", ""),
        ("pass", "TestD", ""),
    ]
    lines = ["not json"]
    lines += [json.dumps({"Action": a, "Test": t, "Output": o}) for a, t, o in events]
    lines.append(json.dumps({"Action": "fail"}))
    found = {outcome.test: (outcome.result, outcome.detail) for outcome in kgo_outcomes(lines)}
    assert found == {
        "TestA": ("failed", "a_test.go:7: said so"),
        "TestB": ("skipped", ""),
        "TestC/one": ("passed", ""),
        "TestC/two": ("failed", "c_test.go:9: no"),
        "TestD/one": ("passed", ""),
    }


def test_a_kafkajs_test_is_named_by_its_file_and_a_file_that_cannot_be_read_fails() -> None:
    def row(title: str, status: str, *messages: str) -> dict[str, object]:
        return {
            "ancestorTitles": ["Admin"],
            "title": title,
            "status": status,
            "failureMessages": messages,
        }

    report = {
        "testResults": [
            {
                "name": "/k/src/admin/__tests__/a.spec.js",
                "assertionResults": [
                    row("works", "passed"),
                    row("fails", "failed", "\x1b[1mwhy\n so"),
                    row("is for TLS", "pending"),
                ],
            },
            {"name": "/k/src/b.spec.js", "assertionResults": [], "message": "no such module"},
        ]
    }
    found = [
        (outcome.test, outcome.result, outcome.detail)
        for outcome in kafkajs_outcomes(report, Path("/k"), lambda name: "TLS" in name)
    ]
    assert found == [
        ("admin/a: Admin works", "passed", ""),
        ("admin/a: Admin fails", "failed", "why so"),
        ("b", "failed", "no such module"),
    ]


def test_tests_of_one_name_are_one_that_failed_if_any_did() -> None:
    outcomes = [kgo("a"), kgo("b"), kgo("a", "failed", "why"), kgo("a"), kgo("b", "skipped")]
    assert [(o.test, o.result, o.detail) for o in by_name(outcomes)] == [
        ("a", "failed", "why"),
        ("b", "skipped", ""),
    ]


def test_only_the_source_trees_that_the_folder_has_are_run(tmp_path: Path) -> None:
    (tmp_path / "kafkajs").mkdir()
    ours = ["kafka-python", "librdkafka"]
    assert wanted_suites(Options(suite=None, sources=None)) == ours
    assert wanted_suites(Options(suite=None, sources=tmp_path)) == [*ours, "kafkajs"]
    assert wanted_suites(Options(suite=["kgo"], sources=tmp_path)) == ["kgo"]
