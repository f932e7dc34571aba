"""The jar of the reader inside the JVM: where it lies, and what is said where it does not."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from strandline.spark_lake.jvm import jar
from strandline.spark_lake.jvm.jar import JAR_NAME, NoJvmReader, jar_path

PACKAGE = Path(jar.__file__).parents[1]


def test_the_jar_lies_where_it_was_built_or_it_is_said_what_builds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.resources.files", lambda _: tmp_path)
    jar_path.cache_clear()
    with pytest.raises(NoJvmReader, match=rf"has no {JAR_NAME}: `make jar` builds it"):
        jar_path()
    (tmp_path / "jvm").mkdir()
    (tmp_path / "jvm" / JAR_NAME).touch()
    assert jar_path() == tmp_path / "jvm" / JAR_NAME
    jar_path.cache_clear()


def test_a_wheel_that_is_not_unpacked_has_the_jar_as_a_file(tmp_path: Path) -> None:
    """As `spark-submit --py-files` has it; the file goes with the process."""
    wheel = tmp_path / "strandline.zip"
    with zipfile.ZipFile(wheel, "w") as archive:
        root = PACKAGE.parent
        for one in [root / "__init__.py", *(root / "storage").rglob("*.py")]:
            archive.write(one, f"strandline/{one.relative_to(root)}")
        for name in ("__init__.py", "jvm/__init__.py", "jvm/jar.py"):
            archive.write(PACKAGE / name, f"strandline/spark_lake/{name}")
        archive.writestr(f"strandline/spark_lake/jvm/{JAR_NAME}", b"jar")
    code = (
        "from strandline.spark_lake.jvm import jar; path = jar.jar_path();"
        "assert path.read_bytes() == b'jar' and path == jar.jar_path(); print(path)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path.insert(0, {str(wheel)!r}); {code}"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert not Path(done.stdout.strip()).exists()
