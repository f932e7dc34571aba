"""What deploy/ starts is a command that the broker takes, with properties that it knows."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from strandline.broker.cli import make_parser
from strandline.broker.config.loading import load_config

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
CONTAINERFILE = (DEPLOY / "container" / "Containerfile").read_text()
UNIT = (DEPLOY / "systemd" / "strandline.service").read_text()
STATEFUL_SET = (DEPLOY / "helm" / "strandline" / "templates" / "statefulset.yaml").read_text()


def of_unit(key: str) -> str:
    """The one value of a key."""
    (value,) = re.findall(rf"^{key}=(.*)$", UNIT, re.MULTILINE)
    return str(value)


def of_container(instruction: str) -> list[str]:
    (words,) = re.findall(rf"^{instruction} (\[.*\])$", CONTAINERFILE, re.MULTILINE)
    return list(json.loads(words))


def of_chart() -> list[str]:
    (words,) = re.findall(r"^ +args: (\[.*\])$", STATEFUL_SET, re.MULTILINE)
    return list(yaml.safe_load(words))


@pytest.mark.parametrize(
    "words",
    [shlex.split(of_unit("ExecStart"))[1:], of_container("CMD"), of_chart()],
    ids=["systemd", "container", "helm"],
)
def test_the_broker_takes_the_command(words: list[str]) -> None:
    options = make_parser("serve").parse_args(words)
    assert load_config(None, options.overrides).node_id == 1


def test_the_container_runs_the_command_that_the_wheel_installs() -> None:
    assert of_container("ENTRYPOINT") == ["strandline"]
    (user,) = re.findall(r"^USER (\d+)$", CONTAINERFILE, re.MULTILINE)
    assert f"useradd --system --uid {user} " in CONTAINERFILE
    assert f"runAsUser: {user}" in STATEFUL_SET


def test_systemd_gives_the_broker_its_folder_and_time_to_stop() -> None:
    folder = f"%S/{of_unit('StateDirectory')}"
    assert f"--set log.dirs={folder}" in of_unit("ExecStart")
    assert (of_unit("Type"), of_unit("TimeoutStopSec")) == ("notify", "2min")
    name = of_unit("LoadCredential").partition(":")[0]
    assert f"--config %d/{name}" in of_unit("ExecStart")
