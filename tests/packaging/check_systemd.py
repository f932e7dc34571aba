"""systemd's own opinion of the unit; `make check-packaging` runs it where systemd is installed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

UNIT = Path(__file__).resolve().parents[2] / "deploy" / "systemd" / "strandline.service"
DROP_IN = UNIT.with_name("tls.conf")
# Of 100. What is left is the network, which a broker needs.
EXPOSURE_MAX = 15


def analyze(folder: Path, *words: str) -> str:
    """What systemd-analyze says of the unit, with a program that this machine has."""
    unit = folder / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/strandline/bin/strandline", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", *words, str(unit)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_systemd_takes_the_unit_without_a_remark(tmp_path: Path) -> None:
    assert analyze(tmp_path, "verify", "--recursive-errors=one") == ""


def test_systemd_takes_the_drop_in_of_tls(tmp_path: Path) -> None:
    folder = tmp_path / f"{UNIT.name}.d"
    folder.mkdir()
    # A group that each machine has: systemd looks it up.
    text = DROP_IN.read_text()
    (folder / "tls.conf").write_text(text.replace("strandline-tls", "adm"))
    assert analyze(tmp_path, "verify", "--recursive-errors=one") == ""
    (folder / "tls.conf").write_text(text.replace("SupplementaryGroups", "SupplementaryGroup"))
    with pytest.raises(AssertionError, match="Unknown key 'SupplementaryGroup'"):
        analyze(tmp_path, "verify", "--recursive-errors=one")


def test_the_unit_exposes_little(tmp_path: Path) -> None:
    told = analyze(tmp_path, "security", "--offline=true", f"--threshold={EXPOSURE_MAX}")
    assert "Overall exposure level for strandline.service" in told
