"""What a user installs: sdist → wheel → fresh environment → run it, and import it from the zip.

The fresh environment gets the wheel alone by pip; the dependencies are lent from the environment
of the tests by a path file, so that nothing is downloaded. A path file does not run the path files
of the folder it names, so the editable install that lies there stays invisible.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tests.support.first_minutes import run, walk_first_minutes

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("broker", "storage", "retention", "spark_lake")
JVM = Path("spark_lake/jvm")
pytestmark = pytest.mark.slow


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("strandline", *(part for part in parts if part != "__init__")))


def source_modules() -> set[str]:
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return {module_name(path) for path in files} | {"strandline"}


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-m", "build", "--no-isolation", "--sdist", "-o", out, ROOT, cwd=out)
    (archive,) = out.glob("*.tar.gz")
    return archive


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the unpacked sdist, as every distributor does, not from the working tree."""
    out = tmp_path_factory.mktemp("wheel")
    shutil.unpack_archive(sdist, out)
    (unpacked,) = (path for path in out.iterdir() if path.is_dir())
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "-o", out, unpacked, cwd=out)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def fresh_environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("environment") / "venv"
    venv.create(folder, symlinks=True, with_pip=False)
    python = folder / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=folder)
    purelib = run(
        python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder
    )
    lent = Path(purelib.strip()) / "lent-dependencies.pth"
    lent.write_text(sysconfig.get_path("purelib") + "\n")
    return folder


def test_sdist_holds_what_is_needed_to_build_test_and_read(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {member.split("/", 1)[1] for member in archive.getnames() if "/" in member}
    wanted = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "broker/cli.py"}
    wanted |= {
        "docs/explanation/architecture.md",
        "localstack/compose.yaml",
        "tests/test_packaging.py",
    }
    assert wanted - names == set()
    assert [member for member in names if ".venv" in member or "__pycache__" in member] == []


def test_wheel_holds_every_module_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    modules = {
        ".".join(part for part in Path(entry).with_suffix("").parts if part != "__init__")
        for entry in names
        if entry.endswith(".py")
    }
    assert modules == source_modules() | {"strandline.__main__", "pyspark_strandline"}
    others = {entry for entry in names if not entry.endswith(".py") and ".dist-info/" not in entry}
    # The reader inside Spark's JVM, once `make` built it; not what it is built of.
    built = {f"strandline/{path.relative_to(ROOT)}" for path in (ROOT / JVM).glob("*.jar")}
    pages = {f"strandline/{path.relative_to(ROOT)}" for path in (ROOT / "docs").rglob("*.md")}
    assert others == {"strandline/py.typed"} | built | pages
    assert any(entry.endswith(".dist-info/licenses/LICENSE") for entry in names)


def test_the_installed_command_runs(fresh_environment: Path) -> None:
    command = fresh_environment / "bin" / "strandline"
    help_text = run(command, "--help", cwd=fresh_environment)
    assert "serve" in help_text
    assert "archive" in help_text


def test_the_installed_command_has_every_page_that_messages_name(fresh_environment: Path) -> None:
    command = fresh_environment / "bin" / "strandline"
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    named = {
        page for path in files for page in re.findall(r"\bdocs/([\w/-]+)\.md", path.read_text())
    }
    listed = run(command, "docs", cwd=fresh_environment)
    assert {page for page in named if f"{page}.md " not in listed} == set()
    assert named
    for page in ("docs/explanation/architecture.md", "architecture"):
        shown = run(command, "docs", page, cwd=fresh_environment)
        assert shown == (ROOT / "docs" / "explanation" / "architecture.md").read_text()


def test_the_first_ten_minutes_work_from_the_wheel_alone(
    fresh_environment: Path, tmp_path: Path
) -> None:
    archive = walk_first_minutes((str(fresh_environment / "bin" / "strandline"),), tmp_path)
    assert archived_records(fresh_environment, archive) == 1


SCAN = """
import sys
from strandline.spark_lake import scan
print(scan(sys.argv[1], "orders").read_all().num_rows)
"""


def archived_records(environment: Path, archive: str) -> int:
    python = environment / "bin" / "python"
    return int(run(python, "-c", SCAN, archive, cwd=environment))


def test_the_installed_package_runs_as_a_module(fresh_environment: Path) -> None:
    python = fresh_environment / "bin" / "python"
    assert "serve" in run(python, "-m", "strandline", "--help", cwd=fresh_environment)
    where = run(
        python, "-c", "import strandline; print(strandline.__file__)", cwd=fresh_environment
    )
    assert Path(where.strip()).is_relative_to(fresh_environment)


IMPORT_FROM_ZIP = """
import importlib, pkgutil, sys
import strandline
wheel = sys.argv[1]
assert strandline.__file__.startswith(wheel), strandline.__file__
for module in pkgutil.walk_packages(strandline.__path__, "strandline."):
    if not module.name.endswith(".__main__"):
        print(importlib.import_module(module.name).__name__)
"""


@pytest.mark.heavy
def test_every_module_imports_from_the_zip(wheel: Path, tmp_path: Path) -> None:
    """Spark ships the wheel to its executors as it is (`--py-files`), so it must work unpacked."""
    path = os.pathsep.join([str(wheel), sysconfig.get_path("purelib")])
    # -S: without it the editable install's path file would put the working tree on the path.
    output = run(sys.executable, "-S", "-c", IMPORT_FROM_ZIP, wheel, cwd=tmp_path, PYTHONPATH=path)
    assert set(output.split()) == source_modules() - {"strandline"}


REFUSE_EXTRAS = """
import importlib, pkgutil, sys
LAZY = {
    # Commands that need an extra load them.
    "strandline.broker.tools.client.acls",
    "strandline.broker.tools.client.cluster",
    "strandline.broker.commands.lake_plan",
    "strandline.broker.commands.left_open",
    "strandline.broker.commands.lost_broker",
    "strandline.broker.tools.nodes.moves",
    "strandline.broker.tools.nodes.quorum",
    "strandline.broker.tools.nodes.requests",
    "strandline.broker.tools.nodes.view",
    # Stores in PKCS12.
    "strandline.broker.tls.pkcs12",
    "strandline.storage.records.kernels.compaction",
    "strandline.storage.records.kernels.parts",
    "strandline.storage.records.kernels.batches",
    "strandline.storage.records.kernels.key_filter",
    "strandline.storage.records.kernels.survey",
}
EXTRAS = {"numba", "numpy", "pyarrow", "pandas", "pyspark", "s3fs", "fsspec", "aiobotocore"}
EXTRAS.update({"confluent_kafka", "joserfc", "cryptography"})

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in EXTRAS:
            raise ImportError(f"{name} belongs to an extra")

sys.meta_path.insert(0, Refuse())
for package in ("strandline.broker", "strandline.storage", "strandline.retention"):
    parent = importlib.import_module(package)
    for module in pkgutil.walk_packages(parent.__path__, package + "."):
        if module.name not in LAZY:
            importlib.import_module(module.name)
"""


def test_the_broker_needs_no_extra(fresh_environment: Path) -> None:
    """The wheel without an extra must give a broker; the lake's libraries are 800 MB."""
    run(fresh_environment / "bin" / "python", "-c", REFUSE_EXTRAS, cwd=fresh_environment)


@pytest.mark.parametrize("locale", ["C", "de_DE.ISO-8859-1"])
def test_the_editable_install_is_found_in_any_folder_and_locale(
    locale: str, tmp_path: Path
) -> None:
    """The second one is there on no machine of ours: then Python goes by C."""
    folder = tmp_path / "für alle"
    packages = folder / ".namespace"
    (packages / "strandline").mkdir(parents=True)
    (packages / "strandline" / "__init__.py").write_text("__version__ = 'found'")
    venv.create(folder / ".venv", with_pip=False, symlinks=True)
    python = folder / ".venv" / "bin" / "python"
    (site,) = (folder / ".venv" / "lib").glob("python*/site-packages")
    (site / "_strandline.pth").write_text(str(packages), encoding="utf-8")
    run(ROOT / "scripts" / "relative-pth", python, cwd=tmp_path, LC_ALL=locale)
    code = "import strandline; print(strandline.__version__)"
    assert run(python, "-c", code, cwd=tmp_path, LC_ALL=locale) == "found\n"
