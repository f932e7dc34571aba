"""Each way to install strandline without `make`, and the first ten minutes with what it installed.

`make check-installs` runs it: it downloads the broker's libraries, for every Python from 3.11 to
3.15 of this machine. It prints the seconds and megabytes of each.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.first_minutes import run, walk_first_minutes

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = ("3.11", "3.12", "3.13", "3.14", "3.15")


def pythons() -> Iterator[Path]:
    """Those on the path, and those that pyenv built."""
    for version in VERSIONS:
        found = shutil.which(f"python{version}")
        places = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"))
        for place in (*places, *filter(None, [found and Path(found)])):
            if subprocess.run([place, "-c", ""], check=False, capture_output=True).returncode == 0:
                yield place
                break


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `uvx` and `pipx`."""
    folder = tmp_path_factory.mktemp("installers")
    venv.create(folder, with_pip=True)
    wanted = ROOT / "requirements" / "installers.txt"
    run(folder / "bin" / "pip", "install", "--quiet", "-r", wanted, cwd=folder)
    return folder / "bin"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What git has, and nothing that `make` built."""
    folder = tmp_path_factory.mktemp("checkout")
    state = run("git", "stash", "create", cwd=ROOT).strip() or "HEAD"
    archive = folder / "tree.tar"
    run("git", "archive", "--output", archive, state, cwd=ROOT)
    shutil.unpack_archive(archive, folder)
    archive.unlink()
    return folder


def megabytes(folder: Path) -> int:
    return int(run("du", "-sm", folder, cwd=folder).split()[0])


def tell(way: str, python: Path, seconds: float, size_mb: int) -> None:
    print(f"\n{way:6} {python.name:12} {seconds:5.0f} s {size_mb:6} MB")


@pytest.mark.parametrize("python", [*pythons()], ids=lambda path: path.name)
@pytest.mark.parametrize("way", ["pip", "wheel"])
def test_pip_installs_a_checkout_and_a_wheel(
    way: str, python: Path, checkout: Path, tmp_path: Path
) -> None:
    what = checkout
    if way == "wheel":
        build = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, checkout)
        run(sys.executable, *build, cwd=tmp_path)
        (what,) = tmp_path.glob("strandline-*.whl")
    folder = tmp_path / "environment"
    run(python, "-m", "venv", folder, cwd=tmp_path)
    began = time.monotonic()
    run(folder / "bin" / "pip", "install", "--quiet", what, cwd=tmp_path)
    tell(way, python, time.monotonic() - began, megabytes(folder))
    walk_first_minutes((str(folder / "bin" / "strandline"),), tmp_path)


@pytest.mark.parametrize("python", [*pythons()], ids=lambda path: path.name)
def test_pipx_installs_a_checkout(
    python: Path, tools: Path, checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIPX_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIPX_BIN_DIR", str(tmp_path / "bin"))
    began = time.monotonic()
    run(tools / "pipx", "install", "--python", python, ".", cwd=checkout)
    tell("pipx", python, time.monotonic() - began, megabytes(tmp_path / "home"))
    walk_first_minutes((str(tmp_path / "bin" / "strandline"),), tmp_path)


@pytest.mark.parametrize("python", [*pythons()], ids=lambda path: path.name)
def test_uvx_runs_a_checkout(
    python: Path, tools: Path, checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    command = [str(tools / "uvx"), "--python", str(python), "--from", str(checkout)]
    began = time.monotonic()
    assert "strandline" in run(*command, "strandline", "--version", cwd=checkout)
    tell("uvx", python, time.monotonic() - began, megabytes(tmp_path / "cache"))
    walk_first_minutes((*command, "strandline"), tmp_path)
