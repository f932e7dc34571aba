"""The set-up of the page on security, run as it stands there, with a client of each kind."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.broker import BrokerProcess
from tests.support.page_blocks import ROOT, Block, blocks_of
from tests.support.page_world import wanted_environment
from tests.support.ports import ReservedPort

pytestmark = [pytest.mark.slow, pytest.mark.clients]

PAGE = ROOT / "docs" / "how-to" / "secure.md"
LANGUAGES = ["bash", "properties", "text", "text", "text", "bash", "python", "python", "python"]


@dataclass(frozen=True, slots=True)
class Reader:
    """Does what the page says, in a folder of their own, with other addresses."""

    folder: Path
    values: Mapping[str, str]

    def filled(self, block: Block) -> str:
        text = block.text
        for name, value in self.values.items():
            text = text.replace(name, value)
        return text

    def write(self, name: str, block: Block) -> None:
        (self.folder / name).write_text(self.filled(block))

    def run(self, text: str, language: str) -> subprocess.CompletedProcess[str]:
        program = ["bash", "-euo", "pipefail"] if language == "bash" else [sys.executable]
        return subprocess.run(
            [*program, "-c", text],
            cwd=self.folder,
            env=wanted_environment("", "", self.folder),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def follow(self, block: Block) -> str:
        """What the block prints."""
        done = self.run(self.filled(block), block.language)
        assert done.returncode == 0, f"{block.place}\n{done.stdout}\n{done.stderr}"
        return done.stdout


def test_the_set_up_of_the_page_lets_its_clients_in_and_keeps_a_record(tmp_path: Path) -> None:
    section = PAGE.read_text().split("\n## Passwords", 1)[0].count("\n")
    blocks = [block for block in blocks_of(PAGE) if block.line_number < section]
    assert [block.language for block in blocks] == LANGUAGES
    certificates, server, users, admin, alice, commands, *clients = blocks
    port = ReservedPort()
    audit = tmp_path / "audit.json"
    values = {
        "0.0.0.0:9093": f"127.0.0.1:{port.number}",
        "kafka.example.org:9093": f"127.0.0.1:{port.number}",
        "DNS:kafka.example.org": "IP:127.0.0.1",
        "/etc/strandline/tls/broker.pem": str(tmp_path / "broker.pem"),
        "/etc/strandline/users.properties": str(tmp_path / "users.properties"),
        "/var/log/strandline/audit.json": str(audit),
    }
    reader = Reader(tmp_path, values)
    reader.follow(certificates)
    for name, block in (("users", users), ("admin", admin), ("alice", alice)):
        reader.write(f"{name}.properties", block)
    settings = dict(line.split("=", 1) for line in reader.filled(server).splitlines())
    with BrokerProcess(tmp_path / "broker", settings=settings) as broker:
        reader.follow(commands)
        librdkafka, kafka_python, aiokafka = clients
        reader.follow(librdkafka)
        assert reader.follow(kafka_python) == "b'hello'\n"
        reader.follow(aiokafka)
        place = f"--bootstrap-server 127.0.0.1:{port.number} --command-config alice.properties"
        denied = reader.run(f"strandline topic delete orders --yes {place}", "bash")
        assert "authoriz" in denied.stderr.lower(), denied.stderr
        broker.stop()
        assert "change-me" not in broker.log_text()
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert {line["event"] for line in lines} == {"login", "denied", "change", "traffic"}
    assert {line["principal"] for line in lines} == {"User:admin", "User:alice", "User:bob"}
    assert "change-me" not in audit.read_text()
