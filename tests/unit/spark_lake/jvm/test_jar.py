"""The jar of the reader inside the JVM: where it is kept, made once, and why it cannot be had."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest

from strandline.spark_lake.jvm import jar as jvm_jar
from strandline.spark_lake.jvm.jar import NoJvmReader, jar_of, sources

# Stands for java and the compiler: makes the file behind `-d` after a while, and counts its runs.
COMPILER = """#!/bin/sh
while [ "$1" != -d ]; do shift; done
sleep 0.1
echo run >> "{folder}/runs"
echo jar > "$2"
"""


@pytest.fixture
def spark_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Spark with a compiler, a Java that pretends, and a cache of one's own."""
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(COMPILER.format(folder=tmp_path))
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setenv("STRANDLINE_CACHE_DIR", str(tmp_path / "cache"))
    home = tmp_path / "spark"
    (home / "jars").mkdir(parents=True)
    (home / "jars" / "scala-compiler-2.13.jar").touch()
    return home


def runs(spark_home: Path) -> int:
    return len((spark_home.parent / "runs").read_text().splitlines())


def test_the_sources_come_with_the_package() -> None:
    assert {"Source.scala", "Records.scala", "Plan.scala"} <= set(sources())


def test_a_jar_is_compiled_once_however_many_ask(spark_home: Path) -> None:
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(jar_of("4.3.0", spark_home))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert found[0].read_text() == "jar\n"
    assert runs(spark_home) == 1
    assert not (found[0].parent / "compiling").exists()


def test_another_spark_and_other_sources_get_a_jar_of_their_own(
    spark_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = jar_of("4.3.0", spark_home)
    assert jar_of("4.3.1", spark_home) != one
    monkeypatch.setattr(jvm_jar, "sources", lambda: {"Other.scala": b"object Other"})
    assert jar_of("4.3.0", spark_home) != one
    assert runs(spark_home) == 3


def test_what_a_killed_compiler_left_is_removed(spark_home: Path, tmp_path: Path) -> None:
    left = tmp_path / "cache" / "compiling"
    left.mkdir(mode=0o700, parents=True)
    (tmp_path / "cache").chmod(0o700)
    (left / "half.jar").touch()
    assert jar_of("4.3.0", spark_home).exists()
    assert not left.exists()


def test_what_the_compiler_says_is_told(spark_home: Path, tmp_path: Path) -> None:
    (tmp_path / "java" / "bin" / "java").write_text("#!/bin/sh\necho no such type >&2\nexit 1\n")
    with pytest.raises(NoJvmReader, match="no such type"):
        jar_of("4.3.0", spark_home)
    assert list((tmp_path / "cache").glob("*.jar")) == []


def test_without_compiler_or_java_the_reason_is_given(
    spark_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NoJvmReader, match="no Scala compiler in"):
        jar_of("4.3.0", tmp_path / "elsewhere")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(NoJvmReader, match="set JAVA_HOME"):
        jar_of("4.3.0", spark_home)


def test_a_folder_that_others_write_to_is_not_used(spark_home: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(NoJvmReader, match="can be written to by others"):
        jar_of("4.3.0", spark_home)


def test_without_a_home_jars_lie_with_the_temporary_files(
    spark_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.delenv("STRANDLINE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    assert jar_of("4.3.0", spark_home).parent == tmp_path / f"strandline-{os.getuid()}"
