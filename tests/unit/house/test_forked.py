"""A forked `strandline` is as real a process as another."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from strandline.storage.crash_points import ENVIRONMENT_VARIABLE
from tests.support.broker import BrokerProcess, eventually
from tests.support.forked import PYTHON_PATH, STRANDLINE, ForkedProcess, run_process, start_process

pytestmark = pytest.mark.slow

TIMEOUT_S = 120
ADDRESSES = 1 << 45


def ended(*words: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_process(
        [*STRANDLINE, *words], folder=folder, timeout_s=TIMEOUT_S, environment=environment
    )


def started(folder: Path, environment: Mapping[str, str]) -> subprocess.Popen[str] | ForkedProcess:
    with open(os.devnull, "wb") as nothing:
        return start_process(
            [*STRANDLINE, "--version"],
            folder=folder,
            environment={**os.environ, **PYTHON_PATH, **environment},
            stdout=nothing,
            stderr=nothing,
        )


def test_it_says_and_ends_as_one_that_was_really_started(tmp_path: Path) -> None:
    for words in (["--version"], ["topic"], ["serve", "--set", "no=1"], ["docs", "no/page"]):
        real = subprocess.run(
            [*STRANDLINE, *words],
            cwd=tmp_path,
            env={**os.environ, **PYTHON_PATH},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        forked = ended(*words, folder=tmp_path)
        assert (forked.returncode, forked.stdout, forked.stderr) == (
            real.returncode,
            real.stdout,
            real.stderr,
        )


def test_it_has_a_folder_and_signals_of_its_own_and_nothing_of_the_others_is_open(
    tmp_path: Path,
) -> None:
    with BrokerProcess(tmp_path / "one") as one, BrokerProcess(tmp_path / "other") as other:
        assert isinstance(one._process, ForkedProcess)
        assert os.getpgid(one.pid) == os.getpgid(0)
        assert Path(f"/proc/{one.pid}/cwd").readlink() == one.folder
        opened = [set(each.open_files()) - {os.devnull} for each in (one, other)]
        shared = opened[0] & opened[1]
        assert not [name for name in shared if name.startswith(("socket:", "pipe:", "/"))]
        one.kill()
        assert one.wait_for_exit(0) == -signal.SIGKILL
        assert other.running
        assert other.stop() == 0
        for each in (one, other):
            assert not Path(f"/proc/{each.pid}").exists()


def test_limits_and_crash_points_are_those_of_the_tests_that_start_it(tmp_path: Path) -> None:
    crash = {ENVIRONMENT_VARIABLE: "nowhere"}
    wrong = ended("restore", "--remote", "file:///no", folder=tmp_path, **crash)
    assert f"{ENVIRONMENT_VARIABLE}='nowhere'" in wrong.stderr
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, before[1]))
    try:
        with BrokerProcess(tmp_path) as broker:
            assert isinstance(broker._process, ForkedProcess)
            assert f" {ADDRESSES} " in Path(f"/proc/{broker.pid}/limits").read_text()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("name", ["PYTHONVERBOSE", "LD_PRELOAD", "TZ", "LC_ALL"])
def test_what_only_a_start_can_read_has_a_real_start(tmp_path: Path, name: str) -> None:
    process = started(tmp_path, {name: ""})
    assert isinstance(process, subprocess.Popen)
    assert process.wait(TIMEOUT_S) == 0


def test_server_and_brokers_end_with_the_tests_whatever_they_die_of(tmp_path: Path) -> None:
    program = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from tests.support.broker import BrokerProcess\n"
        "from tests.support.broker import children_of\n"
        "import os\n"
        "broker = BrokerProcess(Path(sys.argv[1])).start()\n"
        "print([broker.pid, *(child for child, _ in children_of(os.getpid()))], flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, tmp_path],
        env={**os.environ, "PYTHONPATH": f"{PYTHON_PATH['PYTHONPATH']}:{Path.cwd()}"},
        stdout=subprocess.PIPE,
        text=True,
    ) as tests:
        assert tests.stdout is not None
        broker, server = json.loads(tests.stdout.readline())
        tests.kill()
    eventually(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in (broker, server)))
