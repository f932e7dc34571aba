"""SIGTERM before a broker is ready, or while a command waits: it ends soon, and what it left counts
for no more than what a kill leaves.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.broker import REPOSITORY, BrokerProcess, eventually
from tests.support.forked import PYTHON_PATH, STRANDLINE, start_process
from tests.support.wire import WireClient
from tests.system.calls import append, batch, create_topic, read_all

pytestmark = pytest.mark.slow

TOPIC = "recovered"


# A log that is recovered for ever.
SLOW_RECOVERY = """
import sys, threading
from strandline.broker.cli import main
from strandline.storage.local.log.log import LocalLog

def recover(*_, **__):
    print("recovering", file=sys.stderr, flush=True)
    threading.Event().wait()

LocalLog.open = recover
sys.exit(main())
"""


def test_a_signal_ends_a_start_that_still_recovers_and_the_next_one_recovers_all(
    tmp_path: Path,
) -> None:
    with BrokerProcess(tmp_path) as broker:
        with WireClient(broker.port) as client:
            create_topic(client, TOPIC)
            append(client, TOPIC, batch(value=b"before"))
        broker.kill()
        broker.program = (sys.executable, "-c", SLOW_RECOVERY)
        broker.begin()
        eventually(lambda: "recovering" in broker.log_text())
        assert broker.stop() == 0
        assert "stopping before the start is over" in broker.log_text()
        assert "Traceback" not in broker.log_text()
        broker.program = BrokerProcess.program
        broker.start()
        with WireClient(broker.port) as client:
            assert [record.value for record in read_all(client, TOPIC)] == [b"before"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("serve", "--set", "log.dirs=data"), 0, "stopping before the start is over"),
        (
            ("restore", "--set", "log.dirs=data"),
            143,
            "run the same command again before a broker starts",
        ),
        (("archive", "verify", "--remote", "s3://away/archive"), 143, "strandline: interrupted"),
    ],
    ids=["serve", "restore", "archive verify"],
)
def test_a_signal_ends_what_waits_for_a_store_that_does_not_answer(
    words: tuple[str, ...], code: int, said: str, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as store:
        endpoint = f"http://127.0.0.1:{store.getsockname()[1]}"
        command = [*STRANDLINE, *words]
        if words[0] == "archive":
            command += ["--endpoint-url", endpoint, "--region", "us-east-1"]
        else:
            for setting in (
                "listeners=PLAINTEXT://127.0.0.1:0",
                "remote.log.storage.system.enable=true",
                "strandline.remote.url=s3://away/archive",
                f"strandline.remote.s3.endpoint.url={endpoint}",
                "strandline.remote.s3.region=us-east-1",
            ):
                command += ["--set", setting]
        process = start_process(
            command,
            folder=tmp_path,
            environment={
                **os.environ,
                **PYTHON_PATH,
                "AWS_ACCESS_KEY_ID": "test",
                "AWS_SECRET_ACCESS_KEY": "test",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        with store.accept()[0]:
            process.send_signal(signal.SIGTERM)
            _, told = process.communicate(timeout=60)
    assert process.returncode == code, told
    assert said in told
    assert "Traceback" not in told


# As where a store hangs under requests that are made side by side.
HANGING_THREAD = """
import os, signal, sys, threading
from concurrent.futures import ThreadPoolExecutor
from strandline.broker.commands import sigterm

sigterm.LEAVE_S = 0.05
with sigterm.ended_by_sigterm(lambda: print("how to go on", file=sys.stderr)):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(threading.Event().wait)
        os.kill(os.getpid(), signal.SIGTERM)
"""


def test_a_command_whose_threads_hang_ends_all_the_same() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", HANGING_THREAD],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / ".namespace")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (143, "how to go on\n")
