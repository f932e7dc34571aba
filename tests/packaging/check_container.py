"""The container file, by hadolint; `make test-container` carries its steps out.

`make check-packaging` runs it; $STRANDLINE_PACKAGING is the folder of hadolint.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "deploy" / "container" / "Containerfile"
HADOLINT = Path(os.environ["STRANDLINE_PACKAGING"]).resolve() / "python" / "bin" / "hadolint"


def test_the_linter_has_no_remark() -> None:
    done = subprocess.run([HADOLINT, FILE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_linter_finds_what_is_wrong(tmp_path: Path) -> None:
    wrong = tmp_path / "Containerfile"
    wrong.write_text(FILE.read_text().replace("trixie-slim", "latest"))
    assert subprocess.run([HADOLINT, wrong], capture_output=True, check=False).returncode != 0


def test_the_builder_gets_what_the_wheel_is_built_from() -> None:
    ignored = FILE.with_name("Containerfile.dockerignore").read_text()
    taken = set(re.findall(r"^!(\S+)$", ignored, re.MULTILINE))
    packed = re.search(r"targets\.wheel\]\nonly-include = \[(.*?)\]", pyproject(), re.DOTALL)
    assert packed is not None
    wanted = {path.partition("/")[0] for path in re.findall(r'"([^"]+)"', packed[1])}
    assert wanted - taken == set()


def pyproject() -> str:
    return (ROOT / "pyproject.toml").read_text()
