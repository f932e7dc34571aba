"""The set-up of the page on security, run as it stands there."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.broker import BrokerProcess
from tests.support.page_blocks import ROOT
from tests.support.ports import ReservedPort

pytestmark = pytest.mark.slow


def test_the_set_up_of_the_page_lets_its_client_in_and_keeps_a_record(tmp_path: Path) -> None:
    page = (ROOT / "docs/how-to/secure.md").read_text()
    section = page.split("## One set-up", 1)[1].split("\n## ", 1)[0]
    blocks = re.findall(r"```(\w+)\n(.*?)```", section, re.DOTALL)
    local, clients = ReservedPort(), ReservedPort()
    audit = tmp_path / "audit.json"
    values = {
        "0.0.0.0:9093": f"127.0.0.1:{clients.number}",
        "kafka.example.org:9093": f"127.0.0.1:{clients.number}",
        "127.0.0.1:9092": f"127.0.0.1:{local.number}",
        "/etc/strandline/users.properties": str(tmp_path / "users.properties"),
        "/var/log/strandline/audit.json": str(audit),
    }

    def filled(text: str) -> str:
        for name, value in values.items():
            text = text.replace(name, value)
        return text

    server, users, client, commands = [filled(text) for _, text in blocks]
    assert [language for language, _ in blocks] == ["properties", "text", "text", "bash"]
    (tmp_path / "users.properties").write_text(users)
    (tmp_path / "client.properties").write_text(client)
    settings = dict(line.split("=", 1) for line in server.splitlines())
    with BrokerProcess(tmp_path / "broker", settings=settings) as broker:
        for line in commands.splitlines():
            text, _, command = line.rpartition(" | ")
            words = [sys.executable, "-m", "strandline", *shlex.split(command)[1:]]
            done = subprocess.run(
                words,
                cwd=tmp_path,
                input=text.removeprefix("echo ") + "\n",
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
        broker.stop()
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert {line["event"] for line in lines} == {"login", "change", "traffic"}
    assert {line["principal"] for line in lines} == {"User:alice"}
    assert "change-me" not in audit.read_text()
