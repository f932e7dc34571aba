"""The rules of the house that a machine can hold, each as one test.

One owner per outside thing (disk order, time, tasks, the S3 library), packages wired in every place
that must know them, locks that match what they lock. What documents say is held against the code in
test_documents.py.

A remark that comes up twice in review becomes a rule here.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from strandline.storage import crash_points
from strandline.storage.crash_points import CRASH_POINTS
from tests.support.schedule import LONGEST

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("broker", "storage", "retention", "spark_lake")
# Folders that hold Python but are no packages of the product.
NO_PACKAGES = ("localstack", "docs", "tests", "bench", "scripts")

ROOM_FILES_MAX = 16

# What may be imported inside a function, and why.
LATE_IMPORTS = {
    r"(boto3|botocore|urllib3)(\..*)?": "0.26 s; only S3 needs them",
    r"(joserfc|urllib\.request|http\.client|ssl)(\..*)?": "20 ms each; only providers of tokens",
    r"strandline\.broker\.security\.(oauth|token_source)": "10 ms; only OAUTHBEARER needs them",
    r"strandline\.broker\.handlers\.audit\.(changes|creations|traffic)": "few keep a record",
    r"numpy": "0.26 s; only compiled kernels need it",
    r"(pyarrow|pyspark|py4j|fsspec|fastavro|google\.protobuf)(\..*)?": "extras of the lake: 1 s",
    r"(confluent_kafka|strandline\.broker\.tools\.client\.(cluster|acls))(\..*)?": "extra",
    r"strandline\.broker\.tools\.nodes\.(view|quorum|requests|moves)": "with that extra",
    r"(cramjam|lz4\.frame|zstandard|re2)": "2 ms each; few brokers need one of them at once",
    r"strandline\.broker\.tls\.(renewal|context|stores)": "5 ms; only who has TLS needs it",
    r"strandline\.broker\.handlers\.forwarding\..*": "only with controllers elsewhere",
    r"strandline\.broker\.tls\.pkcs12": "30 ms, with cryptography; only PKCS12 needs it",
    r"multiprocessing\.connection": "4 ms; only a broker with children, or a child, needs it",
    r"strandline\.broker\.(server|config)\..*": "0.2 s; `serve` and `restore` need the broker",
    r"strandline\.broker\.handlers\.authorization\..*": "only a broker with an authorizer",
    r"strandline\.broker\.commands\..*": "40 to 130 ms; a command loads itself alone",
    r"strandline\.broker\.tools\.commands\..*": "30 ms; `serve` needs none of it",
    r"strandline\.storage\.(local\.inspect|tiering\.audit)(\..*)?": "see commands",
    r"strandline\.storage\.remote\.(open_store|manifest\.cluster_info)": "see commands",
    r"strandline\.storage\.records\.kernels(\..*)?": "0.3 s, with numba",
    r"strandline\.storage\.remote\.s3\.store": "6 ms; only S3 needs it",
    r"strandline\.spark_lake\..*": "kernels with numba, and extras of the lake",
}


def product_files() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def python_files() -> list[Path]:
    folders = ("tests", "bench", "demo", "localstack", "scripts")
    others = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return product_files() + [path for path in others if ".venv" not in path.parts]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All of its syntax: half the rules look at it, and a walk costs more than the parser."""
    return tuple(ast.walk(parsed(path)))


@cache
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def dotted(node: ast.expr) -> str:
    """`a.b.c` of an attribute chain; a part that is no plain name is written as `?`."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return "?"


def calls(path: Path) -> Iterator[tuple[int, str]]:
    for node in nodes(path):
        if isinstance(node, ast.Call):
            yield node.lineno, dotted(node.func)


def imports(path: Path) -> Iterator[tuple[int, str]]:
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module


def callers_outside(owners: tuple[str, ...], pattern: str) -> list[str]:
    return [
        f"{name(path)}:{line} calls {call}"
        for path in product_files()
        if name(path) not in owners
        for line, call in calls(path)
        if re.fullmatch(pattern, call)
    ]


def importers_outside(owners: tuple[str, ...], pattern: str) -> list[str]:
    return [
        f"{name(path)}:{line} imports {module}"
        for path in product_files()
        if not name(path).startswith(owners)
        for line, module in imports(path)
        if re.fullmatch(pattern, module)
    ]


def modules_of(node: ast.stmt) -> list[str]:
    """The modules that an import may name: `from a import b` is one of `a`, or of `a.b`."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom) or node.module is None:
        return []
    parts = [alias.name for alias in node.names]
    is_package = (ROOT / node.module.removeprefix("strandline.").replace(".", "/")).is_dir()
    return [f"{node.module}.{part}" for part in parts] if is_package else [node.module]


# --- one owner per outside thing -----------------------------------------------------------------


def test_only_storage_files_syncs_renames_and_removes() -> None:
    calls_of_the_owner = (
        r"os\.(fsync|fdatasync|replace|rename|renames|unlink|remove|link)"
        r"|shutil\.(rmtree|move)"
        r"|(?!files\.)(.*)\.(unlink|rename)"
    )
    assert callers_outside(("storage/files.py",), calls_of_the_owner) == []


def test_what_a_request_can_cause_is_said_by_a_quiet_log() -> None:
    """A client that repeats it would fill the disk. These say something once, or once a pause."""
    seldom = (
        "broker/network/cold_scheduling.py",
        "broker/network/server.py",
    )
    loud = callers_outside(seldom, r"log\.(warning|error|exception|critical)")
    assert [one for one in loud if one.startswith(("broker/handlers/", "broker/network/"))] == []


def test_only_the_owner_of_chance_draws() -> None:
    """What is drawn elsewhere differs from run to run of a simulation; the lake is in none."""
    draws = r"random\.\w+|uuid\.uuid[14]"
    drawing = callers_outside(("storage/entropy.py",), draws)
    assert [one for one in drawing if not one.startswith("spark_lake/")] == []


def test_only_the_clock_asks_what_time_it_is() -> None:
    """Turning a given time into text is no question; `time.sleep` waits by a clock nobody moves."""
    asks = (
        r"time\.(time|monotonic|perf_counter|process_time|thread_time)(_ns)?|time\.(sleep|ctime)"
        r"|(.*\.)?(datetime|date)\.(now|utcnow|today)"
    )
    assert callers_outside(("storage/clock.py",), asks) == []
    names_from_time = [
        f"{name(path)}:{node.lineno}"
        for path in product_files()
        for node in nodes(path)
        if isinstance(node, ast.ImportFrom) and node.module == "time"
    ]
    assert names_from_time == []


def test_only_the_composition_root_starts_tasks() -> None:
    starts = r"(.*\.)?(create_task|ensure_future|run_coroutine_threadsafe)"
    roots = ("broker/server/broker.py", "broker/server/supervisor/supervisor.py")
    found = callers_outside(roots, starts)
    assert [one for one in found if not one.startswith("storage/concurrency/")] == []


def test_what_several_wait_for_is_waited_for_in_one_way() -> None:
    """From Python 3.14 on `shield` logs what nobody is there to hear."""
    assert callers_outside(("storage/concurrency/shared_future.py",), r"(asyncio\.)?shield") == []


def test_only_the_s3_store_knows_boto3() -> None:
    assert importers_outside(("storage/remote/s3/",), r"(boto3|botocore|s3transfer)(\..*)?") == []


def test_imports_stand_at_the_top_but_for_those_that_save_something() -> None:
    late = [
        f"{name(path)}:{node.lineno} imports {module}"
        for path in product_files()
        for function in nodes(path)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for module in modules_of(node)
        if not any(re.fullmatch(allowed, module) for allowed in LATE_IMPORTS)
    ]
    assert late == []


def test_spark_and_its_reader_are_known_in_the_lake_alone() -> None:
    assert importers_outside(("spark_lake/",), r"(pyspark|s3fs|fsspec)(\..*)?") == []


def test_no_file_names_a_package_registry() -> None:
    """Who installs says where from: a machine may have a mirror and nothing else."""
    hosts = re.compile(r"maven\.org|pypi\.org|npmjs\.|deb\.debian\.")
    files = [*python_files(), *ROOT.glob("*"), *(ROOT / "bench").rglob("*.xml")]
    for folder in ("scripts", "requirements", "localstack", ".ci"):
        files += (ROOT / folder).glob("*")
    named = [
        str(path.relative_to(ROOT))
        for path in files
        if path.is_file() and path != Path(__file__) and hosts.search(path.read_text("utf-8"))
    ]
    assert named == []


def test_nothing_private_of_the_interpreter_is_used() -> None:
    """The next Python has another. What is documented is not private, whatever its name is."""
    documented = {
        "os._exit",
        "_thread.start_new_thread",
        "asyncio.tasks._enter_task",
        "asyncio.tasks._leave_task",
    }
    used = [
        f"{name(path)}:{line} {full}"
        for path in python_files()
        for line, full in names_of_the_standard_library(path)
        if re.search(r"(^|\.)_(?!_)", full) and full not in documented
    ]
    assert used == []


# Private names of others' objects that are used, and why.
PRIVATE_NAMES = {
    r"_PARTITION_EOF|_AUTHENTICATION|_AUTO_OFFSET_RESET": "librdkafka's codes, documented",
    r"_ALL_BROKERS_DOWN|_FATAL": "others of them",
    r"_replace|_make|_asdict": "NamedTuple, documented",
    r"_exit": "of os, documented",
    r"_enter_task|_leave_task": "of asyncio, documented",
    r"_ready|_run": "the loop's queue in Python 3.11, which gets no more releases but for security",
    r"_jvm|_jsparkSession|_jdf|_jsc|_gateway": "the JVM of PySpark, which has no public way to it",
    r"_request_signer|_credentials|_endpoint|_content": "botocore; see each place",
    r"_assign_work_unit": "xdist's order; tests alone",
    r"_session": "of pyiceberg's REST catalog, which has no other way to a timeout",
    r"_data": "a data file of pyiceberg, changed; tests alone",
    r"_crc32c": "a slow function of MiniStack; tests alone",
    r"_header": "a message of kio; tests alone",
    r"_ready": "of asyncio's loop, whose time is virtual in tests; tests alone",
}


def test_private_attributes_are_our_own_or_have_a_reason() -> None:
    """Those of an instance or a base class of another library, which no import names."""
    ours: set[str] = set()
    used: dict[str, str] = {}
    for path in python_files():
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                ours.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                ours.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                ours.add(node.attr)
            elif isinstance(node, ast.Attribute) and re.match(r"_(?!_)", node.attr):
                used[node.attr] = f"{name(path)}:{node.lineno} {node.attr}"
    reasons = "|".join(PRIVATE_NAMES)
    others = {attribute: place for attribute, place in used.items() if attribute not in ours}
    assert [place for one, place in others.items() if not re.fullmatch(reasons, one)] == []


def names_of_the_standard_library(path: Path) -> Iterator[tuple[int, str]]:
    """What a file imports of it, and what it takes from that."""
    imported: dict[str, str] = {}
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names = {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {
                alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names
            }
        else:
            continue
        imported |= names
        yield from ((node.lineno, full) for full in names.values() if is_standard(full))
    for node in nodes(path):
        if isinstance(node, ast.Attribute):
            first, _, rest = dotted(node).partition(".")
            full = f"{imported.get(first, '')}.{rest}"
            if is_standard(full):
                yield node.lineno, full


def is_standard(full: str) -> bool:
    return full.partition(".")[0] in sys.stdlib_module_names


def test_compiled_kernels_are_imported_lazily() -> None:
    """numba costs 0.3 s: one module knows it, and what needs that one is imported late."""
    assert importers_outside(("storage/records/kernels/parts.py",), r"numba(\..*)?") == []
    loops = re.compile(r".*\.kernels\..*|.*_kernel")
    at_the_top = [
        f"{name(path)}:{node.lineno}"
        for path in product_files()
        if not loops.fullmatch(name(path.with_suffix("")).replace("/", "."))
        for node in parsed(path).body
        if any(loops.fullmatch(module) for module in modules_of(node))
    ]
    assert at_the_top == []


# --- modules -------------------------------------------------------------------------------------


def test_every_module_opens_with_its_theory() -> None:
    assert [name(path) for path in python_files() if not ast.get_docstring(parsed(path))] == []


def test_imports_are_absolute() -> None:
    relative = [
        f"{name(path)}:{node.lineno}"
        for path in product_files()
        for node in nodes(path)
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert relative == []


def test_no_module_is_named_after_nothing() -> None:
    empty_names = {"utils", "util", "helpers", "common", "base", "misc"}
    named = [path.relative_to(ROOT).with_suffix("") for path in product_files()]
    assert [str(path) for path in named if empty_names & set(path.parts)] == []


def test_unfinished_work_is_an_issue_and_not_a_note_in_the_code() -> None:
    mark = re.compile(r"\b(TO" + "DO|FIX" + "ME|X" + "XX)\b")
    assert [name(path) for path in python_files() if mark.search(path.read_text())] == []


def test_no_test_is_skipped_or_expected_to_fail() -> None:
    """A test that may not run proves nothing; what a test needs, `make test` sets up."""
    skips = r"pytest\.(skip|xfail|importorskip|mark\.(skip|skipif|xfail))"
    found = [
        f"{name(path)}:{node.lineno}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for node in nodes(path)
        if isinstance(node, ast.Attribute) and re.fullmatch(skips, dotted(node))
    ]
    assert found == []


def test_a_folder_is_a_room_of_files_that_are_read_together() -> None:
    """More than this many are looked through and not read: they want rooms (CONTRIBUTING)."""
    # The module of an API follows from the API's name, so its folder needs no map.
    by_name = {"broker/protocol/messages"}
    sizes = Counter(name(path.parent) for path in product_files() if path.stem != "__init__")
    assert {room: size for room, size in sizes.items() if size > ROOM_FILES_MAX}.keys() == by_name


def test_a_number_of_things_is_told_to_people_with_the_right_noun() -> None:
    """`1 segments` is what `plurals` is for. Logs of the broker name their numbers instead."""
    things = (
        r" (?:more )?(?:batche|byte|change|chunk|comparison|entrie|file|group|log|member|object"
        r"|offset|partition|piece|record|request|row|segment|split|task|topic|upload)s\b(?! $)"
    )
    told = [
        *ROOT.glob("broker/commands/*.py"),
        *ROOT.glob("broker/tools/*/*.py"),
        *ROOT.glob("demo/*.py"),
        ROOT / "spark_lake" / "plan" / "planner.py",
        ROOT / "spark_lake" / "query" / "report.py",
        *(ROOT / "storage" / "local" / "inspect").glob("*.py"),
    ]
    found = [
        f"{name(path)}:{node.lineno}: {after.value!r}"
        for path in told
        for node in nodes(path)
        if isinstance(node, ast.JoinedStr)
        for value, after in pairwise(node.values)
        if isinstance(value, ast.FormattedValue)
        and isinstance(after, ast.Constant)
        and re.match(things, str(after.value))
    ]
    assert found == []


# --- wiring --------------------------------------------------------------------------------------


def test_every_package_is_linked_and_packed() -> None:
    found = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"demo"}
    assert found == set(PACKAGES)
    build = pyproject()["tool"]["hatch"]["build"]["targets"]
    for package in PACKAGES:
        link = ROOT / ".namespace" / "strandline" / package
        assert link.is_symlink(), f"{link} is missing"
        assert link.resolve() == ROOT / package
        assert package in build["wheel"]["only-include"]
        assert package in build["sdist"]["only-include"]
        assert build["wheel"]["sources"][package] == f"strandline/{package}"


def test_every_folder_with_modules_is_a_package() -> None:
    without = [
        name(path.parent) for path in product_files() if not (path.parent / "__init__.py").exists()
    ]
    assert without == []


@pytest.mark.parametrize("folder", NO_PACKAGES)
def test_folders_beside_the_product_are_no_packages(folder: str) -> None:
    """Above all localstack/: an `__init__.py` there would hide LocalStack's own package."""
    assert not (ROOT / folder / "__init__.py").exists()


def test_scripts_are_executable_and_stop_at_the_first_error() -> None:
    scripts = [path for path in (ROOT / "scripts").iterdir() if path.is_file()]
    for script in (*scripts, *(ROOT / "localstack").glob("*.sh"), ROOT / ".ci/run"):
        assert script.stat().st_mode & 0o111, f"{name(script)} is not executable"
        text = script.read_text()
        assert text.startswith("#!/usr/bin/env bash\n"), name(script)
        assert "\nset -euo pipefail\n" in text, name(script)


# --- dependencies --------------------------------------------------------------------------------


@cache
def locked(lock: str) -> dict[str, Version]:
    versions = {}
    for line in (ROOT / lock).read_text().splitlines():
        if line and not line.startswith("#"):
            pin = re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.]+)( ; .*)?", line)
            assert pin, f"{lock}: {line!r} is no plain pin"
            versions[canonicalize_name(pin[1])] = Version(pin[2])
    return versions


def requirements_of(*extras: str) -> list[Requirement]:
    """The direct requirements of the project with these extras; extras of extras are followed."""
    project = pyproject()["project"]
    found = [Requirement(text) for text in project["dependencies"]]
    for extra in extras:
        for text in project["optional-dependencies"][extra]:
            requirement = Requirement(text)
            if requirement.name == project["name"]:
                found += requirements_of(*requirement.extras)
            else:
                found.append(requirement)
    return found


@pytest.mark.parametrize(
    ("lock", "extras"),
    [
        ("requirements/broker.lock", ("oauth",)),
        ("requirements/demo.lock", ("demo",)),
        ("requirements/dev.lock", ("dev",)),
    ],
)
def test_locks_hold_what_the_project_asks_for(lock: str, extras: tuple[str, ...]) -> None:
    """When it fails: `make lock`."""
    for requirement in requirements_of(*extras):
        version = locked(lock).get(canonicalize_name(requirement.name))
        assert version is not None, f"{lock} lacks {requirement.name}"
        assert version in requirement.specifier, f"{lock} has {requirement.name} {version}"


def test_locks_agree_with_each_other() -> None:
    everything = locked("requirements/dev.lock")
    for lock in ("requirements/broker.lock", "requirements/demo.lock"):
        assert locked(lock).items() <= everything.items()


def test_what_a_parallel_run_begins_with_is_there() -> None:
    assert len(set(LONGEST)) == len(LONGEST)
    assert [scope for scope in LONGEST if not (ROOT / scope).exists()] == []


def test_each_crash_point_is_stopped_at_by_a_test() -> None:
    """By its constant, or by all points of its prefix."""
    tests = "\n".join(path.read_text() for path in sorted((ROOT / "tests").rglob("*.py")))
    words = set(re.findall(r"\w+", tests))
    points = {name: point for name, point in vars(crash_points).items() if point in CRASH_POINTS}
    assert sorted(points.values()) == sorted(CRASH_POINTS)
    unused = [
        name
        for name, point in points.items()
        if name not in words and f'startswith("{point.split(".")[0]}.")' not in tests
    ]
    assert unused == []
