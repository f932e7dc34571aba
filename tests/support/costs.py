"""A plug-in that tells what each test file and the dearest tests cost: see `make test-costs`.

Counted are seconds of a processor, not of a clock: those of the tests' own process, and those of
all processes that it has started, which may still run. So a busy machine tells nearly the same.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

FILES_TOLD = 60
TESTS_TOLD = 150
COLLECTION = "(collection, in all workers)"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# On the controller those of all workers: by file, and by test.
_seconds: Counter[str] = Counter()
_by_test: Counter[str] = Counter()


def _descendants(pid: str) -> Iterator[str]:
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in children.read_text().split():
                yield child
                yield from _descendants(child)


def _used_s(pid: str) -> float:
    """Of a process and of those that it has waited for; 0 if it has ended."""
    try:
        # Behind the name: the times are the fields 14 to 17.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / _TICKS_PER_S


def _all_used_s() -> float:
    return sum(map(_used_s, ["self", *_descendants("self")]))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    before_s = _all_used_s()
    result = yield
    used_s = _all_used_s() - before_s
    _seconds[item.nodeid.split("::", 1)[0]] += used_s
    _by_test[item.nodeid] += used_s
    return result


def pytest_collection_finish() -> None:
    _seconds[COLLECTION] += _used_s("self")


def pytest_sessionfinish(session: pytest.Session) -> None:
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["costs"] = dict(_seconds)
        output["costs_by_test"] = dict(_by_test.most_common(TESTS_TOLD))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    output = getattr(node, "workeroutput", {})
    _seconds.update(output.get("costs", {}))
    _by_test.update(output.get("costs_by_test", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section(f"{sum(_seconds.values()) / 60:.1f} minutes of a processor")
    for file, seconds in _seconds.most_common(FILES_TOLD):
        terminalreporter.write_line(f"{seconds:7.1f} s {file}")
    terminalreporter.section("the dearest tests")
    for test, seconds in _by_test.most_common(TESTS_TOLD):
        terminalreporter.write_line(f"{seconds:7.1f} s {test}")
