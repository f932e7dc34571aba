"""scripts/python, scripts/java and scripts/commands on machines that have this and not that.

Each command that such a machine has is a file of a folder, which is the whole path.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
# Of any system.
BASICS = ("bash", "env", "head", "id", "sed", "touch")


class Machine:
    """The folder of its commands, and its environment."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.environment = {"PATH": str(folder)}
        for name in BASICS:
            found = shutil.which(name)
            assert found is not None, name
            (folder / name).symlink_to(found)

    def has(self, name: str, script: str) -> None:
        """A command whose every call runs `script`."""
        path = self._folder / name
        path.unlink(missing_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def has_python(self, name: str, version: str, *, ensurepip: Path | None = None) -> None:
        """A Python of that version; it can make environments once the file `ensurepip` is there."""
        program = (
            f"import sys, os; sys.version_info = ({', '.join(version.split('.'))}); "
            f"there = os.path.exists({str(ensurepip or self._folder)!r}); "
            "sys.modules.update(ensurepip=sys if there else None); exec(sys.argv[1])"
        )
        self.has(name, f'exec {sys.executable} -c "{program}" "$2"')

    def has_apt(self, install: str) -> None:
        """A root's apt, which knows of no package before it is told to look.

        Then it runs `install`, with the package in $package.
        """
        self.has("id", "echo 0")
        updated = self._folder / "updated"
        self.has(
            "apt-get",
            f'if [ "$1" = update ]; then touch {updated}; exit; fi\n'
            f"[ -e {updated} ] || exit 1\n"
            f'for package in "$@"; do true; done\n{install}',
        )

    def run(self, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(REPOSITORY / "scripts" / script), *arguments],
            env={**self.environment, "LC_ALL": os.environ.get("LC_ALL", "C.UTF-8")},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def pythons_of_the_project() -> list[str]:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    language = "Programming Language :: Python :: "
    return [
        one.removeprefix(language) for one in project["classifiers"] if one.startswith(language)
    ]


@pytest.mark.parametrize("version", pythons_of_the_project())
def test_any_python_that_the_project_names_will_do(machine: Machine, version: str) -> None:
    machine.has_python("python3", version)
    assert machine.run("python").stdout == "python3\n"


@pytest.mark.parametrize("version", ["3.10", "3.15"])
def test_another_python_is_taken_where_python3_is_too_old_or_too_new(
    machine: Machine, version: str
) -> None:
    machine.has_python("python3", version)
    machine.has_python("python3.12", "3.12")
    assert machine.run("python").stdout == "python3.12\n"


def test_a_python_that_makes_environments_comes_before_one_that_does_not(machine: Machine) -> None:
    machine.has_python("python3", "3.13", ensurepip=Path("/nowhere"))
    machine.has_python("python3.11", "3.11")
    assert machine.run("python").stdout == "python3.11\n"


def test_debians_package_for_environments_is_that_of_the_python_that_was_found(
    machine: Machine, tmp_path: Path
) -> None:
    installed = tmp_path / "installed"
    machine.has_python("python3", "3.14", ensurepip=installed)
    machine.has_apt(f'[ "$package" = python3.14-venv ] && touch {installed}')
    finished = machine.run("python")
    assert finished.stdout == "python3\n", finished.stderr
    assert "installing Debian's python3.14-venv" in finished.stderr


def test_a_user_who_may_install_nothing_is_told_which_package_is_missing(machine: Machine) -> None:
    machine.has("id", "echo 1000")
    machine.has("apt-get", "exit 1")
    machine.has_python("python3", "3.13", ensurepip=Path("/nowhere"))
    finished = machine.run("python")
    assert finished.returncode == 1
    assert "apt-get install python3.13-venv" in finished.stderr


def test_a_machine_without_a_python_that_fits_is_told_what_to_do(machine: Machine) -> None:
    machine.has_python("python3", "3.9")
    finished = machine.run("python")
    assert finished.returncode == 1
    assert "needs Python 3.11, 3.12, 3.13 or 3.14" in finished.stderr
    assert "apt-get install python3 python3-venv" in finished.stderr
    assert "PYTHON=/path/to/python3 make" in finished.stderr


def test_a_python_that_was_named_is_taken_or_refused_and_no_other(machine: Machine) -> None:
    machine.has_python("python3", "3.13")
    machine.has_python("mine", "3.12")
    machine.environment["PYTHON"] = "mine"
    assert machine.run("python").stdout == "mine\n"
    machine.environment["PYTHON"] = "other"
    finished = machine.run("python")
    assert finished.returncode == 1
    assert "found none as other" in finished.stderr


@pytest.mark.parametrize("version", ["17.0.15", "21.0.13", "25.0.5"])
def test_the_java_that_is_there_will_do_from_17_on(machine: Machine, version: str) -> None:
    machine.has("java", f"echo 'openjdk version \"{version}\" 2026-01-01' >&2")
    finished = machine.run("java")
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "", "")


@pytest.mark.parametrize("version", ["17", "21", "25"])
def test_the_first_java_for_spark_that_the_system_has_is_installed(
    machine: Machine, tmp_path: Path, version: str
) -> None:
    """Debian 12 has 17, Debian 13 has 21 and 25."""
    package = f"openjdk-{version}-jre-headless"
    says_version = f"echo 'openjdk version \\\"{version}.0.1\\\"' >&2"
    machine.has_apt(
        f'[ "$package" = {package} ] || exit 1\n[ "$3" = --simulate ] && exit\n'
        f'printf "#!/bin/sh\\n{says_version}\\n" > {tmp_path / "java"}\n'
        f"/bin/chmod +x {tmp_path / 'java'}"
    )
    finished = machine.run("java")
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == f"installing {package} for Spark\n"


def test_commands_of_the_pages_that_a_machine_lacks_are_installed(
    machine: Machine, tmp_path: Path
) -> None:
    installed = tmp_path / "installed"
    machine.has("curl", "exit")
    machine.has_apt(f'[ "$package" = procps ] && touch {installed}')
    finished = machine.run("commands", "curl", "free")
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == "installing procps, whose commands the tests need\n"
    assert installed.exists()


def test_a_compiler_is_installed_with_the_headers_that_it_needs(machine: Machine) -> None:
    machine.has_apt("exit")
    finished = machine.run("commands", "cc")
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == "installing gcc libc6-dev, whose commands the tests need\n"


def test_a_machine_that_has_the_commands_of_the_pages_installs_nothing(machine: Machine) -> None:
    machine.has("curl", "exit")
    assert machine.run("commands", "curl").stdout == ""


def test_a_user_who_may_install_nothing_is_told_which_commands_the_pages_need(
    machine: Machine,
) -> None:
    machine.has("id", "echo 1000")
    machine.has("apt-get", "exit 1")
    finished = machine.run("commands", "curl", "free")
    assert finished.returncode == 1
    assert "apt-get install curl procps" in finished.stderr
